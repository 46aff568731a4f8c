// y = x W^T + bias with packed or dense rows of W, in float32: every output element is sixteen partial sums over
// ascending k (lane l takes k = l, l + 16, ...) added by the tree of `sum`, whatever the number of tokens, the split
// of the rows or the threads. Few tokens: blocks are decoded and multiplied in registers; more tokens share a panel of
// decoded rows.
#include "kernels.h"
#include "linear.h"
#include "threads.h"

namespace {

// Outputs that are accumulated in registers at the same time.
#if defined(LANES_AVX512)
constexpr int TILE_TOKENS = 4, TILE_ROWS = 6, DOT_SUMS = 16;
#elif defined(LANES_AVX2)
constexpr int TILE_TOKENS = 2, TILE_ROWS = 3, DOT_SUMS = 4;
#elif defined(__aarch64__)
constexpr int TILE_TOKENS = 2, TILE_ROWS = 2, DOT_SUMS = 4;
#else
constexpr int TILE_TOKENS = 1, TILE_ROWS = 2, DOT_SUMS = 2;
#endif
constexpr int FEW_TOKENS = 4; // up to here blocks are decoded in registers for each use
constexpr int dot_rows_for(int tokens) {
    return DOT_SUMS / tokens > 4 ? 4 : DOT_SUMS / tokens > 0 ? DOT_SUMS / tokens : 1;
}
constexpr int64_t TOKEN_BLOCK = 512;       // tokens converted to float32 at a time
constexpr int64_t PANEL_BYTES = 48 * 1024; // decoded rows, to stay in the first or second cache level
constexpr int64_t PANEL_ROWS = 48;

struct Output {
    void *y;
    const void *bias;
    int64_t stride;
    int32_t type, bias_type;
};

// Rounds sums[r * ld + t] + bias to row `row + r` of token `token + t`.
void store_sums(const Output &out, int64_t token, int64_t tokens, int64_t row, int64_t rows, const float *sums,
                int64_t ld) {
    float bias[PANEL_ROWS] = {};
    if (out.bias)
        with_type(out.bias_type, [&](auto *tag) {
            const auto *b = static_cast<const decltype(+tag)>(const_cast<void *>(out.bias));
            for (int64_t r = 0; r < rows; r++) bias[r] = to_float(b[row + r]);
        });
    with_type(out.type, [&](auto *tag) {
        for (int64_t t = 0; t < tokens; t++) {
            auto *y = static_cast<decltype(+tag)>(out.y) + (token + t) * out.stride + row;
            for (int64_t r = 0; r < rows; r++) assign(y[r], out.bias ? sums[r * ld + t] + bias[r] : sums[r * ld + t]);
        }
    });
}

// Sums of R rows by T tokens into out[r * T + t], decoding each block in registers.
template <int R, int T, class S>
INLINE void dot_rows(S, const uint8_t *w, int64_t row_bytes, const float *x, int64_t ldx, int64_t k, float *out) {
    Lanes sums[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) sums[r][t] = zero();
    const int64_t group = R * row_bytes;
    const uint8_t *ahead = w + (group > PREFETCH_BYTES ? group : PREFETCH_BYTES);
    for (int64_t at = 0; at < k; at += S::values, w += S::bytes, ahead += R * S::bytes) {
#pragma GCC unroll 16
        for (int line = 0; line < R * S::bytes; line += 64) __builtin_prefetch(ahead + line);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            decode(S{}, w + r * row_bytes, [&](int i, Lanes v) __attribute__((always_inline)) {
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) sums[r][t] = fma(v, load(x + t * ldx + at + 16 * i), sums[r][t]);
            });
    }
    if (R == 4) {
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            float four[4];
            sum4(sums[0][t], sums[1 % R][t], sums[2 % R][t], sums[3 % R][t], four);
            for (int r = 0; r < R; r++) out[r * T + t] = four[r];
        }
        return;
    }
    for (int r = 0; r < R; r++)
        for (int t = 0; t < T; t++) out[r * T + t] = sum(sums[r][t]);
}

