// Brings packed rows of a file into tiles. Codes and factors are moved, never rounded: a tile means what its rows mean.
#include "blocks.h"
#include "threads.h"
#include "tiles.h"

namespace {

// Where the codes and factors of a format's rows are: codes(p, g, q) gives the 32 codes of block g of the run at `p`.

struct FromQ4 {
    static void codes(const uint8_t *q4, uint8_t *q) {
        for (int i = 0; i < 16; i++) {
            q[i] = q4[i] & 15;
            q[16 + i] = q4[i] >> 4;
        }
    }
    static void fifth(const uint8_t *bits, uint8_t *q) {
        for (int i = 0; i < 32; i++) q[i] |= static_cast<uint8_t>((bits[i / 8] >> (i % 8) & 1) << 4);
    }
};

template <class F> struct Source;

template <> struct Source<Plain<4, 8, false>> {
    static constexpr int values = 32, bytes = 18;
    static void codes(const uint8_t *p, int, uint8_t *q) { FromQ4::codes(p + 2, q); }
    static void factors(const uint8_t *p, int, int row, uint8_t *to) { std::memcpy(to + 2 * row, p, 2); }
};

template <> struct Source<Plain<4, 0, true>> {
    static constexpr int values = 32, bytes = 20;
    static void codes(const uint8_t *p, int, uint8_t *q) { FromQ4::codes(p + 4, q); }
    static void factors(const uint8_t *p, int, int row, uint8_t *to) {
        std::memcpy(to + 2 * row, p, 2);
        std::memcpy(to + 32 + 2 * row, p + 2, 2);
    }
};

template <> struct Source<Plain<5, 16, false>> {
    static constexpr int values = 32, bytes = 22;
    static void codes(const uint8_t *p, int, uint8_t *q) {
        FromQ4::codes(p + 6, q);
        FromQ4::fifth(p + 2, q);
    }
    static void factors(const uint8_t *p, int, int row, uint8_t *to) { std::memcpy(to + 2 * row, p, 2); }
};

template <> struct Source<Plain<5, 0, true>> {
    static constexpr int values = 32, bytes = 24;
    static void codes(const uint8_t *p, int, uint8_t *q) {
        FromQ4::codes(p + 8, q);
        FromQ4::fifth(p + 4, q);
    }
    static void factors(const uint8_t *p, int, int row, uint8_t *to) {
        std::memcpy(to + 2 * row, p, 2);
        std::memcpy(to + 32 + 2 * row, p + 2, 2);
    }
};

template <> struct Source<Plain<8, 128, false>> {
    static constexpr int values = 32, bytes = 34;
    static void codes(const uint8_t *p, int, uint8_t *q) {
        for (int i = 0; i < 32; i++) q[i] = p[2 + i] ^ 128;
    }
    static void factors(const uint8_t *p, int, int row, uint8_t *to) { std::memcpy(to + 2 * row, p, 2); }
};

template <> struct Source<Nested<4>> {
    static constexpr int values = 256, bytes = 144;
    static void codes(const uint8_t *p, int g, uint8_t *q) {
        for (int i = 0; i < 32; i++) q[i] = p[16 + 32 * (g / 2) + i] >> (4 * (g % 2)) & 15;
    }
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

template <> struct Source<Nested<5>> : Source<Nested<4>> {
    static constexpr int bytes = 176;
    static void codes(const uint8_t *p, int g, uint8_t *q) {
        for (int i = 0; i < 32; i++)
            q[i] = static_cast<uint8_t>((p[48 + 32 * (g / 2) + i] >> (4 * (g % 2)) & 15) | (p[16 + i] >> g & 1) << 4);
    }
};

template <> struct Source<Sixteenths> {
    static constexpr int values = 256, bytes = 210;
    static void codes(const uint8_t *p, int g, uint8_t *q) {
        const int half = g / 4, run = g % 4; // of four runs of 32 values in each half
        const uint8_t *low = p + 64 * half + 32 * (run % 2), *high = p + 128 + 32 * half;
        for (int i = 0; i < 32; i++)
            q[i] = static_cast<uint8_t>((low[i] >> (4 * (run / 2)) & 15) | (high[i] >> (2 * run) & 3) << 4);
    }
    static void factors(const uint8_t *p, int g, int row, uint8_t *to) {
        to[row] = p[192 + 2 * g];
        to[16 + row] = p[193 + 2 * g];
    }
    static void header(const uint8_t *p, int row, uint8_t *to) { std::memcpy(to + 2 * row, p + 208, 2); }
};

template <int BITS> void place_codes(const uint8_t *q, int row, uint8_t *to) {
    for (int k = 0; k < BLOCK; k++) {
        if (BITS == 8) {
            to[64 * (k / 4) + 4 * row + k % 4] = q[k];
            continue;
        }
        const int line = k / 8, high = k % 8 / 4, at = 4 * row + k % 4;
        to[64 * line + at] |= static_cast<uint8_t>((q[k] & 15) << (4 * high));
        for (int bit = 4; bit < BITS; bit++)
            to[256 + 64 * (bit - 4) + 16 * line + 8 * high + at / 8] |=
                static_cast<uint8_t>((q[k] >> bit & 1) << (at % 8));
    }
}

// Sixteen rows, or as many as there are, of `columns` values into the zeroed tiles at `to`.
template <class F>
void pack_tile_row(const uint8_t *from, int64_t row_bytes, int rows, int64_t columns, uint8_t *to) {
    typedef Source<F> S;
    constexpr int run = S::values / BLOCK;
    for (int row = 0; row < rows; row++) {
        const uint8_t *p = from + row * row_bytes;
        uint8_t *at = to;
        for (int64_t block = 0; block < columns / BLOCK; block++, at += F::bytes) {
            const int g = static_cast<int>(block % run);
            if constexpr (F::shared != 0)
                if (g == 0) {
                    S::header(p, row, at);
                    at += F::header;
                }
            uint8_t q[BLOCK];
            S::codes(p, g, q);
            place_codes<F::bits>(q, row, at);
            S::factors(p, g, row, at + code_bytes<F::bits>());
            if (g == run - 1) p += S::bytes;
        }
    }
}

// The values of one row, with the rounding of the packed formats: only adding a minimum rounds.
template <class F, class T> void read_row(F, const Tiles &part, int64_t row, T *y) {
    Walk<F> w(part.data + row / TILE * tile_row_bytes<F>(part.columns));
    const int lane = static_cast<int>(row % TILE);
    for (int64_t b = 0; b < part.columns / BLOCK; b++, w.step()) {
        w.start(b);
        uint8_t codes[512];
        each_codes<F::bits>(w.at, [&](int j, Codes c) { store_codes(codes + 64 * j, c); });
        const auto scales = F::scales(w.at, w.head);
        float scale[F::parts][TILE], minimum[TILE];
        for (int part_of = 0; part_of < F::parts; part_of++) store(scale[part_of], scales.scale[part_of]);
        store(minimum, scales.minimum);
        for (int k = 0; k < BLOCK; k++) {
            const int level = codes[64 * (k / 4) + 4 * lane + k % 4] - F::zero;
            const float product = scale[k * F::parts / BLOCK][lane] * static_cast<float>(level);
            assign(y[b * BLOCK + k], F::minimum ? product + minimum[lane] : product);
        }
    }
}

} // namespace

extern "C" {

// The code of a weight scheme that can be tiled; -1 if it cannot.
__attribute__((visibility("default"))) int32_t xh_tile_format(const char *scheme) {
#define NAME(number, name, ...) \
    if (std::strcmp(scheme, name) == 0) return number;
    FOR_EACH_FORMAT(NAME)
#undef NAME
    return -1;
}

// Bytes of the tiles of rows by columns; 0 where the columns do not fill blocks of the format.
__attribute__((visibility("default"))) int64_t xh_tiles_bytes(int32_t format, int64_t rows, int64_t columns) {
    int64_t bytes = 0;
    with_format(format, [&](auto f) {
        typedef decltype(f) F;
        if (columns % Source<F>::values == 0) bytes = (rows + TILE - 1) / TILE * tile_row_bytes<F>(columns);
    });
    return bytes;
}

// Packs rows that are `row_bytes` apart into the zeroed memory at `to`.
__attribute__((visibility("default"))) int32_t xh_pack_tiles(int32_t format, const uint8_t *from, int64_t row_bytes,
                                                             int64_t rows, int64_t columns, uint8_t *to) {
    const bool known = with_format(format, [&](auto f) {
        typedef decltype(f) F;
        const int64_t step = tile_row_bytes<F>(columns), groups = (rows + TILE - 1) / TILE;
        parallel(groups, static_cast<double>(rows) * static_cast<double>(columns), [&](int64_t g) {
            const int64_t left = rows - g * TILE;
            const int here = static_cast<int>(left < TILE ? left : TILE);
            pack_tile_row<F>(from + g * TILE * row_bytes, row_bytes, here, columns, to + g * step);
        });
    });
    return known ? 0 : -1;
}

// y [count, columns] of y_type = rows `indices` (int64 if wide, else int32) of the tiles in `parts`. Returns -1, or the
// position of the first index outside the rows (then nothing is written), or -2 for an unknown type or format.
__attribute__((visibility("default"))) int64_t xh_tile_rows(const void *indices, int32_t wide, int64_t count,
                                                            const Tiles *parts, int32_t part_count, int32_t y_type,
                                                            void *y) {
    int64_t rows = 0;
    for (int32_t p = 0; p < part_count; p++) rows += parts[p].rows;
    auto index = [&](int64_t i) {
        return wide ? static_cast<const int64_t *>(indices)[i] : static_cast<const int32_t *>(indices)[i];
    };
    for (int64_t i = 0; i < count; i++)
        if (index(i) < 0 || index(i) >= rows) return i;
    bool known = true;
    with_type(y_type, [&](auto *tag) {
        for (int64_t i = 0; i < count; i++) {
            int64_t row = index(i);
            const Tiles *part = parts;
            for (; row >= part->rows; part++) row -= part->rows;
            auto *to = static_cast<decltype(+tag)>(y) + i * part->columns;
            known &= with_format(part->format, [&](auto f) { read_row(f, *part, row, to); });
        }
    }) || (known = false);
    return known ? -1 : -2;
}
}
