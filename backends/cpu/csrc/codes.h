// Sixty-four weight codes at a time, four neighbours along k for each of sixteen rows, and their products with four
// int8 activations: exact in int32, so that all machines agree. Codes of up to 6 bits are 0 .. 63; wide codes are
// stored as 0 .. 255 with zero at 128, and `dot<true>` sums (code - 128 + WIDE_ZERO) * activation.
#pragma once
#include "lanes.h"

// Loops over registers are unrolled; where the codes of a line are an array in memory, that would only bloat the code.
#if defined(LANES_AVX2)
#define UNROLL_2 _Pragma("GCC unroll 2")
#define UNROLL_4 _Pragma("GCC unroll 4")
#define UNROLL_8 _Pragma("GCC unroll 8")
#define UNROLL_16 _Pragma("GCC unroll 16")
#else
#define UNROLL_2
#define UNROLL_4
#define UNROLL_8
#define UNROLL_16
#endif

#if defined(LANES_AVX512)

typedef __m512i Codes;
typedef __m512i Ints;
INLINE Codes load_codes(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE void store_codes(uint8_t *p, Codes a) { _mm512_storeu_si512(p, a); }
INLINE Codes low_nibbles(Codes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
INLINE Codes high_nibbles(Codes a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
// Adds `bit` to the codes whose bit in the mask of 8 bytes is set.
INLINE Codes with_bit(Codes a, const uint8_t *mask, int bit) {
    uint64_t m;
    std::memcpy(&m, mask, 8);
    return _mm512_or_si512(a, _mm512_maskz_set1_epi8(m, static_cast<char>(bit)));
}
// What the sixteen bytes at `table` hold for codes of 0 .. 15.
INLINE Codes looked_up(Codes a, const uint8_t *table) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table))), a);
}
INLINE Ints ints(int32_t x) { return _mm512_set1_epi32(x); }
template <int BITS> INLINE Ints shift_left(Ints a) { return _mm512_slli_epi32(a, BITS); }
INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
INLINE Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
INLINE Lanes to_lanes(Ints a) { return {{_mm512_cvtepi32_ps(a)}}; }
#if defined(__AVX512VNNI__)
constexpr int WIDE_ZERO = 128;
template <bool WIDE> INLINE Ints dot(Ints sum, Codes w, int32_t four) {
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(four));
}
// Codes less their zero point, and products of such with activations plus 128: what that adds is the same for all tokens.
#define SIGNED_CODES 1
INLINE Codes less_zero(Codes w, int zero) { return _mm512_sub_epi8(w, _mm512_set1_epi8(static_cast<char>(zero))); }
// Keeps codes in a register: as operands in memory they would be read again for every token.
INLINE Codes kept(Codes w) {
    __asm__("" : "+v"(w));
    return w;
}
INLINE Ints dot_signed(Ints sum, Codes w, int32_t four) {
    return _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(four), w);
}
#else
constexpr int WIDE_ZERO = 0;
template <bool WIDE> INLINE Ints dot(Ints sum, Codes w, int32_t four) {
    __m512i a = _mm512_set1_epi32(four);
    if (WIDE) { // |w| times a with the sign of w, since pairs of u8 * i8 must fit in 16 bits
        w = _mm512_xor_si512(w, _mm512_set1_epi8(-128));
        a = _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(w), _mm512_setzero_si512(), a);
        w = _mm512_abs_epi8(w);
    }
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(w, a), _mm512_set1_epi16(1)));
}
#endif
INLINE Lanes load_levels(const uint8_t *p) {
    return {{_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))))}};
}
INLINE Lanes load_levels(const int8_t *p) {
    return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))))}};
}
INLINE Lanes load_levels(const int16_t *p) {
    return {{_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))))}};
}

#elif defined(LANES_AVX2)

