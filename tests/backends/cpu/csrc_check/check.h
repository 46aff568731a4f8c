// Checks of the kernels without Python: each compares a C function with plain loops in double. They run on any target
// and under sanitizers.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "numbers.h"

// Counts and prints what is wrong.
struct Check {
    std::string name;
    int failures = 0;

    void fail(const std::string &what) {
        if (failures++ < 5) std::printf("%s: %s\n", name.c_str(), what.c_str());
    }
    void that(bool holds, const std::string &what) {
        if (!holds) fail(what);
    }
    // |got - wanted| <= bound; two NaN agree.
    void near(double got, double wanted, double bound, const std::string &what) {
        const bool same = got == wanted || (got != got && wanted != wanted) || std::fabs(got - wanted) <= bound;
        if (!same) fail(what + ": " + std::to_string(got) + " instead of " + std::to_string(wanted));
    }
};

// xorshift64*: the same numbers on every machine.
struct Random {
    uint64_t state = 0x9e3779b97f4a7c15ull;
    uint64_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 0x2545f4914f6cdd1dull;
    }
    int64_t below(int64_t n) { return static_cast<int64_t>(next() >> 33) % n; }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    float normal() { // by the sum of twelve
        double x = -6;
        for (int i = 0; i < 12; i++) x += uniform();
        return static_cast<float>(x);
    }
    std::vector<float> normals(int64_t n) {
        std::vector<float> x(static_cast<size_t>(n));
        for (float &v : x) v = normal();
        return x;
    }
};

template <class T> std::vector<T> rounded(const std::vector<float> &x) {
    std::vector<T> y(x.size());
    for (size_t i = 0; i < x.size(); i++) assign(y[i], x[i]);
    return y;
}

template <class T> constexpr int32_t type_of();
template <> constexpr int32_t type_of<float>() { return FLOAT32; }
template <> constexpr int32_t type_of<bf16>() { return BFLOAT16; }
template <> constexpr int32_t type_of<f16>() { return FLOAT16; }

// Half a unit in the last place of T, relative.
template <class T> constexpr double rounding() { return 0x1p-24; }
template <> constexpr double rounding<bf16>() { return 0x1p-8; }
template <> constexpr double rounding<f16>() { return 0x1p-11; }

void check_threads(Check &);
void check_numbers(Check &);
void check_tiles(Check &);
void check_linear(Check &);
void check_rows(Check &);
void check_norm(Check &);
void check_pointwise(Check &);
void check_cache(Check &);
void check_attention(Check &);
void check_program(Check &);
void check_faults(Check &);
