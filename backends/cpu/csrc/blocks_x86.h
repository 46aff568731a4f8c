// The formats of blocks.h, sixteen values at a time, for AVX2 and AVX-512: bit for bit the same values.
// Levels (the integers of a format) are made as bytes, then widened and scaled. With AVX-512 a four- or five-bit format
// needs no arithmetic per value: the possible values of a block are computed once and looked up by a permutation.
#pragma once
#include "blocks.h"
#include "lanes.h"

#ifdef LANES_AVX2

INLINE __m128i bytes16(const uint8_t *p) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p)); }

// Signed bytes as numbers.
INLINE Lanes numbers(__m128i levels) {
#ifdef LANES_AVX512
    return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(levels))}};
#else
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(levels)),
             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(levels, levels)))}};
#endif
}

INLINE Lanes scaled(__m128i levels, Lanes factor) { return multiply(numbers(levels), factor); }

INLINE __m128i low_nibbles(__m128i packed) { return _mm_and_si128(packed, _mm_set1_epi8(15)); }
INLINE __m128i high_nibbles(__m128i packed) { return low_nibbles(_mm_srli_epi16(packed, 4)); }

// The bytes whose `bit` is set become `level`, the others 0.
INLINE __m128i where_bit(__m128i bytes, int bit, int level) {
    const __m128i mask = _mm_set1_epi8(static_cast<char>(1 << bit));
    return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(bytes, mask), mask), _mm_set1_epi8(static_cast<char>(level)));
}

// Two float16 that are neighbours in memory.
struct Pair {
    Lanes d, m;
};

INLINE Pair half_pair(const uint8_t *p) {
    int32_t bits;
    std::memcpy(&bits, p, 4);
    const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(bits));
    Pair pair;
#pragma GCC unroll 2
    for (int i = 0; i < VECTORS; i++) {
#ifdef LANES_AVX512
        pair.d.v[i] = _mm512_broadcastss_ps(both);
        pair.m.v[i] = _mm512_broadcastss_ps(_mm_movehdup_ps(both));
#else
        pair.d.v[i] = _mm256_broadcastss_ps(both);
        pair.m.v[i] = _mm256_broadcastss_ps(_mm_movehdup_ps(both));
#endif
    }
    return pair;
}

// Sixteen factors of a block; `pick` spreads one of them.
#ifdef LANES_AVX512
struct Factors {
    __m512 v;
};
INLINE Factors factors(Lanes a) { return {a.v[0]}; }
INLINE Lanes pick(const Factors &f, int g) { return {{_mm512_permutexvar_ps(_mm512_set1_epi32(g), f.v)}}; }
#else
struct Factors {
    float v[16];
};
INLINE Factors factors(Lanes a) {
    Factors f;
    store(f.v, a);
    return f;
}
INLINE Lanes pick(const Factors &f, int g) { return broadcast(f.v[g]); }
#endif

