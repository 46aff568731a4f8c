// Weights as the integer kernels like them: tiles of sixteen rows by 32 values of k, one behind the other along k.
// A line of 64 bytes holds sixteen rows times eight values: low nibbles k 0 - 3, high nibbles k 4 - 7, each row's four
// next to each other. Further bits of a code follow as masks, then the scales of the sixteen rows.
#pragma once
#include "blocks.h"
#include "codes.h"

constexpr int TILE = 16, BLOCK = 32; // rows of a tile; values of k that share a scale of the activations

// Scales of a tile: value = scale[s] * (code - zero) + minimum for the s-th part of the block.
template <int PARTS> struct Scales {
    Lanes scale[PARTS], minimum;
};

// What all formats say: bits of a stored code, whether codes are bytes with zero at 128 once they are read (`wide`),
// parts of a block with a scale each, zero point of codes, whether there are minimums, bytes of a tile, tiles that share
// a header (0: no header) and its bytes.
template <int BITS> constexpr int code_bytes() { return BITS == 8 ? 512 : 256 + (BITS - 4) * 64; }
constexpr int ALL = 1 << 30; // tiles of a row that share a header: all of them

// The stored codes of a tile: sink(j, codes) for k 4 j .. 4 j + 3.
template <int BITS, class Sink> INLINE void each_codes(const uint8_t *p, Sink sink) {
    if (BITS == 8) {
UNROLL_8
        for (int j = 0; j < 8; j++) sink(j, load_codes(p + 64 * j));
        return;
    }
UNROLL_4
    for (int j = 0; j < 4; j++) {
        const Codes line = load_codes(p + 64 * j);
        Codes low = low_nibbles(line), high = high_nibbles(line);
        if (BITS >= 5) {
            low = with_bit(low, p + 256 + 16 * j, 16);
            high = with_bit(high, p + 264 + 16 * j, 16);
        }
        if (BITS >= 6) {
            low = with_bit(low, p + 320 + 16 * j, 32);
            high = with_bit(high, p + 328 + 16 * j, 32);
        }
        sink(2 * j, low);
        sink(2 * j + 1, high);
    }
}

// The codes of a tile as products take them: where a format has a table, what stands there for the stored codes.
template <class F, class Sink> INLINE void each_codes(const uint8_t *p, Sink sink) {
    each_codes<F::bits>(p, [&](int j, Codes c) __attribute__((always_inline)) {
        if constexpr (F::wide && F::bits != 8) c = looked_up(c, F::table.codes);
        sink(j, c);
    });
}

INLINE const f16 *halves(const uint8_t *p) { return reinterpret_cast<const f16 *>(p); }

// A float16 scale per row and block, and perhaps a float16 minimum.
template <int BITS, int ZERO, bool MINIMUM> struct Plain {
    static constexpr int bits = BITS, parts = 1, zero = ZERO, bytes = code_bytes<BITS>() + (MINIMUM ? 64 : 32);
    static constexpr int shared = 0, header = 0;
    static constexpr bool minimum = MINIMUM, wide = BITS == 8;
    static inline __attribute__((always_inline)) Scales<1> scales(const uint8_t *p, const uint8_t *) {
        const uint8_t *s = p + code_bytes<BITS>();
        return {{load(halves(s))}, MINIMUM ? load(halves(s + 32)) : ::zero()};
    }
};

// A 6-bit scale and minimum per row and block, times float16 factors per row and eight blocks in the header.
template <int BITS> struct Nested {
    static constexpr int bits = BITS, parts = 1, zero = 0, bytes = code_bytes<BITS>() + 32;
    static constexpr int shared = 8, header = 64;
    static constexpr bool minimum = true, wide = false;
    static inline __attribute__((always_inline)) Scales<1> scales(const uint8_t *p, const uint8_t *head) {
        const uint8_t *s = p + code_bytes<BITS>();
        const Lanes least = multiply(load(halves(head + 32)), load_levels(s + 16));
        return {{multiply(load(halves(head)), load_levels(s))}, multiply(least, broadcast(-1.0f))};
    }
};

// An int8 scale per row and sixteen values, times a float16 factor per row and eight blocks in the header.
template <int BITS, int ZERO> struct Sixteenths {
    static constexpr int bits = BITS, parts = 2, zero = ZERO, bytes = code_bytes<BITS>() + 32, shared = 8, header = 32;
    static constexpr bool minimum = false, wide = false;
    static inline __attribute__((always_inline)) Scales<2> scales(const uint8_t *p, const uint8_t *head) {
        const int8_t *s = reinterpret_cast<const int8_t *>(p + code_bytes<BITS>());
        const Lanes factor = load(halves(head));
        return {{multiply(factor, load_levels(s)), multiply(factor, load_levels(s + 16))}, ::zero()};
    }
};

