// Brings rows of floats into tiles, and reads rows of such tiles. Values are moved, never rounded.
#include "float_tiles.h"
#include "threads.h"

namespace {

int64_t groups_of(int64_t rows) { return (rows + TILE - 1) / TILE; }

template <class F> constexpr bool paired() { return false; }
template <> constexpr bool paired<Paired>() { return true; }

// Where column k of a row of a tile is, in values behind the first of the tile row.
template <class F> int64_t place(int64_t k, int64_t lane) {
    return paired<F>() ? k / 2 * 2 * TILE + 2 * lane + (1 - k % 2) : k * TILE + lane;
}

template <class F>
void pack_tile_row(const uint8_t *from, int64_t row_bytes, int64_t rows, int64_t columns, uint8_t *to) {
    typedef typename F::value T;
    T *tile = reinterpret_cast<T *>(to);
    for (int64_t first = 0; first < columns; first += BLOCK)
        for (int64_t row = 0; row < rows; row++) {
            const uint8_t *values = from + row * row_bytes;
            const int64_t last = columns - first < BLOCK ? columns : first + BLOCK;
            for (int64_t k = first; k < last; k++)
                std::memcpy(tile + place<F>(k, row), values + k * static_cast<int64_t>(sizeof(T)), sizeof(T));
        }
}

// Whether all values are zero or at least SMALLEST_EXACT.
bool all_exact(const uint8_t *tile, int64_t bytes) {
    const uint16_t *values = reinterpret_cast<const uint16_t *>(tile);
    const uint32_t least = bits_of(SMALLEST_EXACT) >> 16;
    uint32_t tiny = 0;
    for (int64_t i = 0; i < bytes / 2; i++) tiny |= static_cast<uint32_t>((values[i] & 0x7fffu) - 1u < least - 1u);
    return tiny == 0;
}

} // namespace

int32_t float_format(const char *scheme) {
#define NAME(number, name, ...) \
    if (std::strcmp(scheme, name) == 0) return number;
    FOR_EACH_FLOAT_FORMAT(NAME)
#undef NAME
    return -1;
}

int64_t float_tiles_bytes(int32_t format, int64_t rows, int64_t columns) {
    int64_t bytes = 0;
    with_float_format(format, [&](auto f) {
        typedef decltype(f) F;
        bytes = groups_of(rows) * tile_row_bytes<F>(whole_blocks(columns));
        if (paired<F>()) bytes += (groups_of(rows) + 63) / 64 * 64;
    });
    return bytes;
}

bool pack_float_tiles(int32_t format, const uint8_t *from, int64_t row_bytes, int64_t rows, int64_t columns,
                      uint8_t *to) {
    return with_float_format(format, [&](auto f) {
        typedef decltype(f) F;
        const int64_t step = tile_row_bytes<F>(whole_blocks(columns)), groups = groups_of(rows);
        parallel(groups, static_cast<double>(rows) * static_cast<double>(columns), [&](int64_t g) {
            const int64_t left = rows - g * TILE;
            pack_tile_row<F>(from + g * TILE * row_bytes, row_bytes, left < TILE ? left : TILE, columns, to + g * step);
        });
    });
}

int64_t float_tile_step(int32_t format, int64_t columns) {
    int64_t step = 0;
    with_float_format(format, [&](auto f) { step = tile_row_bytes<decltype(f)>(whole_blocks(columns)); });
    return step;
}

void seal_float_tiles(int32_t format, int64_t rows, int64_t columns, uint8_t *tiles) {
    with_float_format(format, [&](auto f) {
        typedef decltype(f) F;
        if (!paired<F>()) return;
        const int64_t step = tile_row_bytes<F>(whole_blocks(columns)), groups = groups_of(rows);
        parallel(groups, static_cast<double>(rows) * static_cast<double>(columns) / 8,
                 [&](int64_t g) { tiles[groups * step + g] = all_exact(tiles + g * step, step); });
    });
}

bool read_float_row(const Tiles &part, int64_t row, int32_t y_type, void *y) {
    return with_float_format(part.format, [&](auto f) {
        typedef decltype(f) F;
        typedef typename F::value T;
        const int64_t step = tile_row_bytes<F>(whole_blocks(part.columns));
        const T *tile = reinterpret_cast<const T *>(part.data + row / TILE * step);
        with_type(y_type, [&](auto *tag) {
            auto *to = static_cast<decltype(+tag)>(y);
            for (int64_t k = 0; k < part.columns; k++) assign(to[k], to_float(tile[place<F>(k, row % TILE)]));
        });
    });
}