// What four bits stand for in a block: factor * level, or factor * level + offset.
constexpr int8_t PLAIN_LEVELS[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr int8_t CENTRED_LEVELS[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr int8_t LOW_LEVELS[16] = {-16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1};
constexpr int8_t UPPER_LEVELS[16] = {16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

#ifdef LANES_AVX512
struct Table {
    Lanes values;
};
INLINE Table table_of(const int8_t *levels, Lanes factor) {
    return {scaled(bytes16(reinterpret_cast<const uint8_t *>(levels)), factor)};
}
INLINE Table table_of(const int8_t *levels, Lanes factor, Lanes offset) {
    return {fma(numbers(bytes16(reinterpret_cast<const uint8_t *>(levels))), factor, offset)};
}
// Only the low four bits of an index count.
INLINE void look_up(__m128i packed, const Table &table, Lanes &low, Lanes &high) {
    const __m512i index = _mm512_cvtepu8_epi32(packed);
    low.v[0] = _mm512_permutexvar_ps(index, table.values.v[0]);
    high.v[0] = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 4), table.values.v[0]);
}
#else
struct Table {
    __m128i levels;
    Lanes factor, offset;
    bool affine;
};
INLINE Table table_of(const int8_t *levels, Lanes factor) {
    return {bytes16(reinterpret_cast<const uint8_t *>(levels)), factor, factor, false};
}
INLINE Table table_of(const int8_t *levels, Lanes factor, Lanes offset) {
    return {bytes16(reinterpret_cast<const uint8_t *>(levels)), factor, offset, true};
}
INLINE Lanes number_of(__m128i level, const Table &table) {
    return table.affine ? fma(numbers(level), table.factor, table.offset) : scaled(level, table.factor);
}
INLINE void look_up(__m128i packed, const Table &table, Lanes &low, Lanes &high) {
    low = number_of(_mm_shuffle_epi8(table.levels, low_nibbles(packed)), table);
    high = number_of(_mm_shuffle_epi8(table.levels, high_nibbles(packed)), table);
}
#endif

// 32 values of sixteen bytes: 0-15 in the low nibbles, 16-31 in the high ones.
template <class Sink> INLINE void four_bits(const uint8_t *q, const Table &table, int first, Sink sink) {
    Lanes low, high;
    look_up(bytes16(q), table, low, high);
    sink(first, low);
    sink(first + 1, high);
}

template <class Sink> INLINE void decode(Q4_0, const uint8_t *p, Sink sink) {
    four_bits(p + 2, table_of(CENTRED_LEVELS, broadcast(half_at(p))), 0, sink);
}

template <class Sink> INLINE void decode(Q4_1, const uint8_t *p, Sink sink) {
    const Pair pair = half_pair(p);
    four_bits(p + 4, table_of(PLAIN_LEVELS, pair.d, pair.m), 0, sink);
}

template <class Sink> INLINE void decode(IQ4_NL, const uint8_t *p, Sink sink) {
    four_bits(p + 2, table_of(IQ4_LEVELS, broadcast(half_at(p))), 0, sink);
}

template <class Sink> INLINE void decode(MXFP4, const uint8_t *p, Sink sink) {
    four_bits(p + 1, table_of(MXFP4_LEVELS, broadcast(mxfp4_factor(p[0]))), 0, sink);
}

template <class Sink> INLINE void decode(IQ4_XS, const uint8_t *p, Sink sink) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++)
        four_bits(p + 8 + 16 * g, table_of(IQ4_LEVELS, broadcast(IQ4_XS::factor(p, g))), 2 * g, sink);
}

// 32 values of sixteen bytes as in `four_bits`, with bit i of the word at `high` as fifth bit of value i.
#ifdef LANES_AVX512
struct Levels5 {
    Table lower, upper; // for a fifth bit of 0 and of 1
};
INLINE Lanes look_up5(__m512i index, __mmask16 high, const Levels5 &levels) {
    const __m512 lower = _mm512_permutexvar_ps(index, levels.lower.values.v[0]);
    return {{_mm512_mask_permutexvar_ps(lower, high, index, levels.upper.values.v[0])}};
}
template <class Sink> INLINE void five_bits(const uint8_t *q, const uint8_t *high, const Levels5 &levels, Sink sink) {
    uint32_t bits;
    std::memcpy(&bits, high, 4);
    const __m512i index = _mm512_cvtepu8_epi32(bytes16(q));
    sink(0, look_up5(index, static_cast<__mmask16>(bits), levels));
    sink(1, look_up5(_mm512_srli_epi32(index, 4), static_cast<__mmask16>(bits >> 16), levels));
}
INLINE Levels5 centred5(Lanes d) { return {table_of(LOW_LEVELS, d), table_of(PLAIN_LEVELS, d)}; }
INLINE Levels5 affine5(Lanes d, Lanes m) { return {table_of(PLAIN_LEVELS, d, m), table_of(UPPER_LEVELS, d, m)}; }
#else
struct Levels5 {
    Table scale; // only factor and offset count
    int centre;
};
INLINE __m128i fifth_bits(const uint8_t *high, int half) {
    int32_t bits;
    std::memcpy(&bits, high, 4);
    const __m128i order = _mm_add_epi8(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                       _mm_set1_epi8(static_cast<char>(2 * half)));
    const __m128i each = _mm_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
    const __m128i spread = _mm_and_si128(_mm_shuffle_epi8(_mm_cvtsi32_si128(bits), order), each);
    return _mm_and_si128(_mm_cmpeq_epi8(spread, each), _mm_set1_epi8(16));
}
template <class Sink> INLINE void five_bits(const uint8_t *q, const uint8_t *high, const Levels5 &levels, Sink sink) {
    const __m128i packed = bytes16(q), centre = _mm_set1_epi8(static_cast<char>(levels.centre));
    const __m128i low = _mm_or_si128(low_nibbles(packed), fifth_bits(high, 0));
    const __m128i top = _mm_or_si128(high_nibbles(packed), fifth_bits(high, 1));
    sink(0, number_of(_mm_sub_epi8(low, centre), levels.scale));
    sink(1, number_of(_mm_sub_epi8(top, centre), levels.scale));
}
INLINE Levels5 centred5(Lanes d) { return {table_of(PLAIN_LEVELS, d), 16}; }
INLINE Levels5 affine5(Lanes d, Lanes m) { return {table_of(PLAIN_LEVELS, d, m), 0}; }
#endif