// Of each row and `SHARED` blocks, a float32 scale and an int16 zero point, counted from the middle of the codes.
template <int BITS, int SHARED> struct Grouped {
    static constexpr int bits = BITS, parts = 1, zero = 1 << (BITS - 1), bytes = code_bytes<BITS>();
    static constexpr int shared = SHARED, header = 96;
    static constexpr bool minimum = true, wide = BITS == 8;
    static inline __attribute__((always_inline)) Scales<1> scales(const uint8_t *, const uint8_t *head) {
        const Lanes scale = load(reinterpret_cast<const float *>(head));
        const Lanes level = load_levels(reinterpret_cast<const int16_t *>(head + 64));
        return {{scale}, multiply(scale, multiply(level, broadcast(-1.0f)))};
    }
};

// A float32 scale per row.
struct Rows8 {
    static constexpr int bits = 8, parts = 1, zero = 128, bytes = code_bytes<8>(), shared = ALL, header = 64;
    static constexpr bool minimum = false, wide = true;
    static inline __attribute__((always_inline)) Scales<1> scales(const uint8_t *, const uint8_t *head) {
        return {{load(reinterpret_cast<const float *>(head))}, ::zero()};
    }
};

// What sixteen stored codes stand for, plus 128.
struct LevelTable {
    uint8_t codes[16];
};
constexpr LevelTable level_table(const int8_t (&levels)[16]) {
    LevelTable t{};
    for (int i = 0; i < 16; i++) t.codes[i] = static_cast<uint8_t>(levels[i] + 128);
    return t;
}

// Codes that stand for levels of a table, with a scale of type T per row and block.
template <const int8_t (&LEVELS)[16], class T> struct Tabled {
    static constexpr int bits = 4, parts = 1, zero = 128, bytes = code_bytes<4>() + 32, shared = 0, header = 0;
    static constexpr bool minimum = false, wide = true;
    static constexpr LevelTable table = level_table(LEVELS);
    static inline __attribute__((always_inline)) Scales<1> scales(const uint8_t *p, const uint8_t *) {
        return {{load(reinterpret_cast<const T *>(p + code_bytes<4>()))}, ::zero()};
    }
};

// The same with an int8 scale per row and block, times a float16 factor per row and eight blocks in the header.
struct TabledNested {
    static constexpr int bits = 4, parts = 1, zero = 128, bytes = code_bytes<4>() + 16, shared = 8, header = 32;
    static constexpr bool minimum = false, wide = true;
    static constexpr LevelTable table = level_table(IQ4_LEVELS);
    static inline __attribute__((always_inline)) Scales<1> scales(const uint8_t *p, const uint8_t *head) {
        const int8_t *s = reinterpret_cast<const int8_t *>(p + code_bytes<4>());
        return {{multiply(load(halves(head)), load_levels(s))}, ::zero()};
    }
};

#define FOR_EACH_FORMAT(X)         \
    X(0, Plain<4, 8, false>)       \
    X(1, Plain<4, 0, true>)        \
    X(2, Plain<5, 16, false>)      \
    X(3, Plain<5, 0, true>)        \
    X(4, Plain<8, 128, false>)     \
    X(5, Nested<4>)                \
    X(6, Nested<5>)                \
    X(7, Sixteenths<6, 32>)        \
    X(8, Sixteenths<4, 4>)         \
    X(9, Rows8)                    \
    X(10, Grouped<4, 4>)           \
    X(11, Grouped<4, 1>)           \
    X(12, Grouped<8, 1>)           \
    X(13, Tabled<IQ4_LEVELS, f16>) \
    X(14, TabledNested)            \
    X(15, Tabled<MXFP4_LEVELS, bf16>)

// Calls `body` with a value of the format's type; false when the code is unknown.
template <class Body> static inline bool with_format(int32_t code, Body body) {
    switch (code) {
#define CASE(number, ...) \
    case number: body(__VA_ARGS__{}); return true;
        FOR_EACH_FORMAT(CASE)
#undef CASE
    default: return false;
    }
}

#define CODE(number, ...) \
    static inline int32_t format_code(__VA_ARGS__) { return number; }
FOR_EACH_FORMAT(CODE)
#undef CODE

// Bytes of the tiles of sixteen rows of `columns` values.
template <class F> constexpr int64_t tile_row_bytes(int64_t columns) {
    const int64_t blocks = columns / BLOCK, every = F::shared ? F::shared : 1;
    return blocks * F::bytes + (F::shared ? (blocks + every - 1) / every * F::header : 0);
}

// Walks over the tiles of sixteen rows along k: call `start` before each block and `step` behind it, in ascending order.
template <class F> struct Walk {
    const uint8_t *at, *head = nullptr;
    explicit Walk(const uint8_t *p) : at(p) {}
    void start(int64_t block) {
        if (F::shared && block % (F::shared ? F::shared : 1) == 0) {
            head = at;
            at += F::header;
        }
    }
    void step() { at += F::bytes; }
};

// Rows of one weight in one format; tiles of rows that do not exist are zero. Mirrored by kernels/tiles.py.
struct Tiles {
    int32_t format, reserved;
    int64_t rows, columns;
    const uint8_t *data;
};
