// The formats of blocks.h, sixteen values at a time, as AVX-512: bit for bit the same values.
// A four-bit format needs no arithmetic per value: the sixteen possible values of a block are computed once and
// looked up by one permutation, which reads only the low four bits of each index.
#pragma once
#include "blocks.h"
#include "lanes.h"

#ifdef LANES_AVX512

INLINE __m512 levels_from(float first) {
    return _mm512_add_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(first));
}

INLINE __m512 levels_of(const int8_t *table) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table))));
}

INLINE __m128i bytes16(const uint8_t *p) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p)); }

INLINE __m512i wide16(const uint8_t *p) { return _mm512_cvtepu8_epi32(bytes16(p)); }

// d in every lane.
INLINE __m512 half_lanes(const uint8_t *p) {
    int16_t h;
    std::memcpy(&h, p, 2);
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

// d and m, neighbours in memory, each in every lane.
INLINE void half_pair(const uint8_t *p, __m512 &d, __m512 &m) {
    int32_t h;
    std::memcpy(&h, p, 4);
    const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(h));
    d = _mm512_broadcastss_ps(both);
    m = _mm512_broadcastss_ps(_mm_movehdup_ps(both));
}

// Lane g of `factors` in every lane.
INLINE __m512 lane(__m512 factors, int g) { return _mm512_permutexvar_ps(_mm512_set1_epi32(g), factors); }

// Values 0-15 from the low nibbles, 16-31 from the high nibbles of 16 bytes.
template <class Sink> INLINE void look_up(const uint8_t *q, __m512 table, int first, Sink sink) {
    const __m512i index = wide16(q);
    sink(first, Lanes{_mm512_permutexvar_ps(index, table)});
    sink(first + 1, Lanes{_mm512_permutexvar_ps(_mm512_srli_epi32(index, 4), table)});
}

INLINE __m512 look_up5(__m512i index, __mmask16 high, __m512 low_table, __m512 high_table) {
    return _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(index, low_table), high, index, high_table);
}

template <class Sink> INLINE void decode(Q4_0, const uint8_t *p, Sink sink) {
    look_up(p + 2, _mm512_mul_ps(half_lanes(p), levels_from(-8)), 0, sink);
}

template <class Sink> INLINE void decode(Q4_1, const uint8_t *p, Sink sink) {
    __m512 d, m;
    half_pair(p, d, m);
    look_up(p + 4, _mm512_fmadd_ps(d, levels_from(0), m), 0, sink);
}

template <class Sink> INLINE void decode(IQ4_NL, const uint8_t *p, Sink sink) {
    look_up(p + 2, _mm512_mul_ps(half_lanes(p), levels_of(IQ4_LEVELS)), 0, sink);
}

template <class Sink> INLINE void decode(MXFP4, const uint8_t *p, Sink sink) {
    look_up(p + 1, _mm512_mul_ps(_mm512_set1_ps(mxfp4_factor(p[0])), levels_of(MXFP4_LEVELS)), 0, sink);
}

template <class Sink> INLINE void decode(IQ4_XS, const uint8_t *p, Sink sink) {
    const __m512 table = levels_of(IQ4_LEVELS);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++)
        look_up(p + 8 + 16 * g, _mm512_mul_ps(_mm512_set1_ps(IQ4_XS::factor(p, g)), table), 2 * g, sink);
}

template <class Sink> INLINE void decode5(const uint8_t *q, uint32_t high, __m512 low_table, __m512 high_table, Sink sink) {
    const __m512i index = wide16(q);
    sink(0, Lanes{look_up5(index, static_cast<__mmask16>(high), low_table, high_table)});
    sink(1, Lanes{look_up5(_mm512_srli_epi32(index, 4), static_cast<__mmask16>(high >> 16), low_table, high_table)});
}