template <class Sink> INLINE void decode(Q5_0, const uint8_t *p, Sink sink) {
    five_bits(p + 6, p + 2, centred5(broadcast(half_at(p))), sink);
}

template <class Sink> INLINE void decode(Q5_1, const uint8_t *p, Sink sink) {
    const Pair pair = half_pair(p);
    five_bits(p + 8, p + 4, affine5(pair.d, pair.m), sink);
}

template <class Sink> INLINE void decode(Q8_0, const uint8_t *p, Sink sink) {
    const Lanes d = broadcast(half_at(p));
    sink(0, scaled(bytes16(p + 2), d));
    sink(1, scaled(bytes16(p + 18), d));
}

// d times the scales of the eight groups, then minus dmin times their minima (Q4_K, Q5_K).
INLINE Factors scales_and_minima(const uint8_t *p) {
    uint32_t first, second, third;
    std::memcpy(&first, p + 4, 4);
    std::memcpy(&second, p + 8, 4);
    std::memcpy(&third, p + 12, 4);
    const uint32_t scales0 = first & 0x3f3f3f3fu, minima0 = second & 0x3f3f3f3fu;
    const uint32_t scales1 = (third & 0x0f0f0f0fu) | ((first >> 2) & 0x30303030u);
    const uint32_t minima1 = ((third >> 4) & 0x0f0f0f0fu) | ((second >> 2) & 0x30303030u);
    const __m128i packed = _mm_setr_epi32(static_cast<int>(scales0), static_cast<int>(scales1),
                                          static_cast<int>(minima0), static_cast<int>(minima1));
    const Pair pair = half_pair(p);
#ifdef LANES_AVX512
    const Lanes factor{{_mm512_mask_sub_ps(pair.d.v[0], 0xff00, _mm512_setzero_ps(), pair.m.v[0])}};
#else
    const Lanes factor{{pair.d.v[0], _mm256_sub_ps(_mm256_setzero_ps(), pair.m.v[0])}};
#endif
    return factors(scaled(packed, factor));
}

template <class Sink> INLINE void decode(Q4_K, const uint8_t *p, Sink sink) {
    const Factors all = scales_and_minima(p);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const Table low = table_of(PLAIN_LEVELS, pick(all, 2 * j), pick(all, 8 + 2 * j));
        const Table high = table_of(PLAIN_LEVELS, pick(all, 2 * j + 1), pick(all, 9 + 2 * j));
        Lanes v[4], unused;
        const __m128i first = bytes16(p + 16 + 32 * j), second = bytes16(p + 32 + 32 * j);
        look_up(first, low, v[0], unused);
        look_up(second, low, v[1], unused);
        look_up(first, high, unused, v[2]);
        look_up(second, high, unused, v[3]);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sink(4 * j + i, v[i]);
    }
}

