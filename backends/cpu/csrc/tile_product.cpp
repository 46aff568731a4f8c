// y = x W^T + bias of int8 activations and tiled weights. Integer sums over a block are exact; blocks are added in
// float32 in ascending k, one after another: a row has the same bits with any number of tokens, threads or weights.
#include "activations.h"
#include "threads.h"
#include "tile_product.h"

namespace {

constexpr int64_t AHEAD = 2304;      // bytes to fetch ahead of use
constexpr int64_t PANEL_BLOCKS = 24; // blocks of k that are unpacked at a time, to stay in the first cache level
#if defined(LANES_AVX512)
constexpr int FEW = 8;    // tokens that share codes as they are unpacked
constexpr int TOKENS = 6; // tokens in registers at the same time, times two tiles of a panel
#else
constexpr int FEW = 4;
constexpr int TOKENS = 2;
#endif

#if defined(SIGNED_CODES)
// Whether panels hold codes less their zero point: then no token has to take off zero times the sum of its activations.
template <class F> constexpr bool centres = F::wide || F::zero != 0;
#else
template <class F> constexpr bool centres = false;
Codes less_zero(Codes w, int zero);
Codes kept(Codes w);
Ints dot_signed(Ints sum, Codes w, int32_t four);
#endif

// What the zero point of the codes takes off: zero times the sum of a block's (or half a block's) activations.
template <class F> INLINE Ints offset(const Activations &x, int64_t block, int part) {
    constexpr int zero = F::wide ? WIDE_ZERO : F::zero;
    static_assert((zero & (zero - 1)) == 0, "zero points are powers of two");
    if (zero == 0) return ints(0);
    const int32_t sum = F::parts == 1 ? x.sums[block] : x.halves[2 * block + part];
    return subtract(ints(0), shift_left<zero ? __builtin_ctz(zero | 256) : 0>(ints(sum)));
}

// Rounds the sums of `rows` rows of one token and adds the bias.
INLINE void store_rows(const TileJob &job, int64_t token, int64_t row, int64_t rows, const float *sums) {
    if (job.type == FLOAT32 && !job.bias && rows >= TILE) {
        store(static_cast<float *>(job.y) + token * job.stride + row, load(sums));
        return;
    }
    float out[TILE];
    std::memcpy(out, sums, sizeof out);
    rows = rows < TILE ? rows : TILE;
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

// Adds a block to the sums of T tokens.
template <class F, int T>
INLINE void add_block(Lanes *totals, const Ints (*sums)[2], const Scales<F::parts> &scales, const Activations &x,
                      const int64_t *blocks) {
UNROLL_8
    for (int t = 0; t < T; t++) {
        const Lanes d = broadcast(x.scales[blocks[t]]);
UNROLL_2
        for (int part = 0; part < F::parts; part++)
            totals[t] = fma(multiply(to_lanes(sums[t][part]), scales.scale[part]), d, totals[t]);
        if (F::minimum) totals[t] = fma(scales.minimum, broadcast(x.weighted[blocks[t]]), totals[t]);
    }
}

// One tile row by T tokens from `token` on: codes are multiplied as they are unpacked. A few tokens have several chains
// of additions per block, so that none waits for the one before.
template <class F, int T> void few_tokens(const TileJob &job, const uint8_t *tiles, const Activations &x, int64_t tile, int64_t token) {
    const int64_t blocks = x.k / BLOCK;
    Walk<F> w(tiles);
    Lanes totals[T];
UNROLL_8
    for (int t = 0; t < T; t++) totals[t] = zero();
    const int8_t *codes = x.codes + token * x.k;
    for (int64_t b = 0; b < blocks; b++, codes += BLOCK, w.step()) {
        w.start(b);
UNROLL_16
        for (int line = 0; line < F::bytes; line += 64) __builtin_prefetch(w.at + AHEAD + line);
        constexpr int CHAINS = F::parts == 1 && T == 1 ? 2 : F::parts;
        Ints sums[T][2];
        int64_t at[T];
UNROLL_8
        for (int t = 0; t < T; t++) {
            at[t] = (token + t) * blocks + b;
            sums[t][0] = offset<F>(x, at[t], 0);
            if (CHAINS == 2) sums[t][1] = F::parts == 2 ? offset<F>(x, at[t], 1) : ints(0);
        }
        each_codes<F>(w.at, [&](int j, Codes c) __attribute__((always_inline)) {
UNROLL_8
            for (int t = 0; t < T; t++) {
                int32_t four;
                std::memcpy(&four, codes + t * x.k + 4 * j, 4);
                Ints &s = sums[t][F::parts == 2 ? j / 4 : CHAINS == 2 ? j % 2 : 0];
                s = dot<F::wide>(s, c, four);
            }
        });
        if (F::parts == 1 && CHAINS == 2) sums[0][0] = add(sums[0][0], sums[0][1]);
        add_block<F, T>(totals, sums, F::scales(w.at, w.head), x, at);
    }
UNROLL_8
    for (int t = 0; t < T; t++) {
        float out[TILE];
        store(out, totals[t]);
        store_rows(job, token + t, tile * TILE, job.tiles->rows - tile * TILE, out);
    }
}

// The tokens from `token` on, at most T of them.
template <class F, int T>
void tile_by_tokens(const TileJob &job, const uint8_t *tiles, const Activations &x, int64_t tile, int64_t token, int64_t count) {
    if constexpr (T > 0) {
        if (count == T) return few_tokens<F, T>(job, tiles, x, tile, token);
        tile_by_tokens<F, T - 1>(job, tiles, x, tile, token, count);
    }
}

// One tile row by all tokens, in groups of about equal size.
template <class F> void one_tile(const TileJob &job, const Activations &x, int64_t tile) {
    const uint8_t *tiles = job.tiles->data + tile * tile_row_bytes<F>(x.k);
    const int64_t groups = (x.tokens + FEW - 1) / FEW;
    for (int64_t g = 0, token = 0; g < groups; g++) {
        const int64_t count = x.tokens * (g + 1) / groups - token;
        tile_by_tokens<F, FEW>(job, tiles, x, tile, token, count);
        token += count;
    }
}

// Unpacked blocks of one tile row.
template <int PARTS> struct Panel {
    alignas(64) uint8_t codes[PANEL_BLOCKS * 512];
    alignas(64) float scales[PANEL_BLOCKS][PARTS][TILE], minimums[PANEL_BLOCKS][TILE];
    alignas(64) Ints starts[PANEL_BLOCKS][PARTS]; // of centred codes: -128 times their sums
};

template <class F> void unpack(Walk<F> &w, int64_t first, int64_t count, Panel<F::parts> &panel) {
    for (int64_t b = 0; b < count; b++, w.step()) {
        w.start(first + b);
UNROLL_16
        for (int line = 0; line < F::bytes; line += 64) __builtin_prefetch(w.at + 2 * AHEAD + line);
        Ints sums[2] = {ints(0), ints(0)};
        each_codes<F>(w.at, [&](int j, Codes c) __attribute__((always_inline)) {
            if constexpr (centres<F>) {
                c = less_zero(c, F::wide ? WIDE_ZERO : F::zero);
                Ints &s = sums[F::parts == 2 ? j / 4 : 0];
                s = dot_signed(s, c, 0x01010101);
            }
            store_codes(panel.codes + 512 * b + 64 * j, c);
        });
        if constexpr (centres<F>)
UNROLL_2
            for (int part = 0; part < F::parts; part++)
                panel.starts[b][part] = subtract(ints(0), shift_left<7>(sums[part]));
        const auto scales = F::scales(w.at, w.head);
UNROLL_2
        for (int part = 0; part < F::parts; part++) store(panel.scales[b][part], scales.scale[part]);
        if (F::minimum) store(panel.minimums[b], scales.minimum);
    }
}

// T tokens times two tiles over the blocks of a panel; sums continue in `totals` [T][2][16].
template <class F, int T>
void multiply_panel(const Panel<F::parts> *panels, const Activations &x, int64_t token, int64_t first, int64_t count,
                    float *totals) {
    const int64_t blocks = x.k / BLOCK;
    Lanes total[2][T];
UNROLL_8
    for (int t = 0; t < T; t++)
UNROLL_2
        for (int n = 0; n < 2; n++) total[n][t] = first ? load(totals + (2 * t + n) * TILE) : zero();
    const int8_t *codes = centres<F> ? reinterpret_cast<const int8_t *>(x.raised) : x.codes;
    codes += token * x.k + BLOCK * first;
    for (int64_t b = 0; b < count; b++, codes += BLOCK) {
UNROLL_2
        for (int part = 0; part < F::parts; part++) {
            Ints sums[2][T];
UNROLL_8
            for (int t = 0; t < T; t++) {
                if constexpr (centres<F>) {
UNROLL_2
                    for (int n = 0; n < 2; n++) sums[n][t] = panels[n].starts[b][part];
                } else {
                    sums[0][t] = sums[1][t] = offset<F>(x, (token + t) * blocks + first + b, part);
                }
            }
UNROLL_8
            for (int j = part * 8 / F::parts; j < (part + 1) * 8 / F::parts; j++) {
                Codes c[2];
UNROLL_2
                for (int n = 0; n < 2; n++) {
                    c[n] = load_codes(panels[n].codes + 512 * b + 64 * j);
                    if constexpr (centres<F>) c[n] = kept(c[n]);
                }
UNROLL_8
                for (int t = 0; t < T; t++) {
                    int32_t four;
                    std::memcpy(&four, codes + t * x.k + 4 * j, 4);
UNROLL_2
                    for (int n = 0; n < 2; n++) {
                        if constexpr (centres<F>) sums[n][t] = dot_signed(sums[n][t], c[n], four);
                        else sums[n][t] = dot<F::wide>(sums[n][t], c[n], four);
                    }
                }
            }
            Lanes scale[2];
UNROLL_2
            for (int n = 0; n < 2; n++) scale[n] = load(panels[n].scales[b][part]);
UNROLL_8
            for (int t = 0; t < T; t++) {
                const Lanes d = broadcast(x.scales[(token + t) * blocks + first + b]);
UNROLL_2
                for (int n = 0; n < 2; n++)
                    total[n][t] = fma(multiply(to_lanes(sums[n][t]), scale[n]), d, total[n][t]);
            }
        }
        if (F::minimum) {
UNROLL_8
            for (int t = 0; t < T; t++) {
                const Lanes s = broadcast(x.weighted[(token + t) * blocks + first + b]);
UNROLL_2
                for (int n = 0; n < 2; n++) total[n][t] = fma(load(panels[n].minimums[b]), s, total[n][t]);
            }
        }
    }
UNROLL_8
    for (int t = 0; t < T; t++)
UNROLL_2
        for (int n = 0; n < 2; n++) store(totals + (2 * t + n) * TILE, total[n][t]);
}

// The tokens from `token` on, at most T of them.
template <class F, int T>
void panel_by_tokens(const Panel<F::parts> *panels, const Activations &x, int64_t token, int64_t tokens, int64_t first,
                     int64_t count, float *totals) {
    if constexpr (T > 0) {
        if (tokens == T) return multiply_panel<F, T>(panels, x, token, first, count, totals);
        panel_by_tokens<F, T - 1>(panels, x, token, tokens, first, count, totals);
    }
}

// The rows of two tiles for `tokens` tokens from `token` on.
void store_pairs(const TileJob &job, int64_t tile, int64_t token, int64_t tokens, const float *sums) {
    for (int64_t t = 0; t < tokens; t++)
        for (int n = 0; n < 2; n++) {
            const int64_t row = (tile + n) * TILE;
            store_rows(job, token + t, row, job.tiles->rows - row, sums + (2 * t + n) * TILE);
        }
}

// Two tile rows by all tokens.
template <class F> void two_tiles(const TileJob &job, const Activations &x, int64_t tile) {
    const int64_t step = tile_row_bytes<F>(x.k), blocks = x.k / BLOCK;
    Panel<F::parts> *panels = scratch_of<Panel<F::parts>>(SLOT_PANEL, 2);
    float *totals = scratch_of<float>(SLOT_PARTIAL, x.tokens * 2 * TILE);
    Walk<F> walks[2] = {Walk<F>(job.tiles->data + tile * step), Walk<F>(job.tiles->data + (tile + 1) * step)};
    const int64_t groups = (x.tokens + TOKENS - 1) / TOKENS, cuts = (blocks + PANEL_BLOCKS - 1) / PANEL_BLOCKS;
    for (int64_t cut = 0, first = 0; cut < cuts; cut++) {
        const int64_t count = blocks * (cut + 1) / cuts - first;
        for (int n = 0; n < 2; n++) unpack<F>(walks[n], first, count, panels[n]);
        for (int64_t g = 0, token = 0; g < groups; g++) {
            const int64_t tokens = x.tokens * (g + 1) / groups - token;
            float *sums = totals + token * 2 * TILE;
            panel_by_tokens<F, TOKENS>(panels, x, token, tokens, first, count, sums);
            if (cut + 1 == cuts) store_pairs(job, tile, token, tokens, sums);
            token += tokens;
        }
        first += count;
    }
}

void run_tiles(const TileJob &job, const Activations &x, int64_t tile, int64_t count) {
    with_format(job.tiles->format, [&](auto f) {
        typedef decltype(f) F;
        const int64_t last = tile + count;
        if (x.tokens > MANY)
            for (; tile + 2 <= last; tile += 2) two_tiles<F>(job, x, tile);
        for (; tile < last; tile++) one_tile<F>(job, x, tile);
    });
}

} // namespace

void multiply_tiles(const Activations &x, const TileJob *jobs, int32_t count) {
    int64_t tiles = 0;
    for (int32_t i = 0; i < count; i++) tiles += (jobs[i].tiles->rows + TILE - 1) / TILE;
    // Shares of about equal size, several per thread so that a slow thread holds nobody up; pairs of tiles stay whole.
    const int64_t wanted = tiles / (2 * thread_count()) / 2 * 2, most = x.tokens == 1 ? 64 : 16;
    const int64_t share = wanted < 2 ? 2 : wanted > most ? most : wanted;
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