template <int T> void multiply_tile(const float *x, int64_t ldx, const float *const *rows, int64_t k, float *out) {
    Lanes sums[TILE_ROWS][T];
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) sums[r][t] = zero();
    const float *w[TILE_ROWS];
    for (int r = 0; r < TILE_ROWS; r++) w[r] = rows[r];
    for (int64_t at = 0; at < k; at += 16) {
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) {
            Vector tokens[T];
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) tokens[t] = kept(load_vector(x + t * ldx + at + i * WIDTH));
#pragma GCC unroll 8
            for (int r = 0; r < TILE_ROWS; r++) {
                const Vector v = kept(load_vector(w[r] + at + i * WIDTH));
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) sums[r][t].v[i] = fused(v, tokens[t], sums[r][t].v[i]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++) {
        if (T == 4)
            sum4(sums[r][0], sums[r][1 % T], sums[r][2 % T], sums[r][3 % T], out + r * TILE_TOKENS);
        else
            for (int t = 0; t < T; t++) out[r * TILE_TOKENS + t] = sum(sums[r][t]);
    }
}

void multiply_tile(int tokens, const float *x, int64_t ldx, const float *const *rows, int64_t k, float *out) {
    switch (tokens) {
    case 1: return multiply_tile<1>(x, ldx, rows, k, out);
    case 2: return multiply_tile < TILE_TOKENS<2 ? TILE_TOKENS : 2>(x, ldx, rows, k, out);
    case 3: return multiply_tile < TILE_TOKENS<3 ? TILE_TOKENS : 3>(x, ldx, rows, k, out);
    case 4: return multiply_tile < TILE_TOKENS<4 ? TILE_TOKENS : 4>(x, ldx, rows, k, out);
    }
}

// Activations as float32 with rows of `padded` values, zero beyond k.
struct Input {
    const float *x;
    int64_t stride, tokens, k, padded;
};

template <int T, class S>
void few_tokens(S, const Part &part, const Input &in, int64_t first, int64_t count, int64_t row, const Output &out) {
    constexpr int R = dot_rows_for(T);
    float sums[R * T];
    int64_t r = 0;
    for (; r + R <= count; r += R) {
        const uint8_t *w = part.data + (first + r) * part.row_bytes;
        dot_rows<R, T>(S{}, w, part.row_bytes, in.x, in.stride, in.k, sums);
        store_sums(out, 0, T, row + r, R, sums, T);
    }
    for (; r < count; r++) {
        dot_rows<1, T>(S{}, part.data + (first + r) * part.row_bytes, part.row_bytes, in.x, in.stride, in.k, sums);
        store_sums(out, 0, T, row + r, 1, sums, T);
    }
}

template <class S>
void unpack_panel(S, const Part &part, int64_t first, int64_t count, int64_t k, int64_t padded, float *panel) {
    for (int64_t r = 0; r < count; r++)
        unpack_row(S{}, part.data + (first + r) * part.row_bytes, k, panel + r * padded);
}

void many_tokens(const Part &part, const Input &in, int64_t first, int64_t count, int64_t token0, int64_t row,
                 const Output &out) {
    float *panel = scratch_of<float>(SLOT_PANEL, count * in.padded);
    with_scheme(part.scheme, [&](auto s) { unpack_panel(s, part, first, count, in.k, in.padded, panel); });
    float sums[TILE_ROWS * TILE_TOKENS];
    const float *rows[TILE_ROWS];
    for (int64_t t = 0; t < in.tokens; t += TILE_TOKENS) {
        const int64_t tokens = in.tokens - t < TILE_TOKENS ? in.tokens - t : TILE_TOKENS;
        for (int64_t r = 0; r < count; r += TILE_ROWS) {
            const int64_t kept = count - r < TILE_ROWS ? count - r : TILE_ROWS;
            for (int64_t i = 0; i < TILE_ROWS; i++) rows[i] = panel + (r + (i < kept ? i : 0)) * in.padded;
            multiply_tile(static_cast<int>(tokens), in.x + t * in.stride, in.stride, rows, in.padded, sums);
            store_sums(out, token0 + t, tokens, row + r, kept, sums, TILE_TOKENS);
        }
    }
}

