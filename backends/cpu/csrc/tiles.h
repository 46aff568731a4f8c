// Weights as the integer kernels like them: tiles of sixteen rows by 32 values of k, one behind the other along k.
// A line of 64 bytes holds sixteen rows times eight values: low nibbles k 0 - 3, high nibbles k 4 - 7, each row's four
// next to each other. Further bits of a code follow as masks, then the scales of the sixteen rows.
#pragma once
#include "codes.h"

constexpr int TILE = 16, BLOCK = 32; // rows of a tile; values of k that share a scale of the activations

// Scales of a tile: value = scale[s] * (code - zero) + minimum for the s-th part of the block.
template <int PARTS> struct Scales {
    Lanes scale[PARTS], minimum;
};

// What all formats say: bits of a code, parts of a block with a scale each, zero point of codes, whether there are
// minimums, bytes of a tile, tiles that share a header (0: no header) and its bytes.
template <int BITS> constexpr int code_bytes() { return BITS == 8 ? 512 : 256 + (BITS - 4) * 64; }

// The codes of a tile: sink(j, codes) for k 4 j .. 4 j + 3.
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

INLINE const f16 *halves(const uint8_t *p) { return reinterpret_cast<const f16 *>(p); }

// A float16 scale per row and block, and perhaps a float16 minimum.
template <int BITS, int ZERO, bool MINIMUM> struct Plain {
    static constexpr int bits = BITS, parts = 1, zero = ZERO, bytes = code_bytes<BITS>() + (MINIMUM ? 64 : 32);
    static constexpr int shared = 0, header = 0;
    static constexpr bool minimum = MINIMUM;
    static inline __attribute__((always_inline)) Scales<1> scales(const uint8_t *p, const uint8_t *) {
        const uint8_t *s = p + code_bytes<BITS>();
        return {{load(halves(s))}, MINIMUM ? load(halves(s + 32)) : ::zero()};
    }
};

// A 6-bit scale and minimum per row and block, times float16 factors per row and eight blocks in the header.
template <int BITS> struct Nested {
    static constexpr int bits = BITS, parts = 1, zero = 0, bytes = code_bytes<BITS>() + 32;
    static constexpr int shared = 8, header = 64;
    static constexpr bool minimum = true;
    static inline __attribute__((always_inline)) Scales<1> scales(const uint8_t *p, const uint8_t *head) {
        const uint8_t *s = p + code_bytes<BITS>();
        const Lanes least = multiply(load(halves(head + 32)), load_levels(s + 16));
        return {{multiply(load(halves(head)), load_levels(s))}, multiply(least, broadcast(-1.0f))};
    }
};

// An int8 scale per row and sixteen values, times a float16 factor per row and eight blocks in the header.
struct Sixteenths {
    static constexpr int bits = 6, parts = 2, zero = 32, bytes = code_bytes<6>() + 32, shared = 8, header = 32;
    static constexpr bool minimum = false;
    static inline __attribute__((always_inline)) Scales<2> scales(const uint8_t *p, const uint8_t *head) {
        const int8_t *s = reinterpret_cast<const int8_t *>(p + code_bytes<6>());
        const Lanes factor = load(halves(head));
        return {{multiply(factor, load_levels(s)), multiply(factor, load_levels(s + 16))}, ::zero()};
    }
};

// A float16 scale per row and block, and a zero point of its own.
struct Shifted {
    static constexpr int bits = 4, parts = 1, zero = 0, bytes = code_bytes<4>() + 64, shared = 0, header = 0;
    static constexpr bool minimum = true;
    static inline __attribute__((always_inline)) Scales<1> scales(const uint8_t *p, const uint8_t *) {
        const uint8_t *s = p + code_bytes<4>();
        const Lanes scale = load(halves(s));
        return {{scale}, multiply(scale, multiply(load_levels(s + 32), broadcast(-1.0f)))};
    }
};

#define FOR_EACH_FORMAT(X)               \
    X(0, "q4_0", Plain<4, 8, false>)     \
    X(1, "q4_1", Plain<4, 0, true>)      \
    X(2, "q5_0", Plain<5, 16, false>)    \
    X(3, "q5_1", Plain<5, 0, true>)      \
    X(4, "q8_0", Plain<8, 128, false>)   \
    X(5, "q4_k", Nested<4>)              \
    X(6, "q5_k", Nested<5>)              \
    X(7, "q6_k", Sixteenths)

// Calls `body` with a value of the format's type; false when the code is unknown.
template <class Body> static inline bool with_format(int32_t code, Body body) {
    switch (code) {
#define CASE(number, name, ...) \
    case number: body(__VA_ARGS__{}); return true;
        FOR_EACH_FORMAT(CASE)
#undef CASE
    default: return false;
    }
}

// Bytes of the tiles of sixteen rows of `columns` values.
template <class F> constexpr int64_t tile_row_bytes(int64_t columns) {
    const int64_t blocks = columns / BLOCK;
    return blocks * F::bytes + (F::shared ? blocks / (F::shared ? F::shared : 1) * F::header : 0);
}

// Walks over tiles along k: call `next` before each block, in ascending order.
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
    void skip(int64_t blocks) { at += tile_row_bytes<F>(blocks * BLOCK); }
};

// Rows of one weight in one format; tiles of rows that do not exist are zero. Mirrored by kernels/tiles.py.
struct Tiles {
    int32_t format, reserved;
    int64_t rows, columns;
    const uint8_t *data;
};
