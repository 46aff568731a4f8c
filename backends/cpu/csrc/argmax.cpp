// The index of the largest value of each row; the lowest one on ties, and the first NaN before any number.
#include "kernels.h"
#include "lanes.h"
#include "threads.h"

namespace {

constexpr int64_t PIECE = 16384; // values that one task looks through

struct Best {
    float value;
    int64_t index;
};

// Whether `a` at an earlier index stays the best when `b` comes behind it.
inline bool stays(float a, float b) { return !(b > a) && (a != a || b == b); }

Best best_of(const float *x, int64_t count) {
    int64_t i = 0;
    Best best{x[0], 0};
#if defined(LANES_AVX512)
    if (count >= 64) {
        // the largest value first, then where it is: a plain maximum of vectors has no index to carry
        __m512 top[4];
        for (int v = 0; v < 4; v++) top[v] = _mm512_loadu_ps(x + 16 * v);
        __mmask16 nan = 0;
        for (i = 0; i + 64 <= count; i += 64)
            for (int v = 0; v < 4; v++) {
                const __m512 a = _mm512_loadu_ps(x + i + 16 * v);
                nan |= _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
                top[v] = _mm512_max_ps(top[v], a);
            }
        const float most =
            _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3])));
        const int64_t stop = i;
        for (i = 0; i < stop; i += 16) {
            const __m512 a = _mm512_loadu_ps(x + i);
            const __mmask16 found = nan ? _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q)
                                        : _mm512_cmp_ps_mask(a, _mm512_set1_ps(most), _CMP_EQ_OQ);
            if (found) {
                best.index = i + __builtin_ctz(found);
                break;
            }
        }
        best.value = x[best.index];
        i = stop;
    }
#endif
    for (; i < count; i++)
        if (!stays(best.value, x[i])) best = {x[i], i};
    return best;
}

} // namespace

// x float32 [rows, columns], rows `stride` values apart; y int32 [rows].
extern "C" __attribute__((visibility("default"))) void xh_argmax(const float *x, int64_t rows, int64_t columns,
                                                                 int64_t stride, int32_t *y) {
    const int64_t pieces = (columns + PIECE - 1) / PIECE;
    Best *found = scratch_of<Best>(SLOT_STATE, rows * pieces);
    parallel(rows * pieces, static_cast<double>(rows * columns) / 16, [&](int64_t task) {
        const int64_t first = task % pieces * PIECE, left = columns - first;
        Best best = best_of(x + task / pieces * stride + first, left < PIECE ? left : PIECE);
        best.index += first;
        found[task] = best;
    });
    for (int64_t r = 0; r < rows; r++) {
        Best best = found[r * pieces];
        for (int64_t p = 1; p < pieces; p++)
            if (!stays(best.value, found[r * pieces + p].value)) best = found[r * pieces + p];
        y[r] = static_cast<int32_t>(best.index);
    }
}
