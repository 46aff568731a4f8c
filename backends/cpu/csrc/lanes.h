// Sixteen float32 values processed together, in as many machine vectors as the target needs.
// Lane l of an accumulator sees k = l, l + 16, l + 32, ... in ascending order, and `sum` always adds lane i to lane
// i + 8, then i + 4, i + 2, i + 1: one order per result, whatever the machine, the rows or the threads.
#pragma once
#include "numbers.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define LANES_AVX512 1
#endif
#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

#ifdef LANES_AVX512

struct Lanes {
    __m512 v;
};

INLINE Lanes zero() { return {_mm512_setzero_ps()}; }
INLINE Lanes load(const float *p) { return {_mm512_loadu_ps(p)}; }
INLINE Lanes load(const bf16 *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
INLINE Lanes load(const f16 *p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))}; }
INLINE void store(float *p, Lanes a) { _mm512_storeu_ps(p, a.v); }
INLINE Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
INLINE Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
INLINE Lanes multiply(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// Keeps the compiler from reading the value again from memory at every use.
INLINE Lanes in_register(Lanes a) {
    __asm__("" : "+v"(a.v));
    return a;
}

// The sums of four accumulators, by the same tree as `sum`.
INLINE void sum4(Lanes a, Lanes b, Lanes c, Lanes d, float *out) {
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xee));
    const __m512 quad = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 pair = _mm512_add_ps(quad, _mm512_permute_ps(quad, 0x4e));
    const __m512 one = _mm512_add_ps(pair, _mm512_permute_ps(pair, 0xb1));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
}

INLINE float sum(Lanes a) {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
    const __m128 quad = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

#else

#ifdef __AVX__
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif
constexpr int PIECES = 16 / WIDTH;
typedef float Vector __attribute__((vector_size(WIDTH * 4)));

struct Lanes {
    Vector v[PIECES];
};

INLINE Vector fma_piece(Vector a, Vector b, Vector c) {
#if defined(__AVX__) && defined(__FMA__)
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

#define EACH_PIECE _Pragma("GCC unroll 4") for (int i = 0; i < PIECES; i++)

INLINE Lanes load(const float *p) {
    Lanes a;
    EACH_PIECE std::memcpy(&a.v[i], p + i * WIDTH, sizeof(Vector));
    return a;
}
template <class T> INLINE Lanes load(const T *p) {
    float wide[16];
    for (int i = 0; i < 16; i++) wide[i] = to_float(p[i]);
    return load(static_cast<const float *>(wide));
}
INLINE void store(float *p, Lanes a) { EACH_PIECE std::memcpy(p + i * WIDTH, &a.v[i], sizeof(Vector)); }
INLINE Lanes broadcast(float x) {
    Lanes a;
    EACH_PIECE a.v[i] = Vector{} + x;
    return a;
}
INLINE Lanes zero() {
    Lanes a;
    EACH_PIECE a.v[i] = Vector{};
    return a;
}
INLINE Lanes add(Lanes a, Lanes b) {
    EACH_PIECE a.v[i] = a.v[i] + b.v[i];
    return a;
}
INLINE Lanes multiply(Lanes a, Lanes b) {
    EACH_PIECE a.v[i] = a.v[i] * b.v[i];
    return a;
}
INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
    EACH_PIECE c.v[i] = fma_piece(a.v[i], b.v[i], c.v[i]);
    return c;
}
INLINE Lanes in_register(Lanes a) { return a; }

INLINE float sum(Lanes a) {
    float x[16];
    store(x, a);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

INLINE void sum4(Lanes a, Lanes b, Lanes c, Lanes d, float *out) {
    out[0] = sum(a);
    out[1] = sum(b);
    out[2] = sum(c);
    out[3] = sum(d);
}

#undef EACH_PIECE
#endif
