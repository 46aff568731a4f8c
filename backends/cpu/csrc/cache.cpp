// write_cache: puts new keys and values into the slots of a paged cache.
#include "kernels.h"
#include "attention.h"
#include "lanes.h"
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

// Asks for the lines that a token of one head is written to: they lie apart, and each would be waited for.
template <class C> void fetch(const Target &to, int64_t slot, int64_t head, C *cache) {
    const char *at = reinterpret_cast<const char *>(cache + to.at(slot, head));
    const int64_t step = to.strides.dim * static_cast<int64_t>(sizeof(C)), end = to.width * step;
    for (int64_t i = 0; i < end; i += step < 64 ? 64 : step) __builtin_prefetch(at + i, 1);
}

// Codes of x [width] from -127 to 127 to places up to `width` rounded up to 16, and their scale: NaN if a number is not
// finite, which codes cannot tell.
template <class T> float quantise_row(const T *x, int64_t width, int8_t *codes) {
    float rest[16] = {};
    for (int64_t i = width / 16 * 16; i < width; i++) rest[i % 16] = to_float(x[i]);
    auto sixteen = [&](int64_t i) { return i + 16 <= width ? load(x + i) : load(static_cast<const float *>(rest)); };
    uint32_t tops[16] = {}; // as integers magnitudes have the order that they have as numbers, and NaN is the largest
    for (int64_t i = 0; i < width; i += 16) {
        float values[16];
        store(values, sixteen(i));
        for (int l = 0; l < 16; l++) {
            const uint32_t magnitude = bits_of(values[l]) & 0x7fffffff;
            tops[l] = magnitude > tops[l] ? magnitude : tops[l];
        }
    }
    uint32_t most = 0;
    for (int l = 0; l < 16; l++) most = tops[l] > most ? tops[l] : most;
    const float top = float_of(most), scale = top / 127 > 0 ? top / 127 : 1, shift = 0x1.8p23f;
    for (int64_t i = 0; i < width; i += 16) {
        float values[16];
        store(values, sixteen(i));
        // behind the shift the lowest bits of a number are its integer, ties to even
        for (int l = 0; l < 16; l++) codes[i + l] = static_cast<int8_t>(bits_of(values[l] / scale + shift));
    }
    return scale + (top - top);
}

// Codes of the tokens of one head, and their scales.
template <class T>
void write_codes(const T *x, int64_t tokens, int64_t token_stride, const int32_t *slots, int64_t head, const Target &to,
                 int8_t *cache, const Target &scale_to, float *scales) {
    const int64_t padded = (to.width + 15) / 16 * 16;
    int8_t *codes = scratch_of<int8_t>(SLOT_CODES, RUN * padded);
    if (tokens == RUN && to.strides.slot == 1 && adjoin(slots, to.block_size)) {
        for (int64_t t = 0; t < RUN; t++)
            scales[scale_to.at(slots[t], head)] = quantise_row(x + t * token_stride, to.width, codes + t * padded);
        int8_t *y = cache + to.at(slots[0], head);
        for (int64_t d = 0; d < to.width; d++)
            for (int64_t t = 0; t < RUN; t++) y[d * to.strides.dim + t] = codes[t * padded + d];
        return;
    }
    for (int64_t t = 0; t < tokens; t++) {
        if (slots[t] < 0) continue;
        fetch(to, slots[t], head, cache);
        scales[scale_to.at(slots[t], head)] = quantise_row(x + t * token_stride, to.width, codes);
        int8_t *y = cache + to.at(slots[t], head);
        for (int64_t d = 0; d < to.width; d++) y[d * to.strides.dim] = codes[d];
    }
}

// Tokens of one head; the lines of the next one are asked for while one is written.
template <class T, class C>
void write_tokens(const T *x, int64_t tokens, int64_t token_stride, const int32_t *slots, int64_t head,
                  const Target &to, C *cache) {
    if (tokens == RUN && to.strides.slot == 1 && adjoin(slots, to.block_size))
        return copy_run(x, token_stride, to.width, cache + to.at(slots[0], head), to.strides.dim);
    if (slots[0] >= 0) fetch(to, slots[0], head, cache);
    for (int64_t t = 0; t < tokens; t++) {
        if (t + 1 < tokens && slots[t + 1] >= 0) fetch(to, slots[t + 1], head, cache);
        if (slots[t] >= 0) copy_values(x + t * token_stride, to.width, cache + to.at(slots[t], head), to.strides.dim);
    }
}

} // namespace

extern "C" {

// x [tokens, heads, width] with strides; the cache has `blocks` blocks; a negative slot writes nothing, of tokens with
// one slot the last stays. A cache of INT8 gets codes, and `scales` [blocks, block_size, heads] theirs. Returns -1, or the position of the first slot beyond the cache (then nothing is written), or
// -2 for an unknown type.
__attribute__((visibility("default"))) int64_t xh_write_cache(const void *x, int32_t x_type, int64_t tokens,
                                                              int64_t heads, int64_t token_stride, int64_t head_stride,
                                                              int64_t width, const int32_t *slots, void *cache,
                                                              int32_t cache_type, int64_t blocks, int64_t block_size,
                                                              const PageStrides *strides, float *scales,
                                                              const PageStrides *scale_strides) {
    bool ascending = true; // else tokens are written in order, for some may name one slot
    for (int64_t t = 0; t < tokens; t++) {
        if (slots[t] >= blocks * block_size) return t;
        ascending = ascending && (t == 0 || slots[t] > slots[t - 1]);
    }
    const Target to{block_size, heads, width, *strides};
    const Target scale_to{block_size, heads, 1, scale_strides ? *scale_strides : PageStrides{}};
    const int64_t run = ascending ? RUN : tokens > 0 ? tokens : 1, runs = (tokens + run - 1) / run;
    bool known = false;
    with_type(x_type, [&](auto *tag) {
        const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(x));
        const bool coded = cache_type == INT8 && scales && scale_strides;
        auto share = [&](int64_t i, int64_t &h, int64_t &first) { // the tokens of task i
            h = i / runs;
            first = i % runs * run;
            return tokens - first < run ? tokens - first : run;
        };
        if (coded)
            parallel(runs * heads, static_cast<double>(tokens * heads * width), [&](int64_t i) {
                int64_t h, first;
                const int64_t count = share(i, h, first);
                write_codes(from + first * token_stride + h * head_stride, count, token_stride, slots + first, h, to,
                            static_cast<int8_t *>(cache), scale_to, scales);
            });
        known = coded || with_type(cache_type, [&](auto *cache_tag) {
            auto *pages = static_cast<decltype(+cache_tag)>(cache);
            const double nanoseconds = static_cast<double>(tokens * heads * width) * (strides->dim == 1 ? 0.3 : 3);
            parallel(runs * heads, nanoseconds, [&](int64_t i) {
                int64_t h, first;
                const int64_t count = share(i, h, first);
                write_tokens(from + first * token_stride + h * head_stride, count, token_stride, slots + first, h, to,
                             pages);
            });
        });
    });
    return known ? -1 : -2;
}
}
