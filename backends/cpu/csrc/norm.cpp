// rms_norm in float32, one rounding at the end; the sum of squares has the order of `linear`.
#include "kernels.h"
#include "lanes.h"
#include "views.h"
#include <cmath>

namespace {

template <class T> Lanes load_part(const T *x, int64_t count) {
    if (count >= 16) return load(x);
    float part[16] = {};
    for (int64_t i = 0; i < count; i++) part[i] = to_float(x[i]);
    return load(static_cast<const float *>(part));
}

template <class T, class W> void normalize(const T *x, const W *weight, int64_t width, float eps, T *y) {
    Lanes squares = zero();
    for (int64_t i = 0; i < width; i += 16) {
        const Lanes v = load_part(x + i, width - i);
        squares = fma(v, v, squares);
    }
    const float factor = 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps);
    for (int64_t i = 0; i < width; i++) assign(y[i], to_float(x[i]) * factor * to_float(weight[i]));
}

} // namespace

// y [outer * inner, width] = x / rms(x) * weight. Returns 0, or -1 for an unknown type.
extern "C" __attribute__((visibility("default"))) int32_t xh_rms_norm(const void *x, int32_t type, int64_t outer,
                                                                      int64_t inner, int64_t outer_stride,
                                                                      int64_t inner_stride, int64_t width,
                                                                      const void *weight, int32_t weight_type,
                                                                      double eps, void *y) {
    const Rows rows{outer, inner, outer_stride, inner_stride};
    bool known = false;
    with_type(type, [&](auto *tag) {
        auto *from = static_cast<decltype(+tag)>(const_cast<void *>(x));
        auto *to = static_cast<decltype(+tag)>(y);
        known = with_type(weight_type, [&](auto *weight_tag) {
            const auto *w = static_cast<decltype(+weight_tag)>(const_cast<void *>(weight));
            each_row(rows.count(), static_cast<double>(width) * 0.15, [&](int64_t r) {
                normalize(from + rows.offset(r), w, width, static_cast<float>(eps), to + r * width);
            });
        });
    });
    return known ? 0 : -1;
}
