// Element types of activations and caches, and their conversions to and from float32.
// Stores round to nearest, ties to even; infinities and NaN survive.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

enum Type : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3 }; // INT8: codes of caches only

static inline int64_t value_bytes(int32_t type) { return type == FLOAT32 ? 4 : type == INT8 ? 1 : 2; }

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

static inline uint32_t bits_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
}

static inline float float_of(uint32_t u) {
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}

static inline float to_float(float x) { return x; }

static inline float to_float(int8_t x) { return static_cast<float>(x); }

static inline float to_float(bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }

static inline float to_float(f16 x) {
#ifdef __F16C__
    return _cvtsh_ss(x.bits);
#else
    const uint32_t sign = (x.bits & 0x8000u) << 16, magnitude = (x.bits & 0x7fffu) << 13;
    const uint32_t exponent = magnitude & 0x0f800000u;
    const uint32_t normal = magnitude + 0x38000000u;
    const uint32_t special = magnitude | 0x7f800000u;
    const uint32_t subnormal = bits_of(float_of(magnitude + 0x38800000u) - float_of(0x38800000u));
    return float_of(sign | (exponent == 0 ? subnormal : exponent == 0x0f800000u ? special : normal));
#endif
}

static inline void assign(float &y, float x) { y = x; }

static inline void assign(bf16 &y, float x) {
    const uint32_t u = bits_of(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    y.bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
}

static inline void assign(f16 &y, float x) {
#ifdef __F16C__
    y.bits = static_cast<uint16_t>(_cvtss_sh(x, 0));
#else
    const uint32_t sign = (bits_of(x) >> 16) & 0x8000u, u = bits_of(x) & 0x7fffffffu;
    const uint32_t special = u > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t subnormal = bits_of(float_of(u) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1)) >> 13;
    y.bits = static_cast<uint16_t>(sign | (u >= 0x47800000u ? special : u < 0x38800000u ? subnormal : normal));
#endif
}

// One rounding where the target has hardware for it; never called for results that must agree across machines.
static inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// Calls `body` with a null pointer of the C++ type that `type` names; false when there is none.
template <class Body> static inline bool with_type(int32_t type, Body body) {
    switch (type) {
    case FLOAT32: body(static_cast<float *>(nullptr)); return true;
    case BFLOAT16: body(static_cast<bf16 *>(nullptr)); return true;
    case FLOAT16: body(static_cast<f16 *>(nullptr)); return true;
    default: return false;
    }
}

// The same for the types of caches.
template <class Body> static inline bool with_cache_type(int32_t type, Body body) {
    if (type != INT8) return with_type(type, body);
    body(static_cast<int8_t *>(nullptr));
    return true;
}
