// Gated activations: gate goes through silu or gelu and is multiplied by up, in float64, rounded to the type at the
// end.
#include "exponential.h"
#include "views.h"
#include <cmath>

namespace {

enum Function : int32_t { SILU = 0, GELU_TANH = 1, GELU_ERF = 2 };

inline double silu(double x) { return x / (1.0 + exp_double(-x)); }

// 0.5 x (1 + tanh(u)) = x / (1 + e^(-2u)), without the cancellation.
inline double gelu_tanh(double x) {
    constexpr double TWICE_ROOT = 1.5957691216057308; // 2 sqrt(2 / pi)
    return x / (1.0 + exp_double(-TWICE_ROOT * (x + 0.044715 * x * x * x)));
}

inline double gelu_erf(double x) { return 0.5 * x * std::erfc(-0.70710678118654752 * x); }

template <class T, class F> inline void gated(const T *gate, const T *up, int64_t width, T *y, F function) {
    for (int64_t i = 0; i < width; i++) {
        const double g = to_float(gate[i]), u = to_float(up[i]);
        assign(y[i], static_cast<float>(function(g) * u));
    }
}

} // namespace

// y [rows, width] contiguous; gate and up [rows, width] with strides. Returns 0, or -1 for an unknown type or function.
extern "C" __attribute__((visibility("default"))) int32_t xh_gated(int32_t function, const void *gate, const void *up,
                                                                   int32_t type, int64_t rows, int64_t width,
                                                                   int64_t gate_stride, int64_t up_stride, void *y) {
    if (function < SILU || function > GELU_ERF) return -1;
    const bool known = with_type(type, [&](auto *tag) {
        each_row(rows, static_cast<double>(width) * (function == GELU_ERF ? 20 : 1), [&](int64_t r) {
            const auto *g = static_cast<decltype(+tag)>(const_cast<void *>(gate)) + r * gate_stride;
            const auto *u = static_cast<decltype(+tag)>(const_cast<void *>(up)) + r * up_stride;
            auto *to = static_cast<decltype(+tag)>(y) + r * width;
            if (function == SILU)
                gated(g, u, width, to, silu);
            else if (function == GELU_TANH)
                gated(g, u, width, to, gelu_tanh);
            else
                gated(g, u, width, to, gelu_erf);
        });
    });
    return known ? 0 : -1;
}
