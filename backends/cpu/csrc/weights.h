// Weight rows as the Python side hands them over, and how to walk over their values.
#pragma once
#include "blocks_x86.h"

// A run of `rows` rows in one scheme; row r starts at data + r * row_bytes. Mirrored by kernels/library.py.
struct Part {
    int32_t scheme, reserved;
    int64_t rows;
    const uint8_t *data;
    int64_t row_bytes;
};

// Calls sink(i, lanes) for each sixteen values of the block at `p`, in ascending order within the block.
template <class S, class Sink> INLINE void decode(S, const uint8_t *p, Sink sink) {
    float y[S::values];
    S::unpack(p, y);
#pragma GCC unroll 16
    for (int i = 0; i < S::values / 16; i++) sink(i, load(y + 16 * i));
}

template <class T, class Sink> INLINE void decode(Dense<T>, const uint8_t *p, Sink sink) {
    sink(0, load(reinterpret_cast<const T *>(p)));
}

struct SchemeName {
    const char *name;
    int32_t code, values;
};

#define FOR_EACH_SCHEME(X)        \
    X(0, "float32", Dense<float>) \
    X(1, "bfloat16", Dense<bf16>) \
    X(2, "float16", Dense<f16>)   \
    X(3, "q4_0", Q4_0)            \
    X(4, "q4_1", Q4_1)            \
    X(5, "q5_0", Q5_0)            \
    X(6, "q5_1", Q5_1)            \
    X(7, "q8_0", Q8_0)            \
    X(8, "q2_k", Q2_K)            \
    X(9, "q3_k", Q3_K)            \
    X(10, "q4_k", Q4_K)           \
    X(11, "q5_k", Q5_K)           \
    X(12, "q6_k", Q6_K)           \
    X(13, "iq4_nl", IQ4_NL)       \
    X(14, "iq4_xs", IQ4_XS)       \
    X(15, "mxfp4", MXFP4)

constexpr int64_t PREFETCH_BYTES = 4096; // rows lie behind each other and are read once: fetch this far ahead

// Calls `body` with a value of the scheme's type; false when the code is unknown.
template <class Body> static inline bool with_scheme(int32_t code, Body body) {
    switch (code) {
#define CASE(number, name, type) \
    case number: body(type{}); return true;
        FOR_EACH_SCHEME(CASE)
#undef CASE
    default: return false;
    }
}

// The first k values of a row, zero up to the next multiple of 16.
template <class S> static inline void unpack_row(S, const uint8_t *row, int64_t k, float *y) {
    int64_t at = 0;
    for (; at + S::values <= k; at += S::values, row += S::bytes) {
#pragma GCC unroll 8
        for (int line = 0; line < S::bytes; line += 64) __builtin_prefetch(row + PREFETCH_BYTES + line);
        decode(S{}, row, [&](int i, Lanes v) __attribute__((always_inline)) { store(y + at + 16 * i, v); });
    }
    if (at == k) return;
    uint8_t last[S::bytes] = {};
    std::memcpy(last, row, static_cast<size_t>((k - at) * S::bytes / S::values));
    decode(S{}, last, [&](int i, Lanes v) __attribute__((always_inline)) { store(y + at + 16 * i, v); });
}
