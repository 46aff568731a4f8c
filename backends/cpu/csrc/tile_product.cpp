// y = x W^T + bias of int8 activations and tiled weights. Integer sums over a block are exact; blocks are added in
// float32 in ascending k, one after another: a row has the same bits with any number of tokens, threads or weights.
#include "activations.h"
#include "threads.h"
#include "tile_product.h"

namespace {

constexpr int64_t AHEAD = 2304;     // bytes to fetch ahead of use
constexpr int64_t PANEL_BLOCKS = 16; // blocks of k that are unpacked at a time, to stay in the first cache level
#if defined(LANES_AVX512)
constexpr int TOKENS = 6; // tokens in registers at the same time, times two tiles
#else
constexpr int TOKENS = 2;
#endif

template <class F> INLINE int32_t offset(const int32_t *sums, int part) {
    constexpr int zero = F::bits == 8 ? WIDE_ZERO : F::zero;
    return -zero * (F::parts == 1 ? sums[0] + sums[1] : sums[part]);
}

// Rounds the sums of `rows` rows and adds the bias.
void store_row(const TileJob &job, int64_t token, int64_t row, int64_t rows, const float *sums) {
    float out[TILE];
    for (int64_t r = 0; r < rows; r++) out[r] = sums[r];
    if (job.bias)
        with_type(job.bias_type, [&](auto *tag) {
            const auto *b = static_cast<decltype(+tag)>(const_cast<void *>(job.bias)) + row;
            for (int64_t r = 0; r < rows; r++) out[r] += to_float(b[r]);
        });
    with_type(job.type, [&](auto *tag) {
        auto *y = static_cast<decltype(+tag)>(job.y) + token * job.stride + row;
        for (int64_t r = 0; r < rows; r++) assign(y[r], out[r]);
    });
}

// One token: codes are multiplied as they are unpacked.
template <class F> void one_token(F, const uint8_t *tiles, const Activations &x, float *out) {
    Walk<F> w(tiles);
    Lanes total = zero();
    const int32_t *a = reinterpret_cast<const int32_t *>(x.codes);
    for (int64_t b = 0; b < x.k / BLOCK; b++, a += 8, w.step()) {
        w.start(b);
UNROLL_16
        for (int line = 0; line < F::bytes; line += 64) __builtin_prefetch(w.at + AHEAD + line);
        Ints sums[2] = {ints(offset<F>(x.sums + 2 * b, 0)), ints(F::parts == 2 ? offset<F>(x.sums + 2 * b, 1) : 0)};
        each_codes<F::bits>(w.at, [&](int j, Codes c) __attribute__((always_inline)) {
            Ints &s = F::parts == 2 ? sums[j / 4] : sums[j % 2];
            s = dot<F::bits == 8>(s, c, a[j]);
        });
        const auto scales = F::scales(w.at, w.head);
        const Lanes d = broadcast(x.scales[b]);
        if (F::parts == 2) {
            total = fma(to_lanes(sums[0]), multiply(scales.scale[0], d), total);
            total = fma(to_lanes(sums[1]), multiply(scales.scale[F::parts - 1], d), total);
        } else
            total = fma(to_lanes(add(sums[0], sums[1])), multiply(scales.scale[0], d), total);
        if (F::minimum) {
            const int32_t sum = x.sums[2 * b] + x.sums[2 * b + 1];
            total = fma(scales.minimum, broadcast(x.scales[b] * static_cast<float>(sum)), total);
        }
    }
    store(out, total);
}

// Unpacked blocks of one tile row.
template <int PARTS> struct Panel {
    alignas(64) uint8_t codes[PANEL_BLOCKS * 512];
    alignas(64) float scales[PANEL_BLOCKS][PARTS][TILE], minimums[PANEL_BLOCKS][TILE];
};

template <class F> void unpack(Walk<F> &w, int64_t first, int64_t count, Panel<F::parts> &panel) {
    for (int64_t b = 0; b < count; b++, w.step()) {
        w.start(first + b);
UNROLL_16
        for (int line = 0; line < F::bytes; line += 64) __builtin_prefetch(w.at + 2 * AHEAD + line);
        each_codes<F::bits>(w.at, [&](int j, Codes c) __attribute__((always_inline)) {
            store_codes(panel.codes + 512 * b + 64 * j, c);
        });
        const auto scales = F::scales(w.at, w.head);
UNROLL_2
        for (int part = 0; part < F::parts; part++) store(panel.scales[b][part], scales.scale[part]);
        if (F::minimum) store(panel.minimums[b], scales.minimum);
    }
}

// T tokens times N tiles over the blocks of a panel; sums[t][n] continue in `totals`, rows of N * 16.
template <class F, int T, int N>
void multiply_panel(const Panel<F::parts> *panels, const Activations &x, int64_t token, int64_t first, int64_t count,
                    float *totals) {
    const int64_t blocks = x.k / BLOCK;
    Lanes total[T][N];
UNROLL_8
    for (int t = 0; t < T; t++)
UNROLL_2
        for (int n = 0; n < N; n++) total[t][n] = first ? load(totals + (t * N + n) * TILE) : zero();
    for (int64_t b = 0; b < count; b++) {
UNROLL_2
        for (int part = 0; part < F::parts; part++) {
            Ints sums[T][N];
UNROLL_8
            for (int t = 0; t < T; t++)
UNROLL_2
                for (int n = 0; n < N; n++)
                    sums[t][n] = ints(offset<F>(x.sums + 2 * ((token + t) * blocks + first + b), part));
UNROLL_8
            for (int j = part * 8 / F::parts; j < (part + 1) * 8 / F::parts; j++) {
                Codes c[N];
UNROLL_2
                for (int n = 0; n < N; n++) c[n] = load_codes(panels[n].codes + 512 * b + 64 * j);
UNROLL_8
                for (int t = 0; t < T; t++) {
                    int32_t four;
                    std::memcpy(&four, x.codes + (token + t) * x.k + BLOCK * (first + b) + 4 * j, 4);
UNROLL_2
                    for (int n = 0; n < N; n++) sums[t][n] = dot<F::bits == 8>(sums[t][n], c[n], four);
                }
            }
            Lanes scale[N];
UNROLL_2
            for (int n = 0; n < N; n++) scale[n] = load(panels[n].scales[b][part]);
UNROLL_8
            for (int t = 0; t < T; t++) {
                const Lanes d = broadcast(x.scales[(token + t) * blocks + first + b]);
UNROLL_2
                for (int n = 0; n < N; n++)
                    total[t][n] = fma(to_lanes(sums[t][n]), multiply(scale[n], d), total[t][n]);
            }
        }
        if (F::minimum) {
UNROLL_8
            for (int t = 0; t < T; t++) {
                const int64_t at = (token + t) * blocks + first + b;
                const Lanes s = broadcast(x.scales[at] * static_cast<float>(x.sums[2 * at] + x.sums[2 * at + 1]));
UNROLL_2
                for (int n = 0; n < N; n++) total[t][n] = fma(load(panels[n].minimums[b]), s, total[t][n]);
            }
        }
    }
UNROLL_8
    for (int t = 0; t < T; t++)
UNROLL_2
        for (int n = 0; n < N; n++) store(totals + (t * N + n) * TILE, total[t][n]);
}

// The tokens from `token` on, at most T of them.
template <class F, int N, int T>
void remaining(const Panel<F::parts> *panels, const Activations &x, int64_t token, int64_t first, int64_t count,
               float *totals) {
    if constexpr (T > 0) {
        if (x.tokens - token == T) return multiply_panel<F, T, N>(panels, x, token, first, count, totals);
        remaining<F, N, T - 1>(panels, x, token, first, count, totals);
    }
}

// N tile rows by all tokens.
template <class F, int N> void many_tokens(F, const TileJob &job, const Activations &x, int64_t tile) {
    const int64_t step = tile_row_bytes<F>(x.k), blocks = x.k / BLOCK, width = N * TILE;
    Panel<F::parts> *panels = scratch_of<Panel<F::parts>>(SLOT_PANEL, N);
    float *totals = scratch_of<float>(SLOT_PARTIAL, x.tokens * width);
    Walk<F> walks[2] = {Walk<F>(job.tiles->data + tile * step), Walk<F>(job.tiles->data + (tile + N - 1) * step)};
    for (int64_t first = 0; first < blocks; first += PANEL_BLOCKS) {
        const int64_t count = blocks - first < PANEL_BLOCKS ? blocks - first : PANEL_BLOCKS;
        for (int n = 0; n < N; n++) unpack<F>(walks[n], first, count, panels[n]);
        int64_t t = 0;
        for (; t + TOKENS <= x.tokens; t += TOKENS)
            multiply_panel<F, TOKENS, N>(panels, x, t, first, count, totals + t * width);
        remaining<F, N, TOKENS - 1>(panels, x, t, first, count, totals + t * width);
    }
    for (int64_t t = 0; t < x.tokens; t++)
        for (int n = 0; n < N; n++) {
            const int64_t row = (tile + n) * TILE, left = job.tiles->rows - row;
            store_row(job, t, row, left < TILE ? left : TILE, totals + t * width + n * TILE);
        }
}

void run_tiles(const TileJob &job, const Activations &x, int64_t tile, int64_t count) {
    with_format(job.tiles->format, [&](auto f) {
        typedef decltype(f) F;
        const int64_t step = tile_row_bytes<F>(x.k), last = tile + count;
        if (x.tokens == 1) {
            for (; tile < last; tile++) {
                float sums[TILE];
                one_token(f, job.tiles->data + tile * step, x, sums);
                const int64_t left = job.tiles->rows - tile * TILE;
                store_row(job, 0, tile * TILE, left < TILE ? left : TILE, sums);
            }
            return;
        }
        for (; tile + 2 <= last; tile += 2) many_tokens<F, 2>(f, job, x, tile);
        if (tile < last) many_tokens<F, 1>(f, job, x, tile);
    });
}

} // namespace

