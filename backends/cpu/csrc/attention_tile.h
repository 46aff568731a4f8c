// The products of attention over one chunk of 64 keys: queries times keys, and weights times values.
#pragma once
#include "lanes.h"

constexpr int64_t CHUNK = 64, GROUPS = CHUNK / 16; // keys are multiplied in groups of 16

// Most queries that are multiplied together, and accumulators that fit in registers, in Lanes.
#if defined(LANES_AVX512) || defined(__aarch64__)
constexpr int TILE = 4, ACCUMULATORS = 16 / VECTORS;
#elif defined(LANES_AVX2)
constexpr int TILE = 4, ACCUMULATORS = 4;
#else
constexpr int TILE = 2, ACCUMULATORS = 2;
#endif
// Lanes of keys or columns that T queries are multiplied with at a time.
template <int T> constexpr int ABREAST = T * 4 <= ACCUMULATORS ? 4 : T * 2 <= ACCUMULATORS ? 2 : 1;

#ifdef LANES_AVX512
// Rows 0-15 of r become columns.
INLINE void transpose(__m512 *r) {
    __m512 t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512 a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88), b = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88),
                     d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
        t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
        t[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
        t[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
        t[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = t[i];
}
#endif

// Writes dims 0 .. width - 1 of sixteen keys (null: zeros) to columns of `to` [width][CHUNK].
template <class C> void transpose_keys(const C *const *keys, int64_t width, float *to) {
    int64_t d = 0;
#ifdef LANES_AVX512
    for (; d + 16 <= width; d += 16) {
        __m512 r[16];
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) r[j] = keys[j] ? load(keys[j] + d).v[0] : _mm512_setzero_ps();
        transpose(r);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) _mm512_storeu_ps(to + (d + j) * CHUNK, r[j]);
    }
#endif
    for (; d < width; d++)
        for (int j = 0; j < 16; j++) to[d * CHUNK + j] = keys[j] ? to_float(keys[j][d]) : 0.0f;
}

// What is read next: four pieces of memory, or nothing.
struct Ahead {
    const char *piece[GROUPS] = {};
    void fetch(int64_t i, int64_t from, int64_t bytes) const {
        for (int64_t at = from / 64 * 64; at < from + bytes; at += 64) __builtin_prefetch(piece[i] + at);
    }
};

// Sixteen keys each: dim d of key l of group g is group[g][d * stride + l].
template <class C> struct KeyGroups {
    const C *group[GROUPS];
    int64_t stride;
};

// logits[t * CHUNK + 16 (g + i) + l] = q[t] . key l of group g + i, for N groups: one sum over ascending dims.
// Fetches `step` bytes of each piece of `ahead` per dim, if FETCH.
template <int T, int N, bool FETCH, class C>
void multiply_groups(const float *q, int64_t width, const KeyGroups<C> &keys, int64_t g, float *logits,
                     const Ahead &ahead, int64_t step) {
    Lanes sums[T][N];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int i = 0; i < N; i++) sums[t][i] = zero();
    const C *from[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) from[i] = keys.group[g + i];
    for (int64_t d = 0; d < width; d++) {
        Lanes k[N];
#pragma GCC unroll 4
        for (int i = 0; i < N; i++) k[i] = in_register(load(from[i] + d * keys.stride));
        if (FETCH)
#pragma GCC unroll 4
            for (int i = 0; i < N; i++) ahead.fetch(g + i, d * step, step);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const Lanes x = broadcast(q[t * width + d]);
#pragma GCC unroll 4
            for (int i = 0; i < N; i++) sums[t][i] = fma(x, k[i], sums[t][i]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int i = 0; i < N; i++) store(logits + t * CHUNK + 16 * (g + i), sums[t][i]);
}

// The same for groups g .. stop - 1.
template <int T, bool FETCH, class C>
void multiply_keys(const float *q, int64_t width, const KeyGroups<C> &keys, int64_t g, int64_t stop, float *logits,
                   const Ahead &ahead, int64_t step) {
    constexpr int N = ABREAST<T>;
    for (; g + N <= stop; g += N) multiply_groups<T, N, FETCH>(q, width, keys, g, logits, ahead, step);
    if (N > 2)
        for (; g + 2 <= stop; g += 2) multiply_groups<T, 2, FETCH>(q, width, keys, g, logits, ahead, step);
    for (; g < stop; g++) multiply_groups<T, 1, FETCH>(q, width, keys, g, logits, ahead, step);
}

// out[t * stride + column ...] += sum over keys first .. last - 1 of weight times value, ascending, for N lanes of
// columns; the sum starts at zero if `fresh`. Fetches a row of the pieces of `ahead` per key, if FETCH.
template <int T, int N, bool FETCH, class C>
void multiply_columns(const float *weights, const C *const *values, int64_t column, int64_t first, int64_t last,
                      bool fresh, float *out, int64_t stride, const Ahead &ahead, int64_t row) {
    Lanes sums[T][N];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int i = 0; i < N; i++) sums[t][i] = fresh ? zero() : load(out + t * stride + column + 16 * i);
    for (int64_t j = first; j < last; j++) {
        Lanes v[N];
#pragma GCC unroll 4
        for (int i = 0; i < N; i++) v[i] = in_register(load(values[j] + column + 16 * i));
        if (FETCH) ahead.fetch(j / 16, j % 16 * row + column * static_cast<int64_t>(sizeof(C)), 16 * N * sizeof(C));
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const Lanes w = broadcast(weights[t * CHUNK + j]);
#pragma GCC unroll 4
            for (int i = 0; i < N; i++) sums[t][i] = fma(w, v[i], sums[t][i]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int i = 0; i < N; i++) store(out + t * stride + column + 16 * i, sums[t][i]);
}

template <int T, bool FETCH, class C>
void multiply_values(const float *weights, const C *const *values, int64_t width, int64_t first, int64_t last,
                     bool fresh, float *out, int64_t stride, const Ahead &ahead, int64_t row) {
    constexpr int N = ABREAST<T>;
    int64_t column = 0;
    for (; column + 16 * N <= width; column += 16 * N)
        multiply_columns<T, N, FETCH>(weights, values, column, first, last, fresh, out, stride, ahead, row);
    for (; column < width; column += 16)
        multiply_columns<T, 1, FETCH>(weights, values, column, first, last, fresh, out, stride, ahead, row);
}
