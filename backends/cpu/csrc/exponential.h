// exp without libm, branch-free, so that loops over it become vector code and give the same bits everywhere in a loop.
#pragma once
#include "numbers.h"
#include <limits>

static inline double double_of(uint64_t u) {
    double x;
    std::memcpy(&x, &u, 8);
    return x;
}

static inline uint64_t bits_of(double x) {
    uint64_t u;
    std::memcpy(&u, &x, 8);
    return u;
}

// e^x for float64, relative error below 1e-13; 0 becomes about 1e-308 below -708, infinity above 709, NaN stays.
static inline double exp_double(double x) {
    constexpr double SHIFT = 0x1.8p52, LOG2E = 0x1.71547652b82fep0, HIGH = 0x1.62e42fep-1, LOW = 0x1.f473de6af278fp-30;
    const double t = x < -708.0 ? -708.0 : x > 709.0 ? 709.0 : x;
    const double shifted = t * LOG2E + SHIFT, n = shifted - SHIFT;
    const double r = (t - n * HIGH) - n * LOW; // |r| <= ln(2) / 2; n * HIGH is exact
    double p = 1.0 / 39916800;                 // Taylor to r^11: the rest is below 1e-14
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const double y = double_of(bits_of(p) + (bits_of(shifted) << 52));
    return x > 709.0 ? std::numeric_limits<double>::infinity() : p != p ? p : y;
}

// e^x for x <= 0 in float32 as the product of two normal numbers, that of -170 below; NaN stays.
static inline void exp_parts(float x, float &first_part, float &second_part) {
    constexpr float SHIFT = 0x1.8p23f, LOG2E = 0x1.715476p0f, HIGH = 0x1.62ep-1f, LOW = 0x1.0bfbe8p-15f;
    const float t = x < -170.0f ? -170.0f : x;
    const float shifted = multiply_add(t, LOG2E, SHIFT), n = shifted - SHIFT;
    const float r = multiply_add(-n, LOW, multiply_add(-n, HIGH, t)); // n * HIGH is exact
    float p = 1.0f / 5040;
    p = multiply_add(p, r, 1.0f / 720);
    p = multiply_add(p, r, 1.0f / 120);
    p = multiply_add(p, r, 1.0f / 24);
    p = multiply_add(p, r, 1.0f / 6);
    p = multiply_add(p, r, 0.5f);
    p = multiply_add(p * r, r, r) + 1.0f;
    const int32_t whole = static_cast<int32_t>(bits_of(shifted) - bits_of(SHIFT)), first = whole >> 1;
    const float scale0 = float_of(static_cast<uint32_t>(first + 127) << 23);
    const float scale1 = float_of(static_cast<uint32_t>(whole - first + 127) << 23);
    first_part = p * scale0;
    second_part = scale1;
}

// e^x for x <= 0 in float32: at most 1.1 ulp off (measured over all arguments), exactly 0 below -104, NaN stays.
static inline float exp_negative(float x) {
    float first, second;
    exp_parts(x, first, second);
    return first * second; // in two steps: results below 2^-126 round once
}

// tanh for float64, relative error below 1e-11.
static inline double tanh_double(double x) {
    const double small = x - x * x * x * (1.0 / 3), large = 1.0 - 2.0 / (exp_double(2.0 * x) + 1.0);
    return (x < 0 ? -x : x) < 1e-4 ? small : large;
}
