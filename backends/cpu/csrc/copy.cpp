// Strided copies: slices, concatenations and transposes are one loop over runs of bytes.
#include "copy.h"
#include "threads.h"

namespace {

template <int BYTES> void copy_fixed(const char *from, int64_t from_stride, char *to, int64_t to_stride, int64_t count) {
    for (int64_t i = 0; i < count; i++) std::memcpy(to + i * to_stride, from + i * from_stride, BYTES);
}

void copy_axis(const char *from, int64_t from_stride, char *to, int64_t to_stride, int64_t count, int64_t bytes) {
    switch (bytes) { // single elements, as in transposes
    case 1: return copy_fixed<1>(from, from_stride, to, to_stride, count);
    case 2: return copy_fixed<2>(from, from_stride, to, to_stride, count);
    case 4: return copy_fixed<4>(from, from_stride, to, to_stride, count);
    case 8: return copy_fixed<8>(from, from_stride, to, to_stride, count);
    }
    for (int64_t i = 0; i < count; i++)
        std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(bytes));
}

} // namespace

void copy_runs(const CopyCall &c) {
    const int64_t *n = c.sizes, *from = c.from_strides, *to = c.to_strides, outer = n[0] * n[1];
    const double work = static_cast<double>(outer * n[2] * n[3]) * (1 + static_cast<double>(c.bytes) / 16);
    parallel(outer, work, [&](int64_t i) {
        const int64_t first = i / n[1], second = i % n[1];
        const char *source = c.from + first * from[0] + second * from[1];
        char *target = c.to + first * to[0] + second * to[1];
        for (int64_t j = 0; j < n[2]; j++)
            copy_axis(source + j * from[2], from[3], target + j * to[2], to[3], n[3], c.bytes);
    });
}

int64_t copy_command(Arguments a) {
    CopyCall c{a.at<char>(0), a.at<char>(1)};
    int64_t *const members[] = {c.sizes, c.from_strides, c.to_strides};
    for (int i = 0; i < 3 * COPY_AXES; i++) members[i / COPY_AXES][i % COPY_AXES] = a.number(2 + i);
    c.bytes = a.number(2 + 3 * COPY_AXES);
    copy_runs(c);
    return 0;
}
