// write_cache: puts new keys and values into the slots of a paged cache [blocks, block_size, heads, width].
#include "numbers.h"
#include "views.h"

namespace {

template <class T, class C> inline void copy_values(const T *x, int64_t width, C *y) {
    for (int64_t i = 0; i < width; i++) assign(y[i], to_float(x[i]));
}

} // namespace

extern "C" {

// x [tokens, heads, width] with strides; cache contiguous with `slot_count` slots; a negative slot writes nothing, of
// tokens with one slot the last stays. Returns -1, or the position of the first slot at or beyond slot_count (then
// nothing is written), or -2 for an unknown type.
__attribute__((visibility("default"))) int64_t xh_write_cache(const void *x, int32_t x_type, int64_t tokens,
                                                              int64_t heads, int64_t token_stride, int64_t head_stride,
                                                              int64_t width, const int32_t *slots, void *cache,
                                                              int32_t cache_type, int64_t slot_count) {
    for (int64_t t = 0; t < tokens; t++)
        if (slots[t] >= slot_count) return t;
    bool known = false;
    with_type(x_type, [&](auto *tag) {
        const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(x));
        known = with_type(cache_type, [&](auto *cache_tag) {
            auto *to = static_cast<decltype(+cache_tag)>(cache);
            each_row(heads, static_cast<double>(tokens * width) * 0.1, [&](int64_t h) {
                for (int64_t t = 0; t < tokens; t++)
                    if (slots[t] >= 0)
                        copy_values(from + t * token_stride + h * head_stride, width,
                                    to + (slots[t] * heads + h) * width);
            });
        });
    });
    return known ? -1 : -2;
}
}
