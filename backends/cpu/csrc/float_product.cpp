// y = x W^T + bias of float activations and tiled weights, in float32. The order of every sum is the same with any
// number of tokens, threads or weights: within each SPAN values of k one chain of fused multiply-adds in ascending k
// from zero; then these sums one after another. Lanes are rows, so nothing is ever added across lanes.
//
// Few tokens: blocks are decoded in registers for each use. More: a span of two tile rows is decoded once into a panel
// in the first cache level, which all tokens share; activations are packed token by token next to each other. bfloat16
// weights and activations use the machine's dot products where those give the same bits; see `Paired`.
#include "float_product.h"
#include "threads.h"

#if defined(LANES_AVX512) && defined(__AVX512BF16__)
#define PAIR_PRODUCTS 1
#endif

namespace {

constexpr int64_t SPAN = 256;        // values of k that are added up on their own
constexpr int64_t AHEAD = 2304;      // bytes to fetch ahead of use
constexpr int64_t TOKEN_BLOCK = 516; // tokens packed at a time
constexpr int MOST_JOBS = 16;
constexpr int FEW = 4; // up to here blocks are decoded for each use

// Tokens and tiles whose sums are kept in registers.
#if defined(LANES_AVX512)
constexpr int TOKENS = 12, TILES = 2;
#elif defined(LANES_AVX2) || defined(__aarch64__)
constexpr int TOKENS = 6, TILES = 1;
#else
constexpr int TOKENS = 2, TILES = 1;
#endif

// A share of the tokens, brought into the form that kernels read.
struct Floats {
    const float *rows;     // few tokens: [tokens, stride]
    int64_t stride;
    const float *packed;   // more: for each TOKENS tokens [k, tokens], the last with the tokens that are left
    const uint32_t *pairs; // the same for pairs of bfloat16, the lower k in the high half: [k / 2, tokens]
    int64_t tokens, k;     // k in whole blocks
};

// Rounds the sums of sixteen rows, or fewer, and adds the bias.
void store_sums(const TileJob &job, int64_t token, int64_t tile, const float *sums) {
    const int64_t row = tile * TILE, left = job.tiles->rows - row, rows = left < TILE ? left : TILE;
    float out[TILE];
    std::memcpy(out, sums, sizeof out);
    if (job.bias)
        with_type(job.bias_type, [&](auto *tag) {
            const auto *b = static_cast<decltype(+tag)>(const_cast<void *>(job.bias)) + row;
            for (int64_t r = 0; r < rows; r++) out[r] += to_float(b[r]);
        });
    with_type(job.type, [&](auto *tag) {
        auto *y = static_cast<decltype(+tag)>(job.y) + token * job.stride + row;
        if (rows == TILE) {
UNROLL_16
            for (int r = 0; r < TILE; r++) assign(y[r], out[r]);
        } else
            for (int64_t r = 0; r < rows; r++) assign(y[r], out[r]);
    });
}

// ------------------------------------------------------------------------------------------------ few tokens
template <class F> INLINE void fetch(const uint8_t *p) {
    constexpr int lines = F::bytes < 1024 ? F::bytes : 1024; // beyond that, the machine follows by itself
UNROLL_16
    for (int line = 0; line < lines; line += 64) __builtin_prefetch(p + line);
}

constexpr int R = 4; // tile rows whose sums are kept in registers, so that no sum waits for the one before

// `tiles` tile rows, at most R, by `tokens` tokens, at most T.
template <int T, class F>
void few_tokens(F, const TileJob &job, const Floats &x, int64_t tile, int64_t tiles) {
    const int64_t step = tile_row_bytes<F>(x.k), blocks = x.k / BLOCK;
    const float *tokens[T];
    for (int t = 0; t < T; t++) tokens[t] = x.rows + (t < x.tokens ? t : 0) * x.stride;
    const auto start = [&](int r) { return Walk<F>(job.tiles->data + (tile + (r < tiles ? r : 0)) * step); };
    Walk<F> w[R] = {start(0), start(1), start(2), start(3)};
    alignas(64) float totals[R][T][TILE];
    Lanes sums[R][T];
    for (int64_t b = 0; b < blocks; b++) {
        if (b % (SPAN / BLOCK) == 0) {
UNROLL_4
            for (int r = 0; r < R; r++)
UNROLL_8
                for (int t = 0; t < T; t++) {
                    if (b) store(totals[r][t], b == SPAN / BLOCK ? sums[r][t] : add(load(totals[r][t]), sums[r][t]));
                    sums[r][t] = zero();
                }
        }
        typename Reader<F>::Factors factors[R];
UNROLL_4
        for (int r = 0; r < R; r++) {
            w[r].start(b);
            // near the end of these rows, what is wanted next lies behind the other tile rows of the group
            fetch<F>(w[r].at + AHEAD + (b + AHEAD / F::bytes < blocks ? 0 : (R - 1) * step));
            factors[r] = Reader<F>::factors(w[r].at, w[r].head);
        }
        const int64_t k = BLOCK * b;
#if defined(LANES_AVX2)
#pragma GCC unroll 4
#endif
        for (int j = 0; j < BLOCK / EIGHT; j++)
UNROLL_4
            for (int r = 0; r < R; r++)
                Reader<F>::eight(w[r].at, factors[r], j, [&](int i, Lanes v) __attribute__((always_inline)) {
UNROLL_8
                    for (int t = 0; t < T; t++)
                        sums[r][t] = fma(v, broadcast(tokens[t][k + EIGHT * j + i]), sums[r][t]);
                });
UNROLL_4
        for (int r = 0; r < R; r++) w[r].step();
    }
UNROLL_4
    for (int r = 0; r < R; r++)
UNROLL_4
        for (int t = 0; t < T; t++) {
            if (r >= tiles || t >= x.tokens) continue;
            float out[TILE];
            store(out, blocks <= SPAN / BLOCK ? sums[r][t] : add(load(totals[r][t]), sums[r][t]));
            store_sums(job, t, tile + r, out);
        }
}

// ------------------------------------------------------------------------------------------------ many tokens
// A span of T tokens times N tiles, added to `totals` [T, N, TILE], or put there if it is the first.
template <class Span, int T, int N> void multiply_span(const Span &span, int64_t token, float *totals, bool first) {
    Lanes sums[T][N];
UNROLL_16
    for (int t = 0; t < T; t++)
UNROLL_2
        for (int n = 0; n < N; n++) sums[t][n] = zero();
    span.template run<T, N>(token, sums);
UNROLL_16
    for (int t = 0; t < T; t++)
UNROLL_2
        for (int n = 0; n < N; n++) {
            float *total = totals + (t * N + n) * TILE;
            store(total, first ? sums[t][n] : add(load(total), sums[t][n]));
        }
}

// Decoded values of a span: N panels [k, TILE].
struct Panel {
    const float *values[TILES], *packed;
    int64_t first, count, k;
    template <int T, int N> inline __attribute__((always_inline)) void run(int64_t token, Lanes (&sums)[T][N]) const {
        const float *x = packed + token * k + first * T, *w[N];
        for (int n = 0; n < N; n++) w[n] = values[n];
        for (int64_t i = 0; i < count; i++, x += T) {
            Lanes v[N];
UNROLL_2
            for (int n = 0; n < N; n++) v[n] = in_register(load(w[n] + TILE * i));
UNROLL_16
            for (int t = 0; t < T; t++) {
                const Lanes a = in_register(broadcast(x[t]));
UNROLL_2
                for (int n = 0; n < N; n++) sums[t][n] = fma(v[n], a, sums[t][n]);
            }
        }
    }
};

#if defined(PAIR_PRODUCTS)
// A span of bfloat16 tiles as they are stored.
struct Pairs {
    const uint8_t *lines[TILES];
    const uint32_t *pairs;
    int64_t first, count, k;
    template <int T, int N> inline __attribute__((always_inline)) void run(int64_t token, Lanes (&sums)[T][N]) const {
        const uint32_t *x = pairs + token * (k / 2) + first / 2 * T;
        const uint8_t *w[N];
        for (int n = 0; n < N; n++) w[n] = lines[n];
        for (int64_t i = 0; i < count / 2; i++, x += T) {
            __m512i v[N];
UNROLL_2
            for (int n = 0; n < N; n++) {
                v[n] = _mm512_loadu_si512(w[n] + 64 * i);
                __asm__("" : "+v"(v[n]));
            }
UNROLL_16
            for (int t = 0; t < T; t++) {
                __m512i a = _mm512_set1_epi32(static_cast<int>(x[t]));
                __asm__("" : "+v"(a));
UNROLL_2
                for (int n = 0; n < N; n++)
                    sums[t][n].v[0] = _mm512_dpbf16_ps(sums[t][n].v[0], (__m512bh)v[n], (__m512bh)a);
            }
        }
    }
};
#endif

// The tokens that are left, at most T of them.
template <class Span, int N, int T>
void remaining(const Span &span, int64_t tokens, int64_t token, float *totals, bool first) {
    if constexpr (T > 0) {
        if (tokens == T) return multiply_span<Span, T, N>(span, token, totals, first);
        remaining<Span, N, T - 1>(span, tokens, token, totals, first);
    }
}

template <int N, class Span> void all_tokens(const Span &span, int64_t tokens, float *totals) {
    constexpr int width = N * TILE;
    const bool first = span.first == 0;
    int64_t t = 0;
    for (; t + TOKENS <= tokens; t += TOKENS) multiply_span<Span, TOKENS, N>(span, t, totals + t * width, first);
    remaining<Span, N, TOKENS - 1>(span, tokens - t, t, totals + t * width, first);
}

// Decodes a span of a tile row.
template <class F> void decode_span(Walk<F> &w, int64_t first, int64_t count, float *panel) {
    for (int64_t b = first / BLOCK; b < (first + count) / BLOCK; b++, w.step()) {
        w.start(b);
        fetch<F>(w.at + 2 * AHEAD);
        const auto factors = Reader<F>::factors(w.at, w.head);
#if defined(LANES_AVX2)
#pragma GCC unroll 4
#endif
        for (int j = 0; j < BLOCK / EIGHT; j++, panel += EIGHT * TILE)
            Reader<F>::eight(w.at, factors, j, [&](int i, Lanes v) __attribute__((always_inline)) {
                store(panel + TILE * i, v);
            });
    }
}

int64_t span_at(int64_t first, int64_t k) { return k - first < SPAN ? k - first : SPAN; }

template <int N, class F> void decoded(F, const TileJob &job, const Floats &x, int64_t tile, float *totals) {
    const int64_t step = tile_row_bytes<F>(x.k);
    float *panels = scratch_of<float>(SLOT_PANEL, N * SPAN * TILE);
    Walk<F> walks[2] = {Walk<F>(job.tiles->data + tile * step), Walk<F>(job.tiles->data + (tile + N - 1) * step)};
    for (int64_t first = 0; first < x.k; first += SPAN) {
        Panel span{{}, x.packed, first, span_at(first, x.k), x.k};
        for (int n = 0; n < N; n++) {
            decode_span<F>(walks[n], first, span.count, panels + n * SPAN * TILE);
            span.values[n] = panels + n * SPAN * TILE;
        }
        all_tokens<N>(span, x.tokens, totals);
    }
}

#if defined(PAIR_PRODUCTS)
bool exact(const Tiles &tiles, int64_t k, int64_t tile) {
    return tiles.data[(tiles.rows + TILE - 1) / TILE * tile_row_bytes<Paired>(k) + tile] != 0;
}

template <int N> void decoded(Paired f, const TileJob &job, const Floats &x, int64_t tile, float *totals) {
    if (!x.pairs || !exact(*job.tiles, x.k, tile) || !exact(*job.tiles, x.k, tile + N - 1))
        return decoded<N, Paired>(f, job, x, tile, totals);
    const int64_t step = tile_row_bytes<Paired>(x.k);
    for (int64_t first = 0; first < x.k; first += SPAN) {
        Pairs span{{}, x.pairs, first, span_at(first, x.k), x.k};
        for (int n = 0; n < N; n++)
            span.lines[n] = job.tiles->data + (tile + n) * step + first / BLOCK * Paired::bytes;
        all_tokens<N>(span, x.tokens, totals);
    }
}
#endif

template <int N, class F> void many_tokens(F f, const TileJob &job, const Floats &x, int64_t tile) {
    float *totals = scratch_of<float>(SLOT_PARTIAL, x.tokens * N * TILE);
    decoded<N>(f, job, x, tile, totals);
    for (int64_t t = 0; t < x.tokens; t++)
        for (int n = 0; n < N; n++) store_sums(job, t, tile + n, totals + (t * N + n) * TILE);
}

// ------------------------------------------------------------------------------------------------ activations
INLINE float rounded_to_bf16(float x) {
    bf16 y;
    assign(y, x);
    return to_float(y);
}

// One token as float32, zero beyond its k; returns whether all values are zero or at least SMALLEST_EXACT.
template <class T> bool widen(const T *x, int64_t k, int64_t whole, bool rounded, float *y) {
    int32_t tiny = 0;
    for (int64_t i = 0; i < k; i++) {
        const float wide = to_float(x[i]);
        y[i] = rounded ? rounded_to_bf16(wide) : wide;
        const uint32_t magnitude = bits_of(y[i]) & 0x7fffffffu;
        tiny |= (magnitude - 1u) < bits_of(SMALLEST_EXACT) - 1u;
    }
    for (int64_t i = k; i < whole; i++) y[i] = 0;
    return tiny == 0;
}

// Puts T tokens side by side.
template <int T> void side_by_side(const float *rows, int64_t k, float *packed, uint32_t *pairs) {
    if (packed)
        for (int64_t i = 0; i < k; i++)
UNROLL_16
            for (int t = 0; t < T; t++) packed[i * T + t] = rows[t * k + i];
    if (pairs)
        for (int64_t i = 0; i < k / 2; i++)
UNROLL_16
            for (int t = 0; t < T; t++)
                pairs[i * T + t] = bits_of(rows[t * k + 2 * i]) | bits_of(rows[t * k + 2 * i + 1]) >> 16;
}

template <int T> void pack_tokens(int64_t tokens, const float *rows, int64_t k, float *packed, uint32_t *pairs) {
    if constexpr (T > 0) {
        if (tokens == T) return side_by_side<T>(rows, k, packed, pairs);
        pack_tokens<T - 1>(tokens, rows, k, packed, pairs);
    }
}

struct Given {
    const void *x;
    int32_t type;
    int64_t tokens, k, stride;
    bool rounded;
};

struct Wanted {
    bool values, pairs;
};

// More than a few tokens: packed as values, as pairs, or both. Pairs are left out where a value is too small.
Floats pack(const Given &in, Wanted wanted) {
    const int64_t k = whole_blocks(in.k), groups = (in.tokens + TOKENS - 1) / TOKENS, size = in.tokens * k;
    Floats out{nullptr, 0, nullptr, nullptr, in.tokens, k};
    for (;;) {
        float *packed = wanted.values ? scratch_of<float>(SLOT_INPUT, size) : nullptr;
        uint32_t *pairs = wanted.pairs ? scratch_of<uint32_t>(SLOT_CODES, size / 2) : nullptr;
        int32_t tiny = 0;
        parallel(groups, static_cast<double>(size), [&](int64_t g) {
            const int64_t token = g * TOKENS, left = in.tokens - token, here = left < TOKENS ? left : TOKENS;
            float *rows = scratch_of<float>(SLOT_PANEL, TOKENS * k);
            bool exact = true;
            with_type(in.type, [&](auto *tag) {
                const auto *x = static_cast<decltype(+tag)>(const_cast<void *>(in.x)) + token * in.stride;
                for (int64_t t = 0; t < here; t++) exact &= widen(x + t * in.stride, in.k, k, in.rounded, rows + t * k);
            });
            if (!exact) __atomic_store_n(&tiny, 1, __ATOMIC_RELAXED);
            pack_tokens<TOKENS>(here, rows, k, packed ? packed + token * k : nullptr,
                                pairs ? pairs + token * (k / 2) : nullptr);
        });
        out.packed = packed;
        out.pairs = pairs;
        if (!pairs || !tiny) return out;
        wanted = {true, false};
    }
}

// A few tokens: float32 rows, those given if they can be read as they are.
Floats widen_few(const Given &in) {
    const int64_t k = whole_blocks(in.k);
    if (in.type == FLOAT32 && k == in.k && !in.rounded)
        return {static_cast<const float *>(in.x), in.stride, nullptr, nullptr, in.tokens, k};
    float *rows = scratch_of<float>(SLOT_INPUT, in.tokens * k);
    with_type(in.type, [&](auto *tag) {
        const auto *x = static_cast<decltype(+tag)>(const_cast<void *>(in.x));
        for (int64_t t = 0; t < in.tokens; t++) widen(x + t * in.stride, in.k, k, in.rounded, rows + t * k);
    });
    return {rows, k, nullptr, nullptr, in.tokens, k};
}

Wanted wanted_by(const TileJob *jobs, int32_t count, const Given &in) {
#if defined(PAIR_PRODUCTS)
    Wanted wanted{false, false};
    const bool halves = in.rounded || in.type == BFLOAT16;
    for (int32_t i = 0; i < count; i++) {
        const Tiles &tiles = *jobs[i].tiles;
        const bool paired = halves && tiles.format == PAIRED_FORMAT;
        wanted.pairs |= paired;
        wanted.values |= !paired;
        for (int64_t t = 0; paired && t < (tiles.rows + TILE - 1) / TILE; t++)
            wanted.values |= !exact(tiles, whole_blocks(in.k), t);
    }
    return wanted;
#else
    (void)jobs, (void)count, (void)in;
    return {true, false};
#endif
}

// ------------------------------------------------------------------------------------------------ tasks
int64_t tile_rows(const TileJob &job) { return (job.tiles->rows + TILE - 1) / TILE; }

template <class F> void run_tiles(F f, const TileJob &job, const Floats &x, int64_t tile, int64_t count) {
    const int64_t last = tile + count;
    if (x.packed || x.pairs) {
        if constexpr (TILES == 2)
            for (; tile + 2 <= last; tile += 2) many_tokens<2>(f, job, x, tile);
        for (; tile < last; tile++) many_tokens<1>(f, job, x, tile);
        return;
    }
    for (; tile < last; tile += R) {
        const int64_t tiles = last - tile < R ? last - tile : R;
        if (x.tokens == 1)
            few_tokens<1>(f, job, x, tile, tiles);
        else if (x.tokens == 2)
            few_tokens<2>(f, job, x, tile, tiles);
        else
            few_tokens<FEW>(f, job, x, tile, tiles);
    }
}

void run_jobs(const Floats &x, const TileJob *jobs, int32_t count) {
    int64_t tiles = 0;
    for (int32_t i = 0; i < count; i++) tiles += tile_rows(jobs[i]);
    // Shares of about equal size, several per thread so that a slow thread holds nobody up; groups of tiles stay whole.
    // Few tokens: fewer shares, since what is fetched ahead lies behind the end of a share in the end.
    const int64_t unit = x.rows ? 4 : 2, most = x.rows ? 64 : 8, each = x.rows ? 3 : 8;
    int64_t share = tiles / (each * thread_count()) / unit * unit;
    share = share < unit ? unit : share > most ? most : share;
    int64_t tasks = 0;
    for (int32_t i = 0; i < count; i++) tasks += (tile_rows(jobs[i]) + share - 1) / share;
    const double work = static_cast<double>(tiles * TILE) * static_cast<double>(x.k);
    parallel(tasks, work * (0.04 + static_cast<double>(x.tokens) / 100), [&](int64_t task) {
        for (int32_t i = 0; i < count; i++) {
            const int64_t here = tile_rows(jobs[i]), own = (here + share - 1) / share, first = task * share;
            if (task >= own) {
                task -= own;
                continue;
            }
            const int64_t left = here - first, own_tiles = left < share ? left : share;
            const auto body = [&](auto f) { run_tiles(f, jobs[i], x, first, own_tiles); };
            if (!with_format(jobs[i].tiles->format, body)) with_float_format(jobs[i].tiles->format, body);
            return;
        }
    });
}

} // namespace

