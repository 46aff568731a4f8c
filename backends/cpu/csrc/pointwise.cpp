// Elementwise functions of one or two tensors [rows, columns], each broadcast along either axis by a stride of 0.
// Sums and products are computed in float32, other functions in float64, and every result is rounded once.
#include "pointwise.h"
#include "numbers.h"
#include "views.h"
#include <cmath>

namespace {

template <class T> struct Reader {
    const T *p;
    int64_t row_stride, stride;
    float operator()(int64_t r, int64_t c) const { return to_float(p[r * row_stride + c * stride]); }
};

struct Integers {
    const int32_t *p;
    int64_t row_stride, stride;
    float operator()(int64_t r, int64_t c) const { return static_cast<float>(p[r * row_stride + c * stride]); }
};

template <class Body> bool with_reader(const Operand &x, Body body) {
    if (x.type == INTEGER32) {
        body(Integers{static_cast<const int32_t *>(x.data), x.row_stride, x.stride});
        return true;
    }
    return with_type(x.type, [&](auto *tag) {
        typedef decltype(+tag) Pointer;
        body(Reader<std::remove_pointer_t<Pointer>>{static_cast<Pointer>(const_cast<void *>(x.data)), x.row_stride,
                                                    x.stride});
    });
}

inline float unary(int32_t function, float x) {
    const double wide = x;
    switch (function) {
    case CAST: return x;
    case NEGATE: return -x;
    case COSINE: return static_cast<float>(std::cos(wide));
    case SINE: return static_cast<float>(std::sin(wide));
    case TANH: return static_cast<float>(std::tanh(wide));
    case SIGMOID: return static_cast<float>(1.0 / (1.0 + std::exp(-wide)));
    default: return static_cast<float>(std::exp(wide));
    }
}

template <class R, class T> void apply_one(int32_t function, int64_t rows, int64_t columns, R x, T *y) {
    const double cost = function <= NEGATE ? 0.3 : 10;
    each_row(rows, static_cast<double>(columns) * cost, [&](int64_t r) {
        for (int64_t c = 0; c < columns; c++) assign(y[r * columns + c], unary(function, x(r, c)));
    });
}

template <class A, class B, class T>
void apply_two(int32_t function, int64_t rows, int64_t columns, A a, B b, T *y) {
    each_row(rows, static_cast<double>(columns) * 0.3, [&](int64_t r) {
        T *to = y + r * columns;
        switch (function) {
        case ADD:
            for (int64_t c = 0; c < columns; c++) assign(to[c], a(r, c) + b(r, c));
            break;
        case SUBTRACT:
            for (int64_t c = 0; c < columns; c++) assign(to[c], a(r, c) - b(r, c));
            break;
        case MULTIPLY:
            for (int64_t c = 0; c < columns; c++) assign(to[c], a(r, c) * b(r, c));
            break;
        default:
            for (int64_t c = 0; c < columns; c++) assign(to[c], a(r, c) / b(r, c));
        }
    });
}

} // namespace

int32_t pointwise(int32_t function, int64_t rows, int64_t columns, const Operand &a, const Operand &b, int32_t type,
                  void *y) {
    bool known = false;
    with_type(type, [&](auto *tag) {
        auto *to = static_cast<decltype(+tag)>(y);
        if (function < ADD)
            known = with_reader(a, [&](auto x) { apply_one(function, rows, columns, x, to); });
        else
            with_reader(a, [&](auto x) {
                known = with_reader(b, [&](auto z) { apply_two(function, rows, columns, x, z, to); });
            });
    });
    return known ? 0 : -1;
}

// As `pointwise`, from Python.
extern "C" __attribute__((visibility("default"))) int32_t
xh_pointwise(int32_t function, int64_t rows, int64_t columns, const void *a, int64_t a_row, int64_t a_column,
             int32_t a_type, const void *b, int64_t b_row, int64_t b_column, int32_t b_type, int32_t type, void *y) {
    return pointwise(function, rows, columns, {a, a_row, a_column, a_type}, {b, b_row, b_column, b_type}, type, y);
}
