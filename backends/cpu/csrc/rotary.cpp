// rotary_embedding: every pair (a, b) becomes (a cos - b sin, b cos + a sin), in float64, rounded to the type last.
#include "kernels.h"
#include "numbers.h"
#include "views.h"

namespace {

template <class T>
void turn(const T *x, const float *cosines, const float *sines, int64_t half, bool interleaved, T *y) {
    const int64_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
    for (int64_t i = 0; i < half; i++) {
        const double a = to_float(x[i * step]), b = to_float(x[i * step + apart]), c = cosines[i], s = sines[i];
        assign(y[i * step], static_cast<float>(a * c - b * s));
        assign(y[i * step + apart], static_cast<float>(b * c + a * s));
    }
}

} // namespace

// x [tokens, heads, width] with strides; cosines and sines [tokens, half] contiguous; the first 2 half values of each
// row are rotated, the others copied to y [tokens, heads, width]. Returns 0, or -1 for an unknown type.
extern "C" __attribute__((visibility("default"))) int32_t xh_rotary(const void *x, int32_t type, int64_t tokens,
                                                                    int64_t heads, int64_t token_stride,
                                                                    int64_t head_stride, int64_t width,
                                                                    const float *cosines, const float *sines,
                                                                    int64_t half, int32_t interleaved, void *y) {
    const Rows rows{tokens, heads, token_stride, head_stride};
    const bool known = with_type(type, [&](auto *tag) {
        each_row(rows.count(), static_cast<double>(width) * 0.3, [&](int64_t r) {
            const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(x)) + rows.offset(r);
            auto *to = static_cast<decltype(+tag)>(y) + r * width;
            const int64_t at = r / heads * half;
            if (interleaved)
                turn(from, cosines + at, sines + at, half, true, to);
            else
                turn(from, cosines + at, sines + at, half, false, to);
            std::memcpy(to + 2 * half, from + 2 * half, static_cast<size_t>(width - 2 * half) * sizeof(*to));
        });
    });
    return known ? 0 : -1;
}