// Rows a task takes: few enough for the cache and for an even split.
int64_t task_rows(int64_t rows, const Input &in, bool few) {
    const int64_t unit = few ? dot_rows_for(1) : TILE_ROWS, share = rows / (4 * thread_count());
    const int64_t cached = few ? 256 : PANEL_BYTES / (4 * in.padded);
    const int64_t limit = few || cached < PANEL_ROWS ? cached : PANEL_ROWS;
    const int64_t wanted = (share < limit ? share : limit) / unit * unit;
    return wanted < unit ? unit : wanted;
}

void multiply_block(const Part *parts, int32_t part_count, const Input &in, int64_t token0, int64_t rows,
                    const Output &out) {
    const bool few = in.tokens <= FEW_TOKENS && in.padded == in.k;
    const int64_t step = task_rows(rows, in, few);
    int64_t tasks = 0;
    for (int32_t p = 0; p < part_count; p++) tasks += (parts[p].rows + step - 1) / step;
    const double weights = static_cast<double>(rows) * static_cast<double>(in.k);
    parallel(tasks, weights * (0.1 + static_cast<double>(in.tokens) / 64), [&](int64_t task) {
        int64_t row = 0;
        for (int32_t p = 0; p < part_count; row += parts[p++].rows) {
            const int64_t here = (parts[p].rows + step - 1) / step;
            if (task >= here) {
                task -= here;
                continue;
            }
            const int64_t first = task * step, left = parts[p].rows - first, count = left < step ? left : step;
            if (!few) return many_tokens(parts[p], in, first, count, token0, row + first, out);
            with_scheme(parts[p].scheme, [&](auto s) {
                switch (in.tokens) {
                case 1: return few_tokens<1>(s, parts[p], in, first, count, row + first, out);
                case 2: return few_tokens<2>(s, parts[p], in, first, count, row + first, out);
                case 3: return few_tokens<3>(s, parts[p], in, first, count, row + first, out);
                case 4: return few_tokens<4>(s, parts[p], in, first, count, row + first, out);
                }
            });
            return;
        }
    });
}

template <class T> void convert_rows(const T *x, int64_t stride, int64_t tokens, int64_t k, int64_t padded, float *y) {
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < k; i++) y[t * padded + i] = to_float(x[t * stride + i]);
        for (int64_t i = k; i < padded; i++) y[t * padded + i] = 0;
    }
}

} // namespace

int32_t multiply_weight(const void *x, int32_t x_type, int64_t tokens, int64_t k, int64_t x_stride, const Part *parts,
                        int32_t part_count, const void *bias, int32_t bias_type, void *y, int64_t y_stride) {
    int64_t rows = 0;
    for (int32_t p = 0; p < part_count; p++) {
        if (!with_scheme(parts[p].scheme, [](auto) {})) return -1;
        rows += parts[p].rows;
    }
    const Output out{y, bias, y_stride, x_type, bias_type};
    const int64_t padded = (k + 15) / 16 * 16;
    if (x_type == FLOAT32 && padded == k) {
        multiply_block(parts, part_count, {static_cast<const float *>(x), x_stride, tokens, k, padded}, 0, rows, out);
        return 0;
    }
    const int64_t block = tokens < TOKEN_BLOCK ? tokens : TOKEN_BLOCK;
    float *wide = scratch_of<float>(SLOT_INPUT, block * padded);
    bool known = true;
    for (int64_t t = 0; known && t < tokens; t += block) {
        const int64_t count = tokens - t < block ? tokens - t : block;
        known = with_type(x_type, [&](auto *tag) {
            const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(x)) + t * x_stride;
            convert_rows(from, x_stride, count, k, padded, wide);
        });
        if (known) multiply_block(parts, part_count, {wide, padded, count, k, padded}, t, rows, out);
    }
    return known ? 0 : -1;
}

// As `multiply_weight`, with y [tokens, rows] contiguous.
extern "C" __attribute__((visibility("default"))) int32_t xh_linear(const void *x, int32_t x_type, int64_t tokens,
                                                                    int64_t k, int64_t x_stride, const Part *parts,
                                                                    int32_t part_count, const void *bias,
                                                                    int32_t bias_type, void *y) {
    int64_t rows = 0;
    for (int32_t p = 0; p < part_count; p++) rows += parts[p].rows;
    return multiply_weight(x, x_type, tokens, k, x_stride, parts, part_count, bias, bias_type, y, rows);
}
