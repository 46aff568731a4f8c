// Quantisation of activations: d = max |x| / 127, code = x / d to the nearest integer, ties to even, per block of 32.
#include "activations.h"
#include "codes.h"
#include "threads.h"
#include <cmath>

namespace {

#if defined(LANES_AVX512)

// Codes of a block by multiplication with `inverse`, and the sums of their halves.
void round_block(const float *x, float inverse, int8_t *codes, int32_t *sums) {
    for (int h = 0; h < 2; h++) {
        const __m512i wide = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(inverse)));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(codes + 16 * h), _mm512_cvtsepi32_epi8(wide));
        sums[h] = _mm512_reduce_add_epi32(wide);
    }
}

float largest_of(const float *x) {
    const __m512 a = _mm512_abs_ps(_mm512_loadu_ps(x)), b = _mm512_abs_ps(_mm512_loadu_ps(x + 16));
    return _mm512_reduce_max_ps(_mm512_max_ps(a, b));
}

#else

void round_block(const float *x, float inverse, int8_t *codes, int32_t *sums) {
    for (int h = 0; h < 2; h++) {
        int32_t sum = 0;
        for (int i = 16 * h; i < 16 * h + 16; i++) {
            const int32_t q = static_cast<int32_t>(std::nearbyint(x[i] * inverse));
            codes[i] = static_cast<int8_t>(q);
            sum += q;
        }
        sums[h] = sum;
    }
}

float largest_of(const float *x) {
    float top[16];
    for (int i = 0; i < 16; i++) {
        const float a = std::fabs(x[i]), b = std::fabs(x[16 + i]);
        top[i] = a > b ? a : b;
    }
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) top[i] = top[i] > top[i + half] ? top[i] : top[i + half];
    return top[0];
}

#endif

template <class T>
void quantise_row(const T *x, int64_t k, int8_t *codes, float *scales, int32_t *sums) {
    for (int64_t b = 0; b < k / 32; b++) {
        float wide[32];
        for (int i = 0; i < 32; i++) wide[i] = to_float(x[32 * b + i]);
        const float d = largest_of(wide) / 127.0f;
        scales[b] = d;
        round_block(wide, d > 0 ? 1.0f / d : 0.0f, codes + 32 * b, sums + 2 * b);
    }
}

} // namespace

bool quantise(const void *x, int32_t type, int64_t tokens, int64_t k, int64_t stride, Activations &out) {
    const int64_t blocks = k / 32;
    // one piece of scratch for all three; codes of a block count as 8 floats, its scale and sums as 3
    float *scales = scratch_of<float>(SLOT_CODES, tokens * blocks * 11 + 16);
    int32_t *sums = reinterpret_cast<int32_t *>(scales + tokens * blocks);
    int8_t *codes = reinterpret_cast<int8_t *>(sums + 2 * tokens * blocks);
    out = {codes, scales, sums, tokens, k};
    return with_type(type, [&](auto *tag) {
        const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(x));
        parallel(tokens, static_cast<double>(tokens) * static_cast<double>(k) / 8, [&](int64_t t) {
            quantise_row(from + t * stride, k, codes + t * k, scales + t * blocks, sums + 2 * t * blocks);
        });
    });
}