template <class Sink> INLINE void decode(Q5_K, const uint8_t *p, Sink sink) {
    const Factors all = scales_and_minima(p);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        const Lanes scale = pick(all, g), minimum = pick(all, 8 + g);
#ifdef LANES_AVX512
        const Levels5 levels = affine5(scale, minimum);
#endif
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const __m128i q = bytes16(p + 48 + 32 * (g / 2) + 16 * half), high = bytes16(p + 16 + 16 * half);
#ifdef LANES_AVX512
            const __mmask16 bits = _mm_test_epi8_mask(high, _mm_set1_epi8(static_cast<char>(1 << g)));
            sink(2 * g + half, look_up5(_mm512_srli_epi32(_mm512_cvtepu8_epi32(q), 4 * (g % 2)), bits, levels));
#else
            const __m128i level = _mm_or_si128(g % 2 ? high_nibbles(q) : low_nibbles(q), where_bit(high, g, 16));
            sink(2 * g + half, fma(numbers(level), scale, minimum));
#endif
        }
    }
}

template <class Sink> INLINE void decode(Q6_K, const uint8_t *p, Sink sink) {
    const Factors all = factors(scaled(bytes16(p + 192), broadcast(half_at(p + 208))));
    const __m128i top = _mm_set1_epi8(0x30), centre = _mm_set1_epi8(32);
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) {
        const int run = g % 8 / 2; // of four runs of 32 values in each half
        const __m128i q = bytes16(p + 64 * (g / 8) + 32 * (run % 2) + 16 * (g % 2));
        const __m128i high = bytes16(p + 128 + 32 * (g / 8) + 16 * (g % 2));
        const __m128i moved = run < 2 ? _mm_slli_epi16(high, 4 - 2 * run) : _mm_srli_epi16(high, 2 * run - 4);
        const __m128i low = run < 2 ? low_nibbles(q) : high_nibbles(q);
        sink(g, scaled(_mm_sub_epi8(_mm_or_si128(low, _mm_and_si128(moved, top)), centre), pick(all, g)));
    }
}

// Two-bit fields of group g of Q2_K and Q3_K, whose 64 bytes of fields are at q.
INLINE __m128i two_bits(const uint8_t *q, int g) {
    const __m128i packed = bytes16(q + 32 * (g / 8) + 16 * (g % 2));
    return _mm_and_si128(_mm_srli_epi16(packed, 2 * (g % 8 / 2)), _mm_set1_epi8(3));
}

template <class Sink> INLINE void decode(Q2_K, const uint8_t *p, Sink sink) {
    const __m128i packed = bytes16(p);
    const Pair pair = half_pair(p + 80);
    const Factors scales = factors(scaled(low_nibbles(packed), pair.d));
    const Factors minima = factors(scaled(_mm_sub_epi8(_mm_setzero_si128(), high_nibbles(packed)), pair.m));
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) sink(g, fma(numbers(two_bits(p + 16, g)), pick(scales, g), pick(minima, g)));
}

template <class Sink> INLINE void decode(Q3_K, const uint8_t *p, Sink sink) {
    uint32_t tops;
    std::memcpy(&tops, p + 104, 4);
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p + 96));
    const __m128i low = low_nibbles(_mm_unpacklo_epi64(packed, _mm_srli_epi16(packed, 4)));
    const __m128i moved = _mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(tops)), _mm_setr_epi32(0, 2, 4, 6));
    const __m128i top = _mm_slli_epi16(_mm_and_si128(moved, _mm_set1_epi8(3)), 4);
    const __m128i scale = _mm_sub_epi8(_mm_or_si128(low, top), _mm_set1_epi8(32)), four = _mm_set1_epi8(4);
    const Factors all = factors(scaled(scale, broadcast(half_at(p + 108))));
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++) {
        const __m128i present = where_bit(bytes16(p + 16 * (g % 2)), g / 2, 4);
        const __m128i level = _mm_sub_epi8(_mm_add_epi8(two_bits(p + 32, g), present), four);
        sink(g, scaled(level, pick(all, g)));
    }
}

#endif
