// How the packed rows of files become tiles: for each weight scheme, where the codes and factors of a row are.
// Codes are handled as eight words of four neighbours, k 0 - 3 in the first; layouts: blocks.h and core/schemes.
#pragma once
#include "tiles.h"

namespace tile_sources {

constexpr uint32_t NIBBLES = 0x0f0f0f0fu, BITS_0 = 0x01010101u;

INLINE uint32_t word_at(const uint8_t *p) {
    uint32_t word;
    std::memcpy(&word, p, 4);
    return word;
}

// Sixteen bytes of nibbles: the low ones are k 0 - 15, the high ones k 16 - 31.
INLINE void nibbles(const uint8_t *p, uint32_t *w) {
    for (int j = 0; j < 4; j++) {
        w[j] = word_at(p + 4 * j) & NIBBLES;
        w[4 + j] = word_at(p + 4 * j) >> 4 & NIBBLES;
    }
}

// Adds a fifth bit to each code, bit k of the word at `p`.
INLINE void fifth_bits(const uint8_t *p, uint32_t *w) {
    const uint32_t bits = word_at(p);
    for (int j = 0; j < 8; j++) w[j] |= ((bits >> (4 * j) & 15) * 0x00204081u & BITS_0) << 4;
}

// What all sources say: the format of their tiles, values of a run that has factors of its own and its bytes, bytes in
// front of a row, and codes(p, g, w), the codes of block g of the run at `p`.
template <class F, int VALUES, int BYTES, int LEAD = 0> struct Of {
    typedef F Format;
    static constexpr int values = VALUES, bytes = BYTES, lead = LEAD;
    static void factors(const uint8_t *, int, int, uint8_t *) {}
    static void header(const uint8_t *, int, uint8_t *) {}
};

// A float16 factor in front of a run, and perhaps a minimum behind it.
template <class F, int BYTES> struct Halves : Of<F, 32, BYTES> {
    static void factors(const uint8_t *p, int, int row, uint8_t *to) {
        std::memcpy(to + 2 * row, p, 2);
        if (F::minimum) std::memcpy(to + 32 + 2 * row, p + 2, 2);
    }
};

struct FromQ4_0 : Halves<Plain<4, 8, false>, 18> {
    static void codes(const uint8_t *p, int, uint32_t *w) { nibbles(p + 2, w); }
};

struct FromQ4_1 : Halves<Plain<4, 0, true>, 20> {
    static void codes(const uint8_t *p, int, uint32_t *w) { nibbles(p + 4, w); }
};

struct FromQ5_0 : Halves<Plain<5, 16, false>, 22> {
    static void codes(const uint8_t *p, int, uint32_t *w) {
        nibbles(p + 6, w);
        fifth_bits(p + 2, w);
    }
};

struct FromQ5_1 : Halves<Plain<5, 0, true>, 24> {
    static void codes(const uint8_t *p, int, uint32_t *w) {
        nibbles(p + 8, w);
        fifth_bits(p + 4, w);
    }
};

struct FromQ8_0 : Halves<Plain<8, 128, false>, 34> {
    static void codes(const uint8_t *p, int, uint32_t *w) {
        for (int j = 0; j < 8; j++) w[j] = word_at(p + 2 + 4 * j) ^ 0x80808080u;
    }
};

struct FromIQ4_NL : Halves<Tabled<IQ4_LEVELS, f16>, 18> {
    static void codes(const uint8_t *p, int, uint32_t *w) { nibbles(p + 2, w); }
};

struct FromMXFP4 : Of<Tabled<MXFP4_LEVELS, bf16>, 32, 17> {
    static void codes(const uint8_t *p, int, uint32_t *w) { nibbles(p + 1, w); }
    static void factors(const uint8_t *p, int, int row, uint8_t *to) {
        const uint32_t factor = bits_of(mxfp4_factor(p[0])) >> 16; // a power of two: bfloat16 holds it
        to[2 * row] = static_cast<uint8_t>(factor);
        to[2 * row + 1] = static_cast<uint8_t>(factor >> 8);
    }
};

template <int BITS, int BYTES> struct FromNested : Of<Nested<BITS>, 256, BYTES> {
    static void factors(const uint8_t *p, int g, int row, uint8_t *to) {
        int scale, minimum;
        scale_and_minimum(p + 4, g, scale, minimum);
        to[row] = static_cast<uint8_t>(scale);
        to[16 + row] = static_cast<uint8_t>(minimum);
    }
    static void header(const uint8_t *p, int row, uint8_t *to) {
        std::memcpy(to + 2 * row, p, 2);
        std::memcpy(to + 32 + 2 * row, p + 2, 2);
    }
};

struct FromQ4_K : FromNested<4, 144> {
    static void codes(const uint8_t *p, int g, uint32_t *w) {
        for (int j = 0; j < 8; j++) w[j] = word_at(p + 16 + 32 * (g / 2) + 4 * j) >> (4 * (g % 2)) & NIBBLES;
    }
};

struct FromQ5_K : FromNested<5, 176> {
    static void codes(const uint8_t *p, int g, uint32_t *w) {
        for (int j = 0; j < 8; j++) {
            const uint32_t low = word_at(p + 48 + 32 * (g / 2) + 4 * j) >> (4 * (g % 2)) & NIBBLES;
            w[j] = low | (word_at(p + 16 + 4 * j) >> g & BITS_0) << 4;
        }
    }
};

struct FromQ6_K : Of<Sixteenths<6, 32>, 256, 210> {
    static void codes(const uint8_t *p, int g, uint32_t *w) {
        const int half = g / 4, run = g % 4; // of four runs of 32 values in each half
        const uint8_t *low = p + 64 * half + 32 * (run % 2), *high = p + 128 + 32 * half;
        for (int j = 0; j < 8; j++)
            w[j] = (word_at(low + 4 * j) >> (4 * (run / 2)) & NIBBLES) |
                   (word_at(high + 4 * j) >> (2 * run) & 3 * BITS_0) << 4;
    }
    static void factors(const uint8_t *p, int g, int row, uint8_t *to) {
        to[row] = p[192 + 2 * g];
        to[16 + row] = p[193 + 2 * g];
    }
    static void header(const uint8_t *p, int row, uint8_t *to) { std::memcpy(to + 2 * row, p + 208, 2); }
};

// Three bits in nibbles: a third more memory than the file, and no third way to read codes.
struct FromQ3_K : Of<Sixteenths<4, 4>, 256, 110> {
    static void codes(const uint8_t *p, int g, uint32_t *w) {
        const uint8_t *low = p + 32 + 32 * (g / 4), *high = p;
        for (int j = 0; j < 8; j++)
            w[j] = (word_at(low + 4 * j) >> (2 * (g % 4)) & 3 * BITS_0) | (word_at(high + 4 * j) >> g & BITS_0) << 2;
    }
    static void factors(const uint8_t *p, int g, int row, uint8_t *to) {
        to[row] = static_cast<uint8_t>(Q3_K::scale(p, 2 * g));
        to[16 + row] = static_cast<uint8_t>(Q3_K::scale(p, 2 * g + 1));
    }
    static void header(const uint8_t *p, int row, uint8_t *to) { std::memcpy(to + 2 * row, p + 108, 2); }
};

struct FromIQ4_XS : Of<TabledNested, 256, 136> {
    static void codes(const uint8_t *p, int g, uint32_t *w) { nibbles(p + 8 + 16 * g, w); }
    static void factors(const uint8_t *p, int g, int row, uint8_t *to) {
        to[row] = static_cast<uint8_t>(IQ4_XS::scale(p, g));
    }
    static void header(const uint8_t *p, int row, uint8_t *to) { std::memcpy(to + 2 * row, p, 2); }
};

struct FromInt8Row : Of<Rows8, 32, 32, 4> {
    static void codes(const uint8_t *p, int, uint32_t *w) {
        for (int j = 0; j < 8; j++) w[j] = word_at(p + 4 * j) ^ 0x80808080u;
    }
    static void header(const uint8_t *p, int row, uint8_t *to) { std::memcpy(to + 4 * row, p - 4, 4); }
};

// Groups of `GROUP` codes behind a scale of type T and an int16 zero point; tiles repeat the scale where they have to.
template <int BITS, int GROUP, class T, class F> struct FromGroup : Of<F, GROUP, 4 + GROUP * BITS / 8> {
    static void codes(const uint8_t *p, int g, uint32_t *w) {
        if (BITS == 4) return nibbles(p + 4 + 16 * g, w);
        for (int j = 0; j < 8; j++) w[j] = word_at(p + 4 + 32 * g + 4 * j);
    }
    static void header(const uint8_t *p, int row, uint8_t *to) {
        T given;
        int16_t zero;
        std::memcpy(&given, p, 2);
        std::memcpy(&zero, p + 2, 2);
        const float scale = to_float(given);
        zero = static_cast<int16_t>(zero - F::zero);
        std::memcpy(to + 4 * row, &scale, 4);
        std::memcpy(to + 64 + 2 * row, &zero, 2);
    }
};

template <int GROUP, class T> using FromInt4 = FromGroup<4, GROUP, T, Grouped<4, GROUP == 128 ? 4 : 1>>;
template <int GROUP, class T> using FromInt8 = FromGroup<8, GROUP, T, Grouped<8, 1>>;

} // namespace tile_sources

