// Gated activations: gate goes through silu or gelu and is multiplied by up, rounded to the type at the end. Silu and
// the gelu of tanh compute in float32 with an exponential of about one ulp, the gelu of erf in float64.
#include "exponential.h"
#include "views.h"
#include <cmath>

namespace {

enum Function : int32_t { SILU = 0, GELU_TANH = 1, GELU_ERF = 2 };

// x / (1 + e^-v) by the exponential of -|v|, given as a float and what is missing of it.
inline float gate(float x, float v, float missing) {
    const float e = exp_negative(v < 0 ? v : -v) * (1.0f + (v < 0 ? missing : -missing));
    return (v < 0 ? x * e : x) / (1.0f + e);
}

inline float silu(float x) { return gate(x, x, 0.0f); }

// 0.5 x (1 + tanh(u)) = x / (1 + e^(-2u)), without the cancellation; 2u in two floats, since e multiplies its error.
inline float gelu_tanh(float x) {
    constexpr double ROOT = 1.5957691216057308, CUBE = 0.044715; // 2 sqrt(2 / pi)
    constexpr float ROOT_HIGH = ROOT, ROOT_LOW = ROOT - ROOT_HIGH, CUBE_HIGH = CUBE, CUBE_LOW = CUBE - CUBE_HIGH;
    const float t = x < -32.0f ? -32.0f : x > 32.0f ? 32.0f : x; // e is 0 or infinite long before
    const float square = t * t, square_rest = multiply_add(t, t, -square);
    const float cube = CUBE_HIGH * square;
    const float cube_rest = multiply_add(CUBE_HIGH, square, -cube) + (CUBE_HIGH * square_rest + CUBE_LOW * square);
    const float factor = 1.0f + cube, added = factor - 1.0f;
    const float factor_rest = (1.0f - (factor - added)) + (cube - added) + cube_rest;
    const float line = ROOT_HIGH * t, line_rest = multiply_add(ROOT_HIGH, t, -line) + ROOT_LOW * t;
    const float v = line * factor;
    return gate(x, v, multiply_add(line, factor, -v) + (line * factor_rest + line_rest * factor));
}

inline float gelu_erf(float x) {
    return static_cast<float>(0.5 * x * std::erfc(-0.70710678118654752 * static_cast<double>(x)));
}

template <class T, class F> inline void gated(const T *gate, const T *up, int64_t width, T *y, F function) {
    for (int64_t i = 0; i < width; i++) {
        assign(y[i], function(to_float(gate[i])) * to_float(up[i]));
    }
}

} // namespace

// y [rows, width] contiguous; gate and up [rows, width] with strides. Returns 0, or -1 for an unknown type or function.
extern "C" __attribute__((visibility("default"))) int32_t xh_gated(int32_t function, const void *gate, const void *up,
                                                                   int32_t type, int64_t rows, int64_t width,
                                                                   int64_t gate_stride, int64_t up_stride, void *y) {
    if (function < SILU || function > GELU_ERF) return -1;
    const bool known = with_type(type, [&](auto *tag) {
        each_row(rows, static_cast<double>(width) * (function == GELU_ERF ? 20 : 0.3), [&](int64_t r) {
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
