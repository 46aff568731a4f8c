// Tiles as the float kernels read them: weights of floats in tiles of their own, and the values of any tile, sixteen
// rows side by side, k after k, in float32 as their scheme says them.
#pragma once
#include "tiles.h"
#include <type_traits>

constexpr int32_t FLOAT_FORMATS = 64; // the code of the first format of floats
constexpr int32_t PAIRED_FORMAT = 65;
constexpr int EIGHT = 8;              // values of k that a reader makes at a time

// One line per k: the values of sixteen rows.
template <class T> struct Single {
    typedef T value;
    static constexpr int bytes = BLOCK * TILE * static_cast<int>(sizeof(T)), shared = 0, header = 0;
};

// One line per two k: each row's two values next to each other, that of the lower k in the high half of 32 bits. The
// bfloat16 dot products of x86 add the product of the high halves first, so their order is ascending k.
struct Paired {
    typedef bf16 value;
    static constexpr int bytes = BLOCK * TILE * 2, shared = 0, header = 0;
};

#define FOR_EACH_FLOAT_FORMAT(X)   \
    X(64, "float32", Single<float>) \
    X(65, "bfloat16", Paired)       \
    X(66, "float16", Single<f16>)

// Calls `body` with a value of the format's type; false when the code is unknown.
template <class Body> static inline bool with_float_format(int32_t code, Body body) {
    switch (code) {
#define CASE(number, name, ...) \
    case number: body(__VA_ARGS__{}); return true;
        FOR_EACH_FLOAT_FORMAT(CASE)
#undef CASE
    default: return false;
    }
}

// Tiles of floats hold columns up to the next multiple of 32, zero beyond their number.
static inline int64_t whole_blocks(int64_t columns) { return (columns + BLOCK - 1) / BLOCK * BLOCK; }

// Behind tiles of bfloat16, a byte per tile row: whether all its values are zero or at least SMALLEST_EXACT.
// With such activations, no product or sum of the two lies below the least normal float32: every value is a multiple
// of 2^-63 then and every sum one of 2^-126. So units that flush subnormals give the bits of those that do not.
constexpr float SMALLEST_EXACT = 0x1p-56f;

// float_repack.cpp
int32_t float_format(const char *scheme);
int64_t float_tiles_bytes(int32_t format, int64_t rows, int64_t columns);
int64_t float_tile_step(int32_t format, int64_t columns);
void seal_float_tiles(int32_t format, int64_t rows, int64_t columns, uint8_t *tiles);
bool pack_float_tiles(int32_t format, const uint8_t *from, int64_t row_bytes, int64_t rows, int64_t columns,
                      uint8_t *to);
bool read_float_row(const Tiles &part, int64_t row, int32_t y_type, void *y);

// ------------------------------------------------------------------------------------------------ readers
// Reader<F>::factors(at, head) is read once per block; eight(at, factors, j, sink) calls sink(i, values of sixteen
// rows) for k = 8 j + i of the block, i = 0 .. 7.

// What four bits of a code stand for: the levels of a format's table, or the codes, less the zero point.
struct NibbleLevels {
    float values[16];
};
template <class F, class = void> struct NibbleLevelsOf {
    static constexpr bool table = false;
    static constexpr NibbleLevels make() {
        NibbleLevels t{};
        for (int i = 0; i < 16; i++) t.values[i] = static_cast<float>(i - F::zero);
        return t;
    }
};
template <class F> struct NibbleLevelsOf<F, std::void_t<decltype(F::table)>> {
    static constexpr bool table = true;
    static constexpr NibbleLevels make() {
        NibbleLevels t{};
        for (int i = 0; i < 16; i++) t.values[i] = static_cast<float>(F::table.codes[i] - F::zero);
        return t;
    }
};
template <class F> struct LevelsOf : NibbleLevelsOf<F> {
    alignas(64) static constexpr NibbleLevels levels = NibbleLevelsOf<F>::make();
};

