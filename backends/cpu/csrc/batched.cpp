// batched_linear in float32. As stored, a head is a product of `linear`. Transposed, an output element is the sum over
// the rows of the weight in ascending order, one fused multiply-add each: the same with any number of tokens or threads.
#include "batched.h"
#include "linear.h"
#include "threads.h"

namespace {

constexpr int64_t FEW = 4;         // tokens that are summed while rows are decoded
constexpr int64_t TOKEN_TILE = 4;  // tokens in registers, times 64 values
constexpr int64_t TOKEN_TASK = 64; // tokens of a task

// Calls body(part, row) for rows first .. first + count - 1, in ascending order.
template <class Body> void each_weight_row(const Part *parts, int64_t first, int64_t count, Body body) {
    while (first >= parts->rows) first -= (parts++)->rows;
    for (int64_t i = 0; i < count; i++, first++) {
        while (first >= parts->rows) first -= (parts++)->rows;
        body(*parts, parts->data + first * parts->row_bytes, i);
    }
}

// sums [count, padded] += x [count, columns] times a decoded panel [columns, padded], for T tokens and C lanes.
template <int T, int C>
INLINE void multiply_tile(const float *x, int64_t columns, const float *panel, int64_t padded, float *sums) {
    Lanes total[T][C];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int i = 0; i < C; i++) total[t][i] = zero();
    for (int64_t c = 0; c < columns; c++) {
        Lanes w[C];
#pragma GCC unroll 4
        for (int i = 0; i < C; i++) w[i] = in_register(load(panel + c * padded + 16 * i));
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const Lanes a = broadcast(x[t * columns + c]);
#pragma GCC unroll 4
            for (int i = 0; i < C; i++) total[t][i] = fma(a, w[i], total[t][i]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int i = 0; i < C; i++) store(sums + t * padded + 16 * i, total[t][i]);
}

template <int T> void multiply_tiles(const float *x, int64_t columns, const float *panel, int64_t padded, float *sums) {
    int64_t at = 0;
    for (; at + 64 <= padded; at += 64) multiply_tile<T, 4>(x, columns, panel + at, padded, sums + at);
    for (; at < padded; at += 16) multiply_tile<T, 1>(x, columns, panel + at, padded, sums + at);
}

// Tokens first .. first + count - 1 of one head.
void multiply_transposed(const BatchedCall &c, int64_t head, int64_t first, int64_t count) {
    const int64_t padded = (c.rows + 15) / 16 * 16;
    float *x = scratch_of<float>(SLOT_INPUT, count * c.columns), *sums = scratch_of<float>(SLOT_PARTIAL, count * padded);
    with_type(c.type, [&](auto *tag) {
        const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(c.x)) + head * c.head_stride;
        for (int64_t t = 0; t < count; t++)
            for (int64_t i = 0; i < c.columns; i++)
                x[t * c.columns + i] = to_float(from[(first + t) * c.token_stride + i]);
    });
    float *panel = scratch_of<float>(SLOT_PANEL, (count <= FEW ? 1 : c.columns) * padded);
    if (count <= FEW) std::memset(sums, 0, sizeof(float) * static_cast<size_t>(count * padded));
    each_weight_row(c.parts, head * c.columns, c.columns, [&](const Part &part, const uint8_t *row, int64_t i) {
        float *values = count <= FEW ? panel : panel + i * padded;
        with_scheme(part.scheme, [&](auto s) { unpack_row(s, row, c.rows, values); });
        if (count > FEW) return;
        for (int64_t t = 0; t < count; t++) {
            const Lanes a = broadcast(x[t * c.columns + i]);
            float *to = sums + t * padded;
            for (int64_t d = 0; d < padded; d += 16) store(to + d, fma(a, load(values + d), load(to + d)));
        }
    });
    if (count > FEW) {
        int64_t t = 0;
        for (; t + TOKEN_TILE <= count; t += TOKEN_TILE)
            multiply_tiles<TOKEN_TILE>(x + t * c.columns, c.columns, panel, padded, sums + t * padded);
        for (; t < count; t++) multiply_tiles<1>(x + t * c.columns, c.columns, panel, padded, sums + t * padded);
    }
    with_type(c.type, [&](auto *tag) {
        auto *to = static_cast<decltype(+tag)>(c.y) + head * c.rows;
        for (int64_t t = 0; t < count; t++)
            for (int64_t i = 0; i < c.rows; i++) assign(to[(first + t) * c.heads * c.rows + i], sums[t * padded + i]);
    });
}

// One head with its weight as stored.
void multiply_head(const BatchedCall &c, int64_t head) {
    const int64_t bytes = value_bytes(c.type);
    const Part *parts = c.parts;
    int64_t first = head * c.rows;
    while (first >= parts->rows) first -= (parts++)->rows;
    const char *x = static_cast<const char *>(c.x) + head * c.head_stride * bytes;
    for (int64_t at = 0; at < c.rows; parts++, first = 0) {
        Part part = *parts;
        part.data += first * part.row_bytes;
        part.rows = part.rows - first < c.rows - at ? part.rows - first : c.rows - at;
        multiply_weight(x, c.type, c.tokens, c.columns, c.token_stride, &part, 1, nullptr, 0,
                        static_cast<char *>(c.y) + (head * c.rows + at) * bytes, c.heads * c.rows);
        at += part.rows;
    }
}

} // namespace

int64_t multiply_heads(const BatchedCall &call) {
    if (!with_type(call.type, [](auto *) {})) return -1;
    const Part *part = call.parts;
    for (int64_t left = call.heads * (call.transposed ? call.columns : call.rows); left > 0; left -= (part++)->rows)
        if (!with_scheme(part->scheme, [](auto) {})) return -1;
    const double values = static_cast<double>(call.heads * call.columns) * static_cast<double>(call.rows);
    const double nanoseconds = values * (0.1 + static_cast<double>(call.tokens) / 40);
    if (!call.transposed) {
        parallel(call.heads, nanoseconds, [&](int64_t head) { multiply_head(call, head); });
        return 0;
    }
    const int64_t blocks = (call.tokens + TOKEN_TASK - 1) / TOKEN_TASK;
    parallel(call.heads * blocks, nanoseconds, [&](int64_t task) {
        const int64_t first = task % blocks * TOKEN_TASK, left = call.tokens - first;
        multiply_transposed(call, task / blocks, first, left < TOKEN_TASK ? left : TOKEN_TASK);
    });
    return 0;
}

int64_t batched_command(Arguments a) {
    BatchedCall c{a.at<void>(0), a.at<Part>(1), a.at<void>(2)};
    int64_t *const sizes[] = {&c.tokens, &c.heads, &c.columns, &c.rows, &c.token_stride, &c.head_stride};
    for (int i = 0; i < 6; i++) *sizes[i] = a.number(3 + i);
    c.type = a.code(9);
    c.transposed = a.code(10);
    return multiply_heads(c);
}

// As `multiply_heads`, from Python.
extern "C" __attribute__((visibility("default"))) int64_t xh_batched_linear(const BatchedCall *call) {
    return multiply_heads(*call);
}
