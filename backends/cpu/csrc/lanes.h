// Sixteen float32 values processed together, in as many machine vectors as the target needs.
// Lane l of an accumulator sees k = l, l + 16, l + 32, ... in ascending order, and `sum` always adds lane i to lane
// i + 8, then i + 4, i + 2, i + 1: one order per result, whatever the machine, the rows or the threads.
#pragma once
#include "numbers.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define LANES_AVX512 1
#endif
#if defined(LANES_AVX512) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#define LANES_AVX2 1 // or more
#include <immintrin.h>
#endif
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

#if defined(LANES_AVX512)
constexpr int WIDTH = 16;
typedef __m512 Vector;
INLINE Vector load_vector(const float *p) { return _mm512_loadu_ps(p); }
INLINE void store_vector(float *p, Vector a) { _mm512_storeu_ps(p, a); }
INLINE Vector spread(float x) { return _mm512_set1_ps(x); }
INLINE Vector fused(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
// Keeps the compiler from reading the value again from memory at every use.
INLINE Vector kept(Vector a) {
    __asm__("" : "+v"(a));
    return a;
}
#elif defined(LANES_AVX2)
constexpr int WIDTH = 8;
typedef __m256 Vector;
INLINE Vector load_vector(const float *p) { return _mm256_loadu_ps(p); }
INLINE void store_vector(float *p, Vector a) { _mm256_storeu_ps(p, a); }
INLINE Vector spread(float x) { return _mm256_set1_ps(x); }
INLINE Vector fused(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vector kept(Vector a) {
    __asm__("" : "+x"(a));
    return a;
}
#else
constexpr int WIDTH = 4;
typedef float Vector __attribute__((vector_size(16)));
INLINE Vector load_vector(const float *p) {
    Vector a;
    std::memcpy(&a, p, sizeof a);
    return a;
}
INLINE void store_vector(float *p, Vector a) { std::memcpy(p, &a, sizeof a); }
INLINE Vector spread(float x) { return Vector{x, x, x, x}; }
INLINE Vector fused(Vector a, Vector b, Vector c) {
#if defined(__ARM_NEON) && defined(__aarch64__)
    return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
INLINE Vector kept(Vector a) {
#if defined(__aarch64__)
    __asm__("" : "+w"(a));
#endif
    return a;
}
#endif

constexpr int VECTORS = 16 / WIDTH;

struct Lanes {
    Vector v[VECTORS];
};

#define EACH_VECTOR _Pragma("GCC unroll 4") for (int i = 0; i < VECTORS; i++)

INLINE Lanes broadcast(float x) {
    Lanes a;
    EACH_VECTOR a.v[i] = spread(x);
    return a;
}
INLINE Lanes zero() { return broadcast(0.0f); }
INLINE Lanes load(const float *p) {
    Lanes a;
    EACH_VECTOR a.v[i] = load_vector(p + i * WIDTH);
    return a;
}
INLINE void store(float *p, Lanes a) { EACH_VECTOR store_vector(p + i * WIDTH, a.v[i]); }
INLINE Lanes add(Lanes a, Lanes b) {
    EACH_VECTOR a.v[i] = a.v[i] + b.v[i];
    return a;
}
INLINE Lanes multiply(Lanes a, Lanes b) {
    EACH_VECTOR a.v[i] = a.v[i] * b.v[i];
    return a;
}
INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
    EACH_VECTOR c.v[i] = fused(a.v[i], b.v[i], c.v[i]);
    return c;
}
INLINE Lanes in_register(Lanes a) {
    EACH_VECTOR a.v[i] = kept(a.v[i]);
    return a;
}

#undef EACH_VECTOR

#if defined(LANES_AVX512)

INLINE Lanes load(const bf16 *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))}};
}
INLINE Lanes load(const f16 *p) {
    return {{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))}};
}
INLINE Lanes load(const int8_t *p) {
    return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))))}};
}

#elif defined(LANES_AVX2)

INLINE __m128i eight_halves(const void *p) { return _mm_loadu_si128(static_cast<const __m128i *>(p)); }
INLINE Vector widen_bf16(const bf16 *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight_halves(p)), 16));
}
INLINE Lanes load(const bf16 *p) { return {{widen_bf16(p), widen_bf16(p + 8)}}; }
INLINE Lanes load(const f16 *p) { return {{_mm256_cvtph_ps(eight_halves(p)), _mm256_cvtph_ps(eight_halves(p + 8))}}; }
INLINE Vector widen_int8(__m128i eight) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)); }
INLINE Lanes load(const int8_t *p) {
    const __m128i codes = eight_halves(p);
    return {{widen_int8(codes), widen_int8(_mm_srli_si128(codes, 8))}};
}

#elif defined(__ARM_NEON) && defined(__aarch64__)

INLINE Lanes load(const bf16 *p) {
    Lanes a;
    for (int i = 0; i < 4; i++)
        a.v[i] = (Vector)vshlq_n_u32(vmovl_u16(vld1_u16(reinterpret_cast<const uint16_t *>(p) + 4 * i)), 16);
    return a;
}
INLINE Lanes load(const f16 *p) {
    Lanes a;
    for (int i = 0; i < 4; i++)
        a.v[i] = (Vector)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t *>(p) + 4 * i)));
    return a;
}
INLINE Lanes load(const int8_t *p) {
    const int8x16_t codes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_s8(vget_high_s8(codes));
    return {{(Vector)vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), (Vector)vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             (Vector)vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
             (Vector)vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}

#else

template <class T> INLINE Lanes load(const T *p) {
    float wide[16];
    for (int i = 0; i < 16; i++) wide[i] = to_float(p[i]);
    return load(static_cast<const float *>(wide));
}

#endif

#if defined(LANES_AVX2)

// Lanes i + 8, then i + 4 added to lane i: four lanes are left.
INLINE __m128 fold(Lanes a) {
#if defined(LANES_AVX512)
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v[0]), 1));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v[0]), high);
#else
    const __m256 half = _mm256_add_ps(a.v[0], a.v[1]);
#endif
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

INLINE float sum(Lanes a) {
    const __m128 quad = fold(a), pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

// The sums of four accumulators, by the same tree as `sum`.
INLINE void sum4(Lanes a, Lanes b, Lanes c, Lanes d, float *out) {
#if defined(LANES_AVX512)
    const __m512 ab =
        _mm512_add_ps(_mm512_shuffle_f32x4(a.v[0], b.v[0], 0x44), _mm512_shuffle_f32x4(a.v[0], b.v[0], 0xee));
    const __m512 cd =
        _mm512_add_ps(_mm512_shuffle_f32x4(c.v[0], d.v[0], 0x44), _mm512_shuffle_f32x4(c.v[0], d.v[0], 0xee));
    const __m512 quad = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 pair = _mm512_add_ps(quad, _mm512_permute_ps(quad, 0x4e));
    const __m512 one = _mm512_add_ps(pair, _mm512_permute_ps(pair, 0xb1));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
#else
    __m128 q0 = fold(a), q1 = fold(b), q2 = fold(c), q3 = fold(d);
    _MM_TRANSPOSE4_PS(q0, q1, q2, q3);
    _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(q0, q2), _mm_add_ps(q1, q3)));
#endif
}

#else

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

#endif