// `nibble<F>(c, i)`: the level of the four bits that lie i bits up in the 32 bits of each row. `octet(c, i)`: byte i of
// them; `centred(prepared(c), i)`: the same, less 128.
#if defined(LANES_AVX512)
template <class F> INLINE Lanes nibble(Codes c, int i) { // a permutation looks at four bits of an index only
    const __m512 levels = _mm512_load_ps(LevelsOf<F>::levels.values);
    return {{_mm512_permutexvar_ps(_mm512_srli_epi32(c, static_cast<unsigned>(i)), levels)}};
}
INLINE Lanes octet(Codes c, int i) {
    const int low = static_cast<int>(0x80808000u) + i; // in a shuffle, 0x80 makes a zero
    return {{_mm512_cvtepi32_ps(_mm512_shuffle_epi8(c, _mm512_set4_epi32(low + 12, low + 8, low + 4, low)))}};
}
INLINE Codes prepared(Codes c) { return _mm512_xor_si512(c, _mm512_set1_epi8(-128)); }
INLINE Lanes centred(Codes c, int i) {
    const Codes top = i == 3 ? c : _mm512_slli_epi32(c, static_cast<unsigned>(24 - 8 * i));
    return {{_mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24))}};
}
#elif defined(LANES_AVX2)
INLINE Lanes field(Codes c, int i, int mask, int zero) {
    Lanes a;
UNROLL_2
    for (int h = 0; h < 2; h++) {
        const __m256i code = _mm256_and_si256(_mm256_srli_epi32(c.v[h], i), _mm256_set1_epi32(mask));
        a.v[h] = _mm256_cvtepi32_ps(zero ? _mm256_sub_epi32(code, _mm256_set1_epi32(zero)) : code);
    }
    return a;
}
template <class F> INLINE Lanes nibble(Codes c, int i) {
    if constexpr (!LevelsOf<F>::table) return field(c, i, 15, F::zero);
    Lanes a;
UNROLL_2
    for (int h = 0; h < 2; h++) {
        const float *levels = LevelsOf<F>::levels.values;
        const __m256 low = _mm256_load_ps(levels), high = _mm256_load_ps(levels + 8);
        const __m256i code = _mm256_srli_epi32(c.v[h], i); // a permutation looks at three bits, a blend at the sign
        const __m256 fourth = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));
        a.v[h] = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, code), _mm256_permutevar8x32_ps(high, code), fourth);
    }
    return a;
}
INLINE Lanes octet(Codes c, int i) { return field(c, 8 * i, 255, 0); }
INLINE Codes prepared(Codes c) { return c; }
INLINE Lanes centred(Codes c, int i) { return field(c, 8 * i, 255, 128); }
#else
template <class F> INLINE Lanes nibble(Codes c, int i) {
    float x[16];
    for (int l = 0; l < 16; l++) x[l] = LevelsOf<F>::levels.values[c.v[4 * l + i / 8] >> i % 8 & 15];
    return load(static_cast<const float *>(x));
}
INLINE Lanes octet(Codes c, int i) {
    float x[16];
    for (int l = 0; l < 16; l++) x[l] = static_cast<float>(c.v[4 * l + i]);
    return load(static_cast<const float *>(x));
}
INLINE Codes prepared(Codes c) { return c; }
INLINE Lanes centred(Codes c, int i) {
    float x[16];
    for (int l = 0; l < 16; l++) x[l] = static_cast<float>(c.v[4 * l + i] - 128);
    return load(static_cast<const float *>(x));
}
#endif

