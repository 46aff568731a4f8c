// Brings packed rows of a file into tiles. Codes and factors are moved, never rounded: a tile means what its rows mean.
#include "kernels.h"
#include "float_tiles.h"
#include "threads.h"
#include "tile_sources.h"

namespace {

using tile_sources::BITS_0;
using tile_sources::NIBBLES;

// The 32 codes of one row into the zeroed tile at `to`.
template <int BITS> INLINE void place_codes(const uint32_t *w, int row, uint8_t *to) {
    if (BITS == 8) {
        for (int j = 0; j < 8; j++) std::memcpy(to + 64 * j + 4 * row, w + j, 4);
        return;
    }
    for (int line = 0; line < 4; line++) {
        const uint32_t word = (w[2 * line] & NIBBLES) | (w[2 * line + 1] & NIBBLES) << 4;
        std::memcpy(to + 64 * line + 4 * row, &word, 4);
    }
    for (int bit = 4; bit < BITS; bit++)
        for (int j = 0; j < 8; j++) { // four bits of four bytes become neighbours; two rows share a byte
            const uint32_t four = (w[j] >> bit & BITS_0) * 0x01020408u >> 24 & 15;
            to[256 + 64 * (bit - 4) + 8 * j + row / 2] |= static_cast<uint8_t>(four << (4 * (row % 2)));
        }
}

// Sixteen rows, or as many as there are, of `columns` values into the zeroed tiles at `to`.
template <class S> void pack_tile_row(const uint8_t *from, int64_t row_bytes, int rows, int64_t columns, uint8_t *to) {
    typedef typename S::Format F;
    constexpr int run = S::values / BLOCK, every = F::shared ? F::shared : 1;
    for (int64_t block = 0; block < columns / BLOCK; block += run) {
        const uint8_t *p = from + S::lead + block / run * S::bytes;
        for (int g = 0; g < run; g++, to += F::bytes) {
            if (F::shared && (block + g) % every == 0) {
                for (int row = 0; row < rows; row++) S::header(p + row * row_bytes, row, to);
                to += F::header;
            }
            for (int row = 0; row < rows; row++) {
                uint32_t w[8];
                S::codes(p + row * row_bytes, g, w);
                place_codes<F::bits>(w, row, to);
                S::factors(p + row * row_bytes, g, row, to + code_bytes<F::bits>());
            }
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
        each_codes<F>(w.at, [&](int j, Codes c) { store_codes(codes + 64 * j, c); });
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
__attribute__((visibility("default"))) int32_t xh_tile_source(const char *scheme) {
#define NAME(number, name, ...) \
    if (std::strcmp(scheme, name) == 0) return number;
    FOR_EACH_TILE_SOURCE(NAME)
#undef NAME
    return float_format(scheme);
}

// The format of the tiles of a scheme, by its code; -1 if there is no such code.
__attribute__((visibility("default"))) int32_t xh_tile_format(int32_t source) {
    int32_t format = float_tiles_bytes(source, 1, 1) ? source : -1;
    with_tile_source(source, [&](auto s) { format = format_code(typename decltype(s)::Format{}); });
    return format;
}

// Bytes of the tiles of rows by columns; 0 where the columns do not fill blocks of the scheme.
__attribute__((visibility("default"))) int64_t xh_tiles_bytes(int32_t source, int64_t rows, int64_t columns) {
    int64_t bytes = float_tiles_bytes(source, rows, columns);
    with_tile_source(source, [&](auto s) {
        typedef decltype(s) S;
        if (columns % S::values == 0) bytes = (rows + TILE - 1) / TILE * tile_row_bytes<typename S::Format>(columns);
    });
    return bytes;
}

// Bytes of the tiles of sixteen rows; 0 for an unknown scheme.
__attribute__((visibility("default"))) int64_t xh_tile_step(int32_t source, int64_t columns) {
    int64_t step = float_tile_step(source, columns);
    with_tile_source(source, [&](auto s) { step = tile_row_bytes<typename decltype(s)::Format>(columns); });
    return step;
}

// Writes what lies behind all the tiles of a weight, once they are packed.
__attribute__((visibility("default"))) void xh_seal_tiles(int32_t source, int64_t rows, int64_t columns,
                                                          uint8_t *tiles) {
    seal_float_tiles(source, rows, columns, tiles);
}

// Packs rows that are `row_bytes` apart into the zeroed memory at `to`.
__attribute__((visibility("default"))) int32_t xh_pack_tiles(int32_t source, const uint8_t *from, int64_t row_bytes,
                                                             int64_t rows, int64_t columns, uint8_t *to) {
    const bool known = with_tile_source(source, [&](auto s) {
        typedef decltype(s) S;
        const int64_t step = tile_row_bytes<typename S::Format>(columns), groups = (rows + TILE - 1) / TILE;
        parallel(groups, static_cast<double>(rows) * static_cast<double>(columns) / 4, [&](int64_t g) {
            const int64_t left = rows - g * TILE;
            const int here = static_cast<int>(left < TILE ? left : TILE);
            pack_tile_row<S>(from + g * TILE * row_bytes, row_bytes, here, columns, to + g * step);
        });
    });
    return known || pack_float_tiles(source, from, row_bytes, rows, columns, to) ? 0 : -1;
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
            known &= with_format(part->format, [&](auto f) { read_row(f, *part, row, to); }) ||
                     read_float_row(*part, row, y_type, to);
        }
    }) || (known = false);
    return known ? -1 : -2;
}
}
