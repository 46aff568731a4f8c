// The softmax of one chunk of logits, and how chunks are joined.
#pragma once
#include "exponential.h"
#include "lanes.h"
#include <limits>

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// Softmax state of a query: largest logit, and sum of weights relative to it.
struct State {
    float top, sum;
};

constexpr State NEW{NOTHING, -1}; // of a query that has seen no chunk

typedef int32_t Integers __attribute__((vector_size(WIDTH * 4)));

#define EACH_VECTOR _Pragma("GCC unroll 4") for (int i = 0; i < VECTORS; i++)

// `a` where lanes of `mask` are set, else `b`.
INLINE Vector select(Integers mask, Vector a, Vector b) { return (Vector)((mask & (Integers)a) | (~mask & (Integers)b)); }

// The larger one; `old` where `x` is NaN.
INLINE Lanes larger(Lanes x, Lanes old) {
#if defined(LANES_AVX512)
    return {{_mm512_max_ps(x.v[0], old.v[0])}};
#elif defined(LANES_AVX2)
    return {{_mm256_max_ps(x.v[0], old.v[0]), _mm256_max_ps(x.v[1], old.v[1])}};
#else
    EACH_VECTOR x.v[i] = select(x.v[i] > old.v[i], x.v[i], old.v[i]);
    return x;
#endif
}

// x where base + lane is in first .. last - 1, else minus infinity.
INLINE Lanes visible(Lanes x, int64_t base, int64_t first, int64_t last) {
#if defined(LANES_AVX512)
    auto below = [&](int64_t n) { return n <= base ? 0u : n >= base + 16 ? 0xffffu : (1u << (n - base)) - 1; };
    const __mmask16 mask = static_cast<__mmask16>(below(last) & ~below(first));
    return {{_mm512_mask_mov_ps(_mm512_set1_ps(NOTHING), mask, x.v[0])}};
#else
    if (first <= base && base + 16 <= last) return x;
    float wide[16];
    store(wide, x);
    for (int l = 0; l < 16; l++) wide[l] = base + l >= first && base + l < last ? wide[l] : NOTHING;
    return load(wide);
#endif
}

INLINE float largest(Lanes a) {
#if defined(LANES_AVX512)
    return _mm512_reduce_max_ps(a.v[0]);
#else
    float x[16];
    store(x, a);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i + half] > x[i] ? x[i + half] : x[i];
    return x[0];
#endif
}

// `exp_negative` of sixteen values.
INLINE Lanes exp_negative(Lanes x) {
    const Vector shift = spread(0x1.8p23f), log2e = spread(0x1.715476p0f), lowest = spread(-104.0f);
    const Vector high = spread(-0x1.62ep-1f), low = spread(-0x1.0bfbe8p-15f);
    EACH_VECTOR {
#if defined(LANES_AVX512)
        const Vector t = _mm512_max_ps(lowest, x.v[i]); // NaN stays
#else
        const Vector t = select(x.v[i] < lowest, lowest, x.v[i]);
#endif
        const Vector shifted = fused(t, log2e, shift), n = shifted - shift;
        const Vector r = fused(n, low, fused(n, high, t));
        Vector p = spread(1.0f / 5040);
        p = fused(p, r, spread(1.0f / 720));
        p = fused(p, r, spread(1.0f / 120));
        p = fused(p, r, spread(1.0f / 24));
        p = fused(p, r, spread(1.0f / 6));
        p = fused(p, r, spread(0.5f));
        p = fused(p * r, r, r) + spread(1.0f);
#if defined(LANES_AVX512)
        x.v[i] = _mm512_scalef_ps(p, n);
#else
        const Integers whole = (Integers)shifted - (Integers)shift, first = whole >> 1;
        const Vector y = p * (Vector)((first + 127) << 23) * (Vector)((whole - first + 127) << 23);
        const Integers nan = (Integers)(p != p);
        x.v[i] = select(nan, p, select((Integers)(x.v[i] < lowest), spread(0.0f), y));
#endif
    }
    return x;
}

#undef EACH_VECTOR

// Turns logits [groups * 16] of one query into weights; those outside first .. last - 1 weigh 0.
INLINE State weigh(float scale, double softcap, int64_t first, int64_t last, int64_t groups, float *logits) {
    Lanes tops = broadcast(NOTHING);
    for (int64_t j = 0; j < 16 * groups; j += 16) {
        Lanes x = multiply(load(logits + j), broadcast(scale));
        if (softcap > 0) {
            store(logits + j, x);
            for (int l = 0; l < 16; l++)
                logits[j + l] = static_cast<float>(softcap * tanh_double(logits[j + l] / softcap));
            x = load(logits + j);
        }
        x = visible(x, j, first, last);
        tops = larger(x, tops);
        store(logits + j, x);
    }
    State state{largest(tops), 0};
    const Lanes shift = broadcast(state.top == NOTHING ? 0 : -state.top);
    Lanes weights[4] = {zero(), zero(), zero(), zero()};
    for (int64_t g = 0; g < groups; g++) {
        weights[g] = exp_negative(add(load(logits + 16 * g), shift));
        store(logits + 16 * g, weights[g]);
    }
    state.sum = sum(add(add(weights[0], weights[1]), add(weights[2], weights[3])));
    return state;
}

// Adds a chunk to the state of a query; the values of a new one need not be initialised.
INLINE void join(State &state, float *values, const State &chunk, const float *chunk_values, int64_t width) {
    if (state.sum == NEW.sum) {
        state = chunk;
        for (int64_t d = 0; d < width; d += 16) store(values + d, load(chunk_values + d));
        return;
    }
    const bool rises = chunk.top > state.top;
    const float e = chunk.top == state.top ? 1.0f
                                           : exp_negative(rises ? state.top - chunk.top : chunk.top - state.top);
    const float a = rises ? e : 1.0f, b = rises ? 1.0f : e;
    state.top = rises ? chunk.top : state.top;
    state.sum = multiply_add(state.sum, a, chunk.sum * b);
    const Lanes wide_a = broadcast(a), wide_b = broadcast(b);
    for (int64_t d = 0; d < width; d += 16)
        store(values + d, fma(load(values + d), wide_a, multiply(load(chunk_values + d), wide_b)));
}
