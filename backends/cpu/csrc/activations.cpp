// Quantisation of activations: d = max |x| / 127, code = x / d to the nearest integer, ties to even, per block of 32.
#include "activations.h"
#include "codes.h"
#include "threads.h"
#include <cmath>
#include <cstring>

namespace {

#if defined(LANES_AVX512)

// Codes of a block by multiplication with `inverse`, the codes plus 128 if wanted, and the sums of their halves.
INLINE void round_block(const Lanes *x, float inverse, int8_t *codes, uint8_t *raised, int32_t *halves) {
    for (int h = 0; h < 2; h++) {
        const __m512i wide = _mm512_cvtps_epi32(_mm512_mul_ps(x[h].v[0], _mm512_set1_ps(inverse)));
        const __m128i narrow = _mm512_cvtsepi32_epi8(wide);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(codes + 16 * h), narrow);
        // bytes as 0 .. 255 are summed by groups of eight: 128 too much each
        const __m128i up = _mm_xor_si128(narrow, _mm_set1_epi8(-128));
        if (raised) _mm_storeu_si128(reinterpret_cast<__m128i *>(raised + 16 * h), up);
        const __m128i eights = _mm_sad_epu8(up, _mm_setzero_si128());
        halves[h] = _mm_cvtsi128_si32(eights) + _mm_extract_epi32(eights, 2) - 16 * 128;
    }
}

INLINE float largest_of(const Lanes *x) {
    // as integers magnitudes have the order that they have as numbers, and NaN is the largest
    const __m512i a = _mm512_castps_si512(_mm512_abs_ps(x[0].v[0])), b = _mm512_castps_si512(_mm512_abs_ps(x[1].v[0]));
    return float_of(_mm512_reduce_max_epu32(_mm512_max_epu32(a, b)));
}

#else

void round_block(const Lanes *given, float inverse, int8_t *codes, uint8_t *, int32_t *halves) {
    float x[32];
    store(x, given[0]);
    store(x + 16, given[1]);
    for (int h = 0; h < 2; h++) {
        int32_t sum = 0;
        for (int i = 16 * h; i < 16 * h + 16; i++) {
            const int32_t q = static_cast<int32_t>(std::nearbyint(x[i] * inverse));
            codes[i] = static_cast<int8_t>(q);
            sum += q;
        }
        halves[h] = sum;
    }
}

float largest_of(const Lanes *given) {
    // as integers magnitudes have the order that they have as numbers, and NaN is the largest
    float x[32];
    store(x, given[0]);
    store(x + 16, given[1]);
    uint32_t bits[32], top = 0;
    std::memcpy(bits, x, sizeof bits);
    for (int i = 0; i < 32; i++) top = (bits[i] & 0x7fffffff) > top ? bits[i] & 0x7fffffff : top;
    return float_of(top);
}

#endif

constexpr float SMALLEST = 0x1p-126f; // the smallest normal number

template <class T> void quantise_row(const T *x, int64_t k, int64_t row, const Activations &a) {
    const int64_t blocks = k / 32;
    int8_t *codes = const_cast<int8_t *>(a.codes) + row * k;
    float *scales = const_cast<float *>(a.scales) + row * blocks;
    float *weighted = const_cast<float *>(a.weighted) + row * blocks;
    uint8_t *raised = a.raised ? const_cast<uint8_t *>(a.raised) + row * k : nullptr;
    int32_t *sums = const_cast<int32_t *>(a.sums) + row * blocks;
    int32_t *halves = const_cast<int32_t *>(a.halves) + row * blocks * 2;
    for (int64_t b = 0; b < blocks; b++) {
        Lanes wide[2] = {load(x + 32 * b), load(x + 32 * b + 16)};
        const float top = largest_of(wide), d = top / 127.0f;
        if (d < SMALLEST && d > 0) // 1 / d may be too large: both are made larger, which is exact
            for (Lanes &v : wide) v = multiply(v, broadcast(0x1p64f));
        const float inverse = d >= SMALLEST ? 1.0f / d : d > 0 ? 1.0f / (d * 0x1p64f) : 0.0f;
        round_block(wide, inverse, codes + 32 * b, raised ? raised + 32 * b : nullptr, halves + 2 * b);
        scales[b] = d + (top - top); // NaN if a number of the block is not finite, which codes cannot tell
        sums[b] = halves[2 * b] + halves[2 * b + 1];
        weighted[b] = scales[b] * static_cast<float>(sums[b]);
    }
}

} // namespace

bool quantise(const void *x, int32_t type, int64_t tokens, int64_t k, int64_t stride, Activations &out) {
    const int64_t count = tokens * (k / 32);
    // one piece of scratch for all: codes of a block count as 8 floats
    float *scales = scratch_of<float>(SLOT_CODES, count * 21 + 16);
    float *weighted = scales + count;
    int32_t *sums = reinterpret_cast<int32_t *>(weighted + count), *halves = sums + count;
    int8_t *codes = reinterpret_cast<int8_t *>(halves + 2 * count);
    out = {codes, scales, weighted, sums, halves, nullptr, tokens, k};
#if defined(SIGNED_CODES)
    if (tokens > MANY) out.raised = reinterpret_cast<uint8_t *>(codes) + tokens * k;
#endif
    return with_type(type, [&](auto *tag) {
        const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(x));
        const int64_t step = 1 + 16384 / (k + 1), tasks = (tokens + step - 1) / step; // some microseconds each
        parallel(tasks, static_cast<double>(tokens) * static_cast<double>(k) / 4, [&](int64_t task) {
            const int64_t stop = (task + 1) * step < tokens ? (task + 1) * step : tokens;
            for (int64_t t = task * step; t < stop; t++) quantise_row(from + t * stride, k, t, out);
        });
    });
}