struct Codes {
    __m256i v[2];
};
struct Ints {
    __m256i v[2];
};
#define BOTH _Pragma("GCC unroll 2") for (int h = 0; h < 2; h++)
INLINE Codes load_codes(const uint8_t *p) {
    Codes a;
    BOTH a.v[h] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p) + h);
    return a;
}
INLINE void store_codes(uint8_t *p, Codes a) {
    BOTH _mm256_storeu_si256(reinterpret_cast<__m256i *>(p) + h, a.v[h]);
}
INLINE Codes low_nibbles(Codes a) {
    BOTH a.v[h] = _mm256_and_si256(a.v[h], _mm256_set1_epi8(15));
    return a;
}
INLINE Codes high_nibbles(Codes a) {
    BOTH a.v[h] = _mm256_and_si256(_mm256_srli_epi16(a.v[h], 4), _mm256_set1_epi8(15));
    return a;
}
INLINE Codes with_bit(Codes a, const uint8_t *mask, int bit) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i select = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    BOTH {
        int32_t m;
        std::memcpy(&m, mask + 4 * h, 4);
        const __m256i bytes = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(m), spread), select);
        const __m256i set = _mm256_cmpeq_epi8(bytes, select);
        a.v[h] = _mm256_or_si256(a.v[h], _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(bit))));
    }
    return a;
}
INLINE Codes looked_up(Codes a, const uint8_t *table) {
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
    BOTH a.v[h] = _mm256_shuffle_epi8(t, a.v[h]);
    return a;
}
INLINE Ints ints(int32_t x) { return {{_mm256_set1_epi32(x), _mm256_set1_epi32(x)}}; }
template <int BITS> INLINE Ints shift_left(Ints a) {
    BOTH a.v[h] = _mm256_slli_epi32(a.v[h], BITS);
    return a;
}
INLINE Ints add(Ints a, Ints b) {
    BOTH a.v[h] = _mm256_add_epi32(a.v[h], b.v[h]);
    return a;
}
INLINE Ints subtract(Ints a, Ints b) {
    BOTH a.v[h] = _mm256_sub_epi32(a.v[h], b.v[h]);
    return a;
}
INLINE Lanes to_lanes(Ints a) { return {{_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])}}; }
constexpr int WIDE_ZERO = 0;
template <bool WIDE> INLINE Ints dot(Ints sum, Codes w, int32_t four) {
    const __m256i a = _mm256_set1_epi32(four);
    BOTH {
        __m256i product;
        if (WIDE) {
            const __m256i s = _mm256_xor_si256(w.v[h], _mm256_set1_epi8(-128));
            product = _mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(a, s));
        } else
            product = _mm256_maddubs_epi16(w.v[h], a);
        sum.v[h] = _mm256_add_epi32(sum.v[h], _mm256_madd_epi16(product, _mm256_set1_epi16(1)));
    }
    return sum;
}
INLINE __m128i eight_bytes(const void *p) { return _mm_loadl_epi64(static_cast<const __m128i *>(p)); }
INLINE Lanes load_levels(const uint8_t *p) {
    return {{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight_bytes(p))),
             _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight_bytes(p + 8)))}};
}
INLINE Lanes load_levels(const int8_t *p) {
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(p))),
             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(p + 8)))}};
}
INLINE Lanes load_levels(const int16_t *p) {
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(eight_halves(p))),
             _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(eight_halves(p + 8)))}};
}
#undef BOTH

#else

struct Codes {
    uint8_t v[64];
};
struct Ints {
    int32_t v[16];
};
INLINE Codes load_codes(const uint8_t *p) {
    Codes a;
    std::memcpy(a.v, p, 64);
    return a;
}
INLINE void store_codes(uint8_t *p, Codes a) { std::memcpy(p, a.v, 64); }
INLINE Codes low_nibbles(Codes a) {
    for (int i = 0; i < 64; i++) a.v[i] &= 15;
    return a;
}
INLINE Codes high_nibbles(Codes a) {
    for (int i = 0; i < 64; i++) a.v[i] >>= 4;
    return a;
}
INLINE Codes with_bit(Codes a, const uint8_t *mask, int bit) {
    for (int i = 0; i < 64; i++) a.v[i] |= static_cast<uint8_t>((mask[i / 8] >> (i % 8) & 1) * bit);
    return a;
}
INLINE Codes looked_up(Codes a, const uint8_t *table) {
    for (int i = 0; i < 64; i++) a.v[i] = table[a.v[i]];
    return a;
}
INLINE Ints ints(int32_t x) {
    Ints a;
    for (int l = 0; l < 16; l++) a.v[l] = x;
    return a;
}
template <int BITS> INLINE Ints shift_left(Ints a) {
    for (int l = 0; l < 16; l++) a.v[l] *= 1 << BITS;
    return a;
}
INLINE Ints add(Ints a, Ints b) {
    for (int l = 0; l < 16; l++) a.v[l] += b.v[l];
    return a;
}
INLINE Ints subtract(Ints a, Ints b) {
    for (int l = 0; l < 16; l++) a.v[l] -= b.v[l];
    return a;
}
INLINE Lanes to_lanes(Ints a) {
    float x[16];
    for (int l = 0; l < 16; l++) x[l] = static_cast<float>(a.v[l]);
    return load(static_cast<const float *>(x));
}
constexpr int WIDE_ZERO = 0;
template <bool WIDE> INLINE Ints dot(Ints sum, Codes w, int32_t four) {
#if defined(__ARM_FEATURE_DOTPROD)
    const int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(four));
    for (int q = 0; q < 4; q++) {
        uint8x16_t c = vld1q_u8(w.v + 16 * q);
        if (WIDE) c = veorq_u8(c, vdupq_n_u8(128));
        vst1q_s32(sum.v + 4 * q, vdotq_s32(vld1q_s32(sum.v + 4 * q), vreinterpretq_s8_u8(c), a));
    }
#else
    int8_t a[4];
    std::memcpy(a, &four, 4);
    for (int l = 0; l < 16; l++)
        for (int i = 0; i < 4; i++) sum.v[l] += (w.v[4 * l + i] - (WIDE ? 128 : 0)) * a[i];
#endif
    return sum;
}
template <class T> INLINE Lanes load_levels(const T *p) {
    float x[16];
    for (int l = 0; l < 16; l++) x[l] = static_cast<float>(p[l]);
    return load(static_cast<const float *>(x));
}

#endif