template <class Sink> INLINE void decode(Q5_0, const uint8_t *p, Sink sink) {
    const __m512 d = half_lanes(p);
    uint32_t high;
    std::memcpy(&high, p + 2, 4);
    decode5(p + 6, high, _mm512_mul_ps(d, levels_from(-16)), _mm512_mul_ps(d, levels_from(0)), sink);
}

template <class Sink> INLINE void decode(Q5_1, const uint8_t *p, Sink sink) {
    __m512 d, m;
    half_pair(p, d, m);
    uint32_t high;
    std::memcpy(&high, p + 4, 4);
    decode5(p + 8, high, _mm512_fmadd_ps(d, levels_from(0), m), _mm512_fmadd_ps(d, levels_from(16), m), sink);
}

template <class Sink> INLINE void decode(Q8_0, const uint8_t *p, Sink sink) {
    const __m512 d = half_lanes(p);
    sink(0, Lanes{_mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes16(p + 2))))});
    sink(1, Lanes{_mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes16(p + 18))))});
}

// Lanes 0-7: d times the scales of the eight groups; lanes 8-15: dmin times their minima (Q4_K, Q5_K).
INLINE __m512 scales_and_minima(const uint8_t *p) {
    uint32_t first, second, third;
    std::memcpy(&first, p + 4, 4);
    std::memcpy(&second, p + 8, 4);
    std::memcpy(&third, p + 12, 4);
    const uint32_t scales0 = first & 0x3f3f3f3fu, minima0 = second & 0x3f3f3f3fu;
    const uint32_t scales1 = (third & 0x0f0f0f0fu) | ((first >> 2) & 0x30303030u);
    const uint32_t minima1 = ((third >> 4) & 0x0f0f0f0fu) | ((second >> 2) & 0x30303030u);
    const __m128i packed = _mm_setr_epi32(static_cast<int>(scales0), static_cast<int>(scales1),
                                          static_cast<int>(minima0), static_cast<int>(minima1));
    __m512 d, dmin;
    half_pair(p, d, dmin);
    return _mm512_mul_ps(_mm512_mask_blend_ps(0xff00, d, dmin), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(packed)));
}

template <class Sink> INLINE void decode(Q4_K, const uint8_t *p, Sink sink) {
    const __m512 factors = scales_and_minima(p), levels = levels_from(0);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512 low = _mm512_fmsub_ps(lane(factors, 2 * j), levels, lane(factors, 8 + 2 * j));
        const __m512 high = _mm512_fmsub_ps(lane(factors, 2 * j + 1), levels, lane(factors, 9 + 2 * j));
        const __m512i first = wide16(p + 16 + 32 * j), second = wide16(p + 32 + 32 * j);
        sink(4 * j, Lanes{_mm512_permutexvar_ps(first, low)});
        sink(4 * j + 1, Lanes{_mm512_permutexvar_ps(second, low)});
        sink(4 * j + 2, Lanes{_mm512_permutexvar_ps(_mm512_srli_epi32(first, 4), high)});
        sink(4 * j + 3, Lanes{_mm512_permutexvar_ps(_mm512_srli_epi32(second, 4), high)});
    }
}

template <class Sink> INLINE void decode(Q5_K, const uint8_t *p, Sink sink) {
    const __m512 factors = scales_and_minima(p), levels = levels_from(0), upper = levels_from(16);
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p + 16));
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        const __m512 scale = lane(factors, g), minimum = lane(factors, 8 + g);
        const __m512 low_table = _mm512_fmsub_ps(scale, levels, minimum);
        const __m512 high_table = _mm512_fmsub_ps(scale, upper, minimum);
        const __mmask32 bits = _mm256_test_epi8_mask(high, _mm256_set1_epi8(static_cast<char>(1 << g)));
        const int shift = 4 * (g % 2);
        const uint8_t *q = p + 48 + 32 * (g / 2);
        const __m512i first = _mm512_srli_epi32(wide16(q), shift), second = _mm512_srli_epi32(wide16(q + 16), shift);
        sink(2 * g, Lanes{look_up5(first, static_cast<__mmask16>(bits), low_table, high_table)});
        sink(2 * g + 1, Lanes{look_up5(second, static_cast<__mmask16>(bits >> 16), low_table, high_table)});
    }
}