bool multiply_floats(const void *x, int32_t type, int64_t tokens, int64_t k, int64_t stride, const TileJob *jobs,
                     int32_t count, bool rounded) {
    bool known = with_type(type, [](auto *) {});
    for (int32_t i = 0; i < count; i++) {
        const int32_t format = jobs[i].tiles->format;
        known &= with_format(format, [](auto) {}) || with_float_format(format, [](auto) {});
        known &= with_type(jobs[i].type, [](auto *) {});
    }
    if (!known) return false;
    const bool halves = rounded && type != BFLOAT16;
    if (tokens <= FEW) {
        if (tokens > 0) run_jobs(widen_few({x, type, tokens, k, stride, halves}), jobs, count);
        return true;
    }
    const int64_t bytes = value_bytes(type);
    const Wanted wanted = wanted_by(jobs, count, {x, type, tokens, k, stride, rounded});
    for (int64_t t = 0; t < tokens; t += TOKEN_BLOCK) {
        const int64_t here = tokens - t < TOKEN_BLOCK ? tokens - t : TOKEN_BLOCK;
        TileJob shifted[MOST_JOBS];
        for (int32_t first = 0; first < count; first += MOST_JOBS) {
            const int32_t some = count - first < MOST_JOBS ? count - first : MOST_JOBS;
            for (int32_t i = 0; i < some; i++) {
                shifted[i] = jobs[first + i];
                shifted[i].y = static_cast<char *>(shifted[i].y) + t * shifted[i].stride * value_bytes(shifted[i].type);
            }
            const void *from = static_cast<const char *>(x) + t * stride * bytes;
            run_jobs(pack({from, type, here, k, stride, halves}, wanted), shifted, some);
        }
    }
    return true;
}

// x [tokens, k] of `type`, rows `stride` values apart; each job has its own weight, bias and output.
extern "C" __attribute__((visibility("default"))) int32_t xh_float_product(const void *x, int32_t type, int64_t tokens,
                                                                           int64_t k, int64_t stride,
                                                                           const TileJob *jobs, int32_t count,
                                                                           int32_t rounded) {
    return multiply_floats(x, type, tokens, k, stride, jobs, count, rounded != 0) ? 0 : -1;
}
