// The products of attention over one chunk of 64 keys: queries times keys, and weights times values.
#pragma once
#include "lanes.h"

constexpr int64_t CHUNK = 64;

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

// logits[t * CHUNK + j] = q[t] . key[j], a plain sum over ascending dims.
template <int T> void multiply_keys(const float *q, int64_t width, const float *keys, float *logits) {
    Lanes sums[T][4];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sums[t][i] = zero();
    for (int64_t d = 0; d < width; d++) {
        Lanes k[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) k[i] = in_register(load(keys + d * CHUNK + 16 * i));
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const Lanes x = broadcast(q[t * width + d]);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) sums[t][i] = fma(x, k[i], sums[t][i]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) store(logits + t * CHUNK + 16 * i, sums[t][i]);
}

// out[t * stride + 16 i ...] = sum over keys first .. last - 1 of weight times value, for C lanes of columns.
template <int T, int C>
void multiply_values(const float *weights, const float *const *values, int64_t column, int64_t first, int64_t last,
                     float *out, int64_t stride) {
    Lanes sums[T][C];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int i = 0; i < C; i++) sums[t][i] = zero();
    for (int64_t j = first; j < last; j++) {
        Lanes v[C];
#pragma GCC unroll 4
        for (int i = 0; i < C; i++) v[i] = in_register(load(values[j] + column + 16 * i));
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const Lanes w = broadcast(weights[t * CHUNK + j]);
#pragma GCC unroll 4
            for (int i = 0; i < C; i++) sums[t][i] = fma(w, v[i], sums[t][i]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int i = 0; i < C; i++) store(out + t * stride + column + 16 * i, sums[t][i]);
}

template <int T>
void multiply_values(const float *weights, const float *const *values, int64_t width, int64_t first, int64_t last,
                     float *out, int64_t stride) {
    int64_t column = 0;
    for (; column + 64 <= width; column += 64) multiply_values<T, 4>(weights, values, column, first, last, out, stride);
    for (; column < width; column += 16) multiply_values<T, 1>(weights, values, column, first, last, out, stride);
}
