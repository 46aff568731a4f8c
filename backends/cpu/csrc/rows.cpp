// Reading weight rows as plain numbers: gathered by index (embedding) or all of them (dequantize).
#include "kernels.h"
#include "threads.h"
#include "weights.h"

namespace {

// Rounds to odd: rounding the result again to 16 bits gives what rounding x once would have given.
inline float to_odd(double x) {
    const float nearest = static_cast<float>(x);
    const double back = nearest;
    if (back == x || x != x) return nearest;
    const bool away = (back < 0 ? -back : back) > (x < 0 ? -x : x);
    return float_of((bits_of(nearest) - (away ? 1u : 0u)) | 1u);
}

// Values of a row, each rounded once to T.
template <class S, class T> void read_row(S, const uint8_t *row, int64_t k, T *y) {
    for (int64_t at = 0; at < k; at += S::values, row += S::bytes) {
        double exact[S::values];
        S::unpack(row, exact);
        for (int i = 0; i < S::values; i++) assign(y[at + i], to_odd(exact[i]));
    }
}
template <class S> void read_row(S, const uint8_t *row, int64_t k, float *y) {
    for (int64_t at = 0; at < k; at += S::values, row += S::bytes)
        decode(S{}, row, [&](int i, Lanes v) __attribute__((always_inline)) { store(y + at + 16 * i, v); });
}
template <class E, class T> void read_row(Dense<E>, const uint8_t *row, int64_t k, T *y) {
    for (int64_t i = 0; i < k; i++) {
        E x;
        std::memcpy(&x, row + i * static_cast<int64_t>(sizeof(E)), sizeof(E));
        assign(y[i], to_float(x));
    }
}
template <class E> void read_row(Dense<E>, const uint8_t *row, int64_t k, float *y) {
    for (int64_t i = 0; i < k; i++) {
        E x;
        std::memcpy(&x, row + i * static_cast<int64_t>(sizeof(E)), sizeof(E));
        y[i] = to_float(x);
    }
}

// Writes row `row` of the parts, k values, as y_type at y.
void copy_row(const Part *parts, int64_t row, int64_t k, int32_t y_type, void *y) {
    while (row >= parts->rows) row -= (parts++)->rows;
    with_type(y_type, [&](auto *tag) {
        with_scheme(parts->scheme, [&](auto s) {
            read_row(s, parts->data + row * parts->row_bytes, k, static_cast<decltype(+tag)>(y));
        });
    });
}

int64_t type_bytes(int32_t type) { return type == FLOAT32 ? 4 : 2; }

// Rows of the parts together, or -1 when a scheme or the type is unknown.
int64_t count_rows(const Part *parts, int32_t part_count, int32_t y_type) {
    int64_t rows = with_type(y_type, [](auto *) {}) ? 0 : -1;
    for (int32_t p = 0; rows >= 0 && p < part_count; p++)
        rows = with_scheme(parts[p].scheme, [](auto) {}) ? rows + parts[p].rows : -1;
    return rows;
}

} // namespace

extern "C" {

// The code of a scheme, or -1.
__attribute__((visibility("default"))) int32_t xh_scheme(const char *name) {
#define COMPARE(number, spelled, type) \
    if (std::strcmp(name, spelled) == 0) return number;
    FOR_EACH_SCHEME(COMPARE)
#undef COMPARE
    return -1;
}

// y [count, k] of y_type = rows `indices` (int64 if wide, else int32). Returns -1, or the position of the first index
// outside 0 .. rows - 1 (then nothing is written), or -2 for an unknown type or scheme.
__attribute__((visibility("default"))) int64_t xh_embedding(const void *indices, int32_t wide, int64_t count,
                                                            const Part *parts, int32_t part_count, int64_t k,
                                                            int32_t y_type, void *y) {
    const int64_t rows = count_rows(parts, part_count, y_type);
    if (rows < 0) return -2;
    auto index = [&](int64_t i) {
        return wide ? static_cast<const int64_t *>(indices)[i] : static_cast<const int32_t *>(indices)[i];
    };
    for (int64_t i = 0; i < count; i++)
        if (index(i) < 0 || index(i) >= rows) return i;
    parallel(count, static_cast<double>(count * k) * 0.2, [&](int64_t i) {
        copy_row(parts, index(i), k, y_type, static_cast<char *>(y) + i * k * type_bytes(y_type));
    });
    return -1;
}

// y [rows, k] of y_type = all rows. Returns 0, or -2 for an unknown type or scheme.
__attribute__((visibility("default"))) int32_t xh_dequantize(const Part *parts, int32_t part_count, int64_t k,
                                                             int32_t y_type, void *y) {
    const int64_t rows = count_rows(parts, part_count, y_type);
    if (rows < 0) return -2;
    const int64_t step = 16384 / (k + 1) + 1;
    parallel((rows + step - 1) / step, static_cast<double>(rows * k) * 0.2, [&](int64_t task) {
        const int64_t stop = (task + 1) * step < rows ? (task + 1) * step : rows;
        for (int64_t r = task * step; r < stop; r++)
            copy_row(parts, r, k, y_type, static_cast<char *>(y) + r * k * type_bytes(y_type));
    });
    return 0;
}
}