// Value = scale * (code - zero) + minimum, rounded once, since the product is exact wherever there is a minimum.
template <class F> struct Reader {
    struct Factors {
        Lanes scale[F::parts], offset[F::parts];
    };
    INLINE Factors factors(const uint8_t *at, const uint8_t *head) {
        const auto s = F::scales(at, head);
        Factors f;
UNROLL_2
        for (int p = 0; p < F::parts; p++) {
            f.scale[p] = s.scale[p];
            f.offset[p] = F::minimum ? s.minimum : multiply(s.scale[p], broadcast(-static_cast<float>(F::zero)));
        }
        return f;
    }
    template <class Sink> INLINE void eight(const uint8_t *at, const Factors &f, int j, Sink sink) {
        const int part = F::parts == 1 ? 0 : j * F::parts / 4;
        const Lanes scale = f.scale[part], offset = f.offset[part];
        const auto value = [&](Lanes level) __attribute__((always_inline)) {
            return F::minimum ? fma(level, scale, offset) : multiply(level, scale);
        };
        if constexpr (F::bits == 4) {
            const Codes line = load_codes(at + 64 * j);
UNROLL_8
            for (int i = 0; i < EIGHT; i++) sink(i, value(nibble<F>(line, i < 4 ? 8 * i : 8 * i - 28)));
        } else if constexpr (F::bits == 8) {
            static_assert(F::zero == 128, "bytes have their zero in the middle");
            const Codes codes[2] = {prepared(load_codes(at + 128 * j)), prepared(load_codes(at + 128 * j + 64))};
UNROLL_8
            for (int i = 0; i < EIGHT; i++) sink(i, value(centred(codes[i / 4], i % 4)));
        } else {
            Codes codes[2];
            eight_codes(at, j, codes);
            // the zero point is within the offset: exact, since scales of these formats have few bits
UNROLL_8
            for (int i = 0; i < EIGHT; i++) sink(i, fma(octet(codes[i / 4], i % 4), scale, offset));
        }
    }

  private:
    INLINE void eight_codes(const uint8_t *p, int j, Codes *out) {
        const Codes line = load_codes(p + 64 * j);
        out[0] = low_nibbles(line);
        out[1] = high_nibbles(line);
UNROLL_2
        for (int h = 0; h < 2; h++) {
            out[h] = with_bit(out[h], p + 256 + 16 * j + 8 * h, 16);
            if (F::bits >= 6) out[h] = with_bit(out[h], p + 320 + 16 * j + 8 * h, 32);
        }
    }
};

template <class T> struct Reader<Single<T>> {
    struct Factors {};
    INLINE Factors factors(const uint8_t *, const uint8_t *) { return {}; }
    template <class Sink> INLINE void eight(const uint8_t *at, const Factors &, int j, Sink sink) {
        const T *p = reinterpret_cast<const T *>(at) + TILE * EIGHT * j;
UNROLL_8
        for (int i = 0; i < EIGHT; i++) sink(i, load(p + TILE * i));
    }
};

// The two values of each row of a line: first that in the high halves.
#if defined(LANES_AVX512)
INLINE void halves_of(const uint8_t *p, Lanes *out) {
    const __m512i line = _mm512_loadu_si512(p);
    out[0] = {{_mm512_castsi512_ps(_mm512_and_si512(line, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))}};
    out[1] = {{_mm512_castsi512_ps(_mm512_slli_epi32(line, 16))}};
}
#elif defined(LANES_AVX2)
INLINE void halves_of(const uint8_t *p, Lanes *out) {
    for (int h = 0; h < 2; h++) {
        const __m256i line = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p) + h);
        const __m256i high = _mm256_and_si256(line, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
        out[0].v[h] = _mm256_castsi256_ps(high);
        out[1].v[h] = _mm256_castsi256_ps(_mm256_slli_epi32(line, 16));
    }
}
#else
INLINE void halves_of(const uint8_t *p, Lanes *out) {
    uint32_t line[16];
    float x[2][16];
    std::memcpy(line, p, sizeof line);
    for (int l = 0; l < 16; l++) {
        x[0][l] = float_of(line[l] & 0xffff0000u);
        x[1][l] = float_of(line[l] << 16);
    }
    for (int h = 0; h < 2; h++) out[h] = load(static_cast<const float *>(x[h]));
}
#endif

template <> struct Reader<Paired> {
    struct Factors {};
    INLINE Factors factors(const uint8_t *, const uint8_t *) { return {}; }
    template <class Sink> INLINE void eight(const uint8_t *at, const Factors &, int j, Sink sink) {
UNROLL_4
        for (int i = 0; i < EIGHT / 2; i++) {
            Lanes two[2];
            halves_of(at + 64 * (4 * j + i), two);
            sink(2 * i, two[0]);
            sink(2 * i + 1, two[1]);
        }
    }
};