INLINE __m512 scaled(__m128i signed_levels, __m512 factor) {
    return _mm512_mul_ps(factor, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(signed_levels)));
}

template <class Sink> INLINE void decode(Q6_K, const uint8_t *p, Sink sink) {
    const __m512 factors = scaled(bytes16(p + 192), half_lanes(p + 208));
    const __m256i nibble = _mm256_set1_epi8(15), top = _mm256_set1_epi8(0x30), offset = _mm256_set1_epi8(32);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const __m256i *q = reinterpret_cast<const __m256i *>(p + 64 * half);
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p + 128 + 32 * half));
#pragma GCC unroll 4
        for (int run = 0; run < 4; run++) {
            const __m256i packed = _mm256_loadu_si256(q + run % 2);
            const __m256i low = _mm256_and_si256(run < 2 ? packed : _mm256_srli_epi16(packed, 4), nibble);
            const __m256i moved = run < 2 ? _mm256_slli_epi16(high, 4 - 2 * run) : _mm256_srli_epi16(high, 2 * run - 4);
            const __m256i level = _mm256_sub_epi8(_mm256_or_si256(low, _mm256_and_si256(moved, top)), offset);
            const int g = 8 * half + 2 * run;
            sink(g, Lanes{scaled(_mm256_castsi256_si128(level), lane(factors, g))});
            sink(g + 1, Lanes{scaled(_mm256_extracti128_si256(level, 1), lane(factors, g + 1))});
        }
    }
}

template <class Sink> INLINE void decode(Q2_K, const uint8_t *p, Sink sink) {
    const __m128i packed = bytes16(p), nibble = _mm_set1_epi8(15), pair = _mm_set1_epi8(3);
    const __m512 scales = scaled(_mm_and_si128(packed, nibble), half_lanes(p + 80));
    const __m512 minima = scaled(_mm_and_si128(_mm_srli_epi16(packed, 4), nibble), half_lanes(p + 82));
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) {
        const __m128i moved = _mm_srli_epi16(bytes16(p + 16 + 32 * (g / 8) + 16 * (g % 2)), 2 * (g % 8 / 2));
        const __m512 level = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_and_si128(moved, pair)));
        sink(g, Lanes{_mm512_fmsub_ps(lane(scales, g), level, lane(minima, g))});
    }
}

template <class Sink> INLINE void decode(Q3_K, const uint8_t *p, Sink sink) {
    const __m128i pair = _mm_set1_epi8(3), four = _mm_set1_epi8(4), nibble = _mm_set1_epi8(15);
    uint32_t tops;
    std::memcpy(&tops, p + 104, 4);
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p + 96));
    const __m128i low = _mm_and_si128(_mm_unpacklo_epi64(packed, _mm_srli_epi16(packed, 4)), nibble);
    const __m128i shifted = _mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(tops)), _mm_setr_epi32(0, 2, 4, 6));
    const __m128i top = _mm_slli_epi16(_mm_and_si128(shifted, pair), 4);
    const __m512 factors = scaled(_mm_sub_epi8(_mm_or_si128(low, top), _mm_set1_epi8(32)), half_lanes(p + 108));
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) {
        const __m128i moved = _mm_srli_epi16(bytes16(p + 32 + 32 * (g / 8) + 16 * (g % 2)), 2 * (g % 8 / 2));
        const __m128i high = bytes16(p + 16 * (g % 2)), bit = _mm_set1_epi8(static_cast<char>(1 << (g / 2)));
        const __m128i missing = _mm_andnot_si128(_mm_cmpeq_epi8(_mm_and_si128(high, bit), bit), four);
        sink(g, Lanes{scaled(_mm_sub_epi8(_mm_and_si128(moved, pair), missing), lane(factors, g))});
    }
}

#endif