void multiply_tiles(const Activations &x, const TileJob *jobs, int32_t count) {
    int64_t tiles = 0;
    for (int32_t i = 0; i < count; i++) tiles += (jobs[i].tiles->rows + TILE - 1) / TILE;
    // Shares of about equal size, several per thread so that a slow thread holds nobody up; pairs of tiles stay whole.
    int64_t share = tiles / (8 * thread_count()) / 2 * 2;
    const int64_t most = x.tokens == 1 ? 64 : 8;
    share = share < 2 ? 2 : share > most ? most : share;
    int64_t tasks = 0;
    for (int32_t i = 0; i < count; i++) tasks += ((jobs[i].tiles->rows + TILE - 1) / TILE + share - 1) / share;
    const double work = static_cast<double>(tiles) * TILE * static_cast<double>(x.k);
    parallel(tasks, work * (0.02 + static_cast<double>(x.tokens) / 200), [&](int64_t task) {
        for (int32_t i = 0; i < count; i++) {
            const int64_t here = (jobs[i].tiles->rows + TILE - 1) / TILE, own = (here + share - 1) / share;
            if (task >= own) {
                task -= own;
                continue;
            }
            const int64_t first = task * share;
            return run_tiles(jobs[i], x, first, here - first < share ? here - first : share);
        }
    });
}

// x [tokens, k] of `type`, rows `stride` values apart; each job has its own weight, bias and output.
extern "C" __attribute__((visibility("default"))) int32_t xh_tile_product(const void *x, int32_t type, int64_t tokens,
                                                                          int64_t k, int64_t stride,
                                                                          const TileJob *jobs, int32_t count) {
    Activations a;
    if (!quantise(x, type, tokens, k, stride, a)) return -1;
    multiply_tiles(a, jobs, count);
    return 0;
}
