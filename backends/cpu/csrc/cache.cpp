// write_cache: puts new keys and values into the slots of a paged cache.
#include "attention.h"
#include "numbers.h"
#include "threads.h"

namespace {

constexpr int64_t RUN = 16; // tokens that one task writes

struct Target {
    int64_t block_size, heads, width;
    PageStrides strides;
    int64_t at(int64_t slot, int64_t head) const {
        return slot / block_size * strides.block + slot % block_size * strides.slot + head * strides.head;
    }
};

// x [width] to places `step` apart.
template <class T, class C> void copy_values(const T *x, int64_t width, C *y, int64_t step) {
    if (step == 1)
        for (int64_t i = 0; i < width; i++) assign(y[i], to_float(x[i]));
    else
        for (int64_t i = 0; i < width; i++) assign(y[i * step], to_float(x[i]));
}

// Sixteen tokens in slots that adjoin: dim by dim, so that each line of the cache is written once.
template <class T, class C>
void copy_run(const T *x, int64_t token_stride, int64_t width, C *y, int64_t step) {
    for (int64_t d = 0; d < width; d++)
        for (int64_t t = 0; t < RUN; t++) assign(y[d * step + t], to_float(x[t * token_stride + d]));
}

bool adjoin(const int32_t *slots, int64_t block_size) {
    bool run = slots[0] >= 0 && slots[0] % block_size + RUN <= block_size;
    for (int64_t t = 1; t < RUN; t++) run = run && slots[t] == slots[0] + t;
    return run;
}

template <class T, class C>
void write_tokens(const T *x, int64_t tokens, int64_t token_stride, int64_t head_stride, const int32_t *slots,
                  const Target &to, C *cache) {
    const bool whole = tokens == RUN && to.strides.slot == 1 && adjoin(slots, to.block_size);
    for (int64_t h = 0; h < to.heads; h++) {
        const T *from = x + h * head_stride;
        if (whole) {
            copy_run(from, token_stride, to.width, cache + to.at(slots[0], h), to.strides.dim);
            continue;
        }
        for (int64_t t = 0; t < tokens; t++)
            if (slots[t] >= 0)
                copy_values(from + t * token_stride, to.width, cache + to.at(slots[t], h), to.strides.dim);
    }
}

} // namespace

extern "C" {

// x [tokens, heads, width] with strides; the cache has `blocks` blocks; a negative slot writes nothing, of tokens with
// one slot the last stays. Returns -1, or the position of the first slot beyond the cache (then nothing is written), or
// -2 for an unknown type.
__attribute__((visibility("default"))) int64_t xh_write_cache(const void *x, int32_t x_type, int64_t tokens,
                                                              int64_t heads, int64_t token_stride, int64_t head_stride,
                                                              int64_t width, const int32_t *slots, void *cache,
                                                              int32_t cache_type, int64_t blocks, int64_t block_size,
                                                              const PageStrides *strides) {
    bool ascending = true; // else tokens are written in order, for some may name one slot
    for (int64_t t = 0; t < tokens; t++) {
        if (slots[t] >= blocks * block_size) return t;
        ascending = ascending && (t == 0 || slots[t] > slots[t - 1]);
    }
    const Target to{block_size, heads, width, *strides};
    const int64_t run = ascending ? RUN : tokens > 0 ? tokens : 1, tasks = (tokens + run - 1) / run;
    bool known = false;
    with_type(x_type, [&](auto *tag) {
        const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(x));
        known = with_type(cache_type, [&](auto *cache_tag) {
            auto *pages = static_cast<decltype(+cache_tag)>(cache);
            parallel(tasks, static_cast<double>(tokens * heads * width) * 0.3, [&](int64_t i) {
                const int64_t first = i * run, count = tokens - first < run ? tokens - first : run;
                write_tokens(from + first * token_stride, count, token_stride, head_stride, slots + first, to, pages);
            });
        });
    });
    return known ? -1 : -2;
}
}