#define FOR_EACH_TILE_SOURCE(X)               \
    X(0, "q4_0", FromQ4_0)                    \
    X(1, "q4_1", FromQ4_1)                    \
    X(2, "q5_0", FromQ5_0)                    \
    X(3, "q5_1", FromQ5_1)                    \
    X(4, "q8_0", FromQ8_0)                    \
    X(5, "q4_k", FromQ4_K)                    \
    X(6, "q5_k", FromQ5_K)                    \
    X(7, "q6_k", FromQ6_K)                    \
    X(8, "q3_k", FromQ3_K)                    \
    X(9, "iq4_nl", FromIQ4_NL)                \
    X(10, "iq4_xs", FromIQ4_XS)               \
    X(11, "mxfp4", FromMXFP4)                 \
    X(12, "int8_row", FromInt8Row)            \
    X(13, "int4_g32", FromInt4<32, f16>)      \
    X(14, "int4_g64", FromInt4<64, f16>)      \
    X(15, "int4_g128", FromInt4<128, f16>)    \
    X(16, "int4_g32_bf16", FromInt4<32, bf16>)   \
    X(17, "int4_g64_bf16", FromInt4<64, bf16>)   \
    X(18, "int4_g128_bf16", FromInt4<128, bf16>) \
    X(19, "int8_g32", FromInt8<32, f16>)      \
    X(20, "int8_g64", FromInt8<64, f16>)      \
    X(21, "int8_g128", FromInt8<128, f16>)    \
    X(22, "int8_g32_bf16", FromInt8<32, bf16>)   \
    X(23, "int8_g64_bf16", FromInt8<64, bf16>)   \
    X(24, "int8_g128_bf16", FromInt8<128, bf16>)

// Calls `body` with a value of the source's type; false when the code is unknown.
template <class Body> static inline bool with_tile_source(int32_t code, Body body) {
    using namespace tile_sources;
    switch (code) {
#define CASE(number, name, ...) \
    case number: body(__VA_ARGS__{}); return true;
        FOR_EACH_TILE_SOURCE(CASE)
#undef CASE
    default: return false;
    }
}
