// Gated activations: gate goes through silu or gelu and is multiplied by up, rounded to the type at the end. Silu and
// the gelu of tanh compute in float32 with an exponential of about one ulp, the gelu of erf in float64.
#include "kernels.h"
#include "exponential.h"
#include "views.h"
#include <cmath>

namespace {

enum Function : int32_t { SILU = 0, GELU_TANH = 1, GELU_ERF = 2 };

// x / (1 + e^-v) * up by the exponential of -|v|; v is given as a float and what is missing of it.
inline float gate(float x, float v, float missing, float up) {
    float first, second; // e^-|v| may be too small for a normal number, though x times it is not
    exp_parts(v < 0 ? v : -v, first, second);
    first *= 1.0f + (v < 0 ? missing : -missing);
    const float denominator = 1.0f + first * second;
    first = v < -170.0f ? 0.0f : first;
    return (v < 0 ? x * first : x) / denominator * up * (v < 0 ? second : 1.0f);
}

inline float silu(float x, float up) { return gate(x, x, 0.0f, up); }

// v = 2 sqrt(2 / pi) (x + 0.044715 x^3) as a float and what is missing of it, since an exponential multiplies its error.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
inline float tanh_argument(float x, float &missing) {
    constexpr double ROOT = 1.5957691216057308, CUBE = 0.044715;
    constexpr float ROOT_HIGH = ROOT, ROOT_LOW = ROOT - ROOT_HIGH, CUBE_HIGH = CUBE, CUBE_LOW = CUBE - CUBE_HIGH;
    const float square = x * x, square_rest = multiply_add(x, x, -square);
    const float cube = CUBE_HIGH * square;
    const float cube_rest = multiply_add(CUBE_HIGH, square, -cube) + (CUBE_HIGH * square_rest + CUBE_LOW * square);
    const float factor = 1.0f + cube, added = factor - 1.0f;
    const float factor_rest = (1.0f - (factor - added)) + (cube - added) + cube_rest;
    const float line = ROOT_HIGH * x, line_rest = multiply_add(ROOT_HIGH, x, -line) + ROOT_LOW * x;
    const float v = line * factor;
    missing = multiply_add(line, factor, -v) + (line * factor_rest + line_rest * factor);
    return v;
}
#else
inline float tanh_argument(float x, float &missing) {
    const double wide = x, v = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide);
    const float near = static_cast<float>(v);
    missing = static_cast<float>(v - near);
    return near;
}
#endif

// 0.5 x (1 + tanh(v / 2)) = x / (1 + e^-v), without the cancellation.
inline float gelu_tanh(float x, float up) {
    float missing; // beyond 32, e is 0 or infinite
    const float v = tanh_argument(x < -32.0f ? -32.0f : x > 32.0f ? 32.0f : x, missing);
    return gate(x, v, missing, up);
}

inline float gelu_erf(float x, float up) {
    const double wide = x;
    return static_cast<float>(0.5 * wide * std::erfc(-0.70710678118654752 * wide) * up);
}

template <class T, class F> inline void gated(const T *gate, const T *up, int64_t width, T *y, F function) {
    for (int64_t i = 0; i < width; i++) {
        assign(y[i], function(to_float(gate[i]), to_float(up[i])));
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
