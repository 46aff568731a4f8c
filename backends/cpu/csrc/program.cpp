// A program: commands that run one after another in a single call, each a kernel of this library. Where data lies and
// how large it is comes from two tables that the caller fills for each run: `slots` of addresses and `sizes`.
#include "attention.h"
#include "batched.h"
#include "command.h"
#include "copy.h"
#include "float_product.h"
#include "kernels.h"
#include "latent.h"
#include "moe.h"
#include "moe_product.h"
#include "moe_router.h"
#include "pointwise.h"
#include "threads.h"
#include "tile_product.h"
#include "weights.h"

namespace {

// An argument of a command: a number, a size times a number, or an address with an offset in bytes. Mirrored by
// program.py.
struct Argument {
    int64_t value;
    int32_t kind, index;
};
enum Kind : int32_t { NUMBER, SIZE, ADDRESS };

struct Command {
    int32_t code, first, count;
};

constexpr int MOST_ARGUMENTS = 64;
constexpr int MOST_TILE_JOBS = 9;
static_assert(7 + 6 * MOST_TILE_JOBS <= MOST_ARGUMENTS, "see `read_jobs` and `float_product`");

// Each returns 0, or what the kernel reports: a position plus 1, or a negative code.
int64_t position(int64_t found) { return found + 1; } // -1 is success

int64_t norm(Arguments a) {
    return xh_rms_norm(a.at<void>(0), a.code(1), a.number(2), a.number(3), a.number(4), a.number(5), a.number(6),
                       a.at<void>(7), a.code(8), a.real(9), a.at<void>(10));
}

int64_t rotary(Arguments a) {
    return xh_rotary(a.at<void>(0), a.code(1), a.number(2), a.number(3), a.number(4), a.number(5), a.number(6),
                     a.at<float>(7), a.at<float>(8), a.number(9), a.code(10), a.at<void>(11));
}

int64_t gated(Arguments a) {
    return xh_gated(a.code(0), a.at<void>(1), a.at<void>(2), a.code(3), a.number(4), a.number(5), a.number(6),
                    a.number(7), a.at<void>(8));
}

PageStrides page_strides(Arguments a, int i) { return {a.number(i), a.number(i + 1), a.number(i + 2), a.number(i + 3)}; }

int64_t write_cache(Arguments a) {
    const PageStrides strides = page_strides(a, 12), scale_strides = page_strides(a, 17);
    return position(xh_write_cache(a.at<void>(0), a.code(1), a.number(2), a.number(3), a.number(4), a.number(5),
                                   a.number(6), a.at<int32_t>(7), a.at<void>(8), a.code(9), a.number(10),
                                   a.number(11), &strides, a.at<float>(16), &scale_strides));
}

int64_t attention(Arguments a) {
    AttentionCall c;
    c.q = a.at<void>(0);
    c.k = a.at<void>(1);
    c.v = a.at<void>(2);
    c.query_start = a.at<int32_t>(3);
    c.seq_lens = a.at<int32_t>(4);
    c.block_table = a.at<int32_t>(5);
    c.sinks = a.at<void>(6);
    c.out = a.at<void>(7);
    c.lse = a.at<float>(8);
    int64_t *const sizes[] = {&c.tokens, &c.heads,  &c.kv_heads,   &c.k_width, &c.v_width,     &c.token_stride,
                              &c.head_stride, &c.blocks, &c.block_size, &c.seqs,    &c.table_width, &c.table_stride};
    for (int i = 0; i < 12; i++) *sizes[i] = a.number(9 + i);
    c.k_strides = page_strides(a, 21);
    c.v_strides = page_strides(a, 25);
    c.scale = a.real(29);
    c.softcap = a.real(30);
    c.window = a.number(31);
    int32_t *const codes[] = {&c.type, &c.cache_type, &c.sinks_type, &c.causal};
    for (int i = 0; i < 4; i++) *codes[i] = a.code(32 + i);
    c.k_scale = a.at<float>(36);
    c.v_scale = a.at<float>(37);
    c.k_scale_strides = page_strides(a, 38);
    c.v_scale_strides = page_strides(a, 42);
    return position(xh_paged_attention(&c));
}

int64_t linear(Arguments a) {
    return xh_linear(a.at<void>(0), a.code(1), a.number(2), a.number(3), a.number(4), a.at<Part>(5), a.code(6),
                     a.at<void>(7), a.code(8), a.at<void>(9));
}

int64_t embedding(Arguments a) {
    return position(xh_embedding(a.at<void>(0), a.code(1), a.number(2), a.at<Part>(3), a.code(4), a.number(5),
                                 a.code(6), a.at<void>(7)));
}

int64_t tile_rows(Arguments a) {
    return position(xh_tile_rows(a.at<void>(0), a.code(1), a.number(2), a.at<Tiles>(3), a.code(4), a.code(5),
                                 a.at<void>(6)));
}

// The jobs of a product of tiles from argument `at` on: tiles, bias, bias type, y, stride, type of each.
void read_jobs(Arguments a, int at, int32_t count, TileJob *jobs) {
    for (int32_t i = 0; i < count; i++, at += 6)
        jobs[i] = {a.at<Tiles>(at), a.at<void>(at + 1), a.at<void>(at + 3), a.number(at + 4), a.code(at + 2),
                   a.code(at + 5)};
}

// x, type, tokens, k, stride, count of jobs, and the jobs.
int64_t tile_product(Arguments a) {
    TileJob jobs[MOST_TILE_JOBS];
    const int32_t count = a.code(5);
    read_jobs(a, 6, count, jobs);
    Activations x;
    if (!quantise(a.at<void>(0), a.code(1), a.number(2), a.number(3), a.number(4), x)) return -1;
    multiply_tiles(x, jobs, count);
    return 0;
}

// As before; behind the count, whether activations are rounded to bfloat16.
int64_t float_product(Arguments a) {
    TileJob jobs[MOST_TILE_JOBS];
    const int32_t count = a.code(5);
    read_jobs(a, 7, count, jobs);
    const bool done = multiply_floats(a.at<void>(0), a.code(1), a.number(2), a.number(3), a.number(4), jobs, count,
                                      a.code(6) != 0);
    return done ? 0 : -1;
}

int64_t elementwise(Arguments a) {
    const Operand x{a.at<void>(3), a.number(4), a.number(5), a.code(6)};
    const Operand z{a.at<void>(7), a.number(8), a.number(9), a.code(10)};
    return pointwise(a.code(0), a.number(1), a.number(2), x, z, a.code(11), a.at<void>(12));
}

// y [count, bytes] = rows `indices` of x, which lie `stride` bytes apart.
int64_t gather_rows(Arguments a) {
    const char *x = a.at<char>(0);
    const int32_t *indices = a.at<int32_t>(1);
    const int64_t count = a.number(2), rows = a.number(3), stride = a.number(4), bytes = a.number(5);
    char *y = a.at<char>(6);
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= rows) return i + 1;
    for (int64_t i = 0; i < count; i++)
        std::memcpy(y + i * bytes, x + indices[i] * stride, static_cast<size_t>(bytes));
    return 0;
}

int64_t argmax(Arguments a) {
    xh_argmax(a.at<float>(0), a.number(1), a.number(2), a.number(3), a.at<int32_t>(4));
    return 0;
}

int64_t random_uniform(Arguments a) {
    xh_random_uniform(a.at<uint32_t>(0), a.at<uint32_t>(1), a.number(2), a.at<float>(3));
    return 0;
}

// logits, rows, columns, stride, uniform, temperature, top_k, top_p, min_p, ids.
int64_t sample(Arguments a) {
    xh_sample(a.at<float>(0), a.number(1), a.number(2), a.number(3), a.at<float>(4), a.at<float>(5), a.at<int32_t>(6),
              a.at<float>(7), a.at<float>(8), a.at<int32_t>(9));
    return 0;
}

typedef int64_t (*Run)(Arguments);
constexpr Run RUNS[] = {norm,
                        rotary,
                        gated,
                        write_cache,
                        attention,
                        linear,
                        embedding,
                        tile_rows,
                        tile_product,
                        float_product,
                        elementwise,
                        gather_rows,
                        copy_command,
                        argmax,
                        gating_command,
                        permute_command,
                        unpermute_command,
                        experts_command,
                        batched_command,
                        latent_command,
                        moe_command,
                        random_uniform,
                        sample};

} // namespace

// Runs commands; returns 0, or the number of the command that failed plus 1, with its result in `failure`. `stamps`
// [count + 1] or null: the time at which each command began, and the end, in nanoseconds of the monotonic clock.
extern "C" __attribute__((visibility("default"))) int64_t xh_run(const Command *commands, int64_t count,
                                                                 const Argument *arguments, const int64_t *sizes,
                                                                 const int64_t *slots, int64_t *failure,
                                                                 int64_t *stamps) {
    const Running running;
    int64_t values[MOST_ARGUMENTS];
    for (int64_t i = 0; i < count; i++) {
        const Command &command = commands[i];
        const Argument *given = arguments + command.first;
        if (stamps) stamps[i] = nanoseconds_now();
        for (int32_t j = 0; j < command.count; j++)
            values[j] = given[j].kind == NUMBER ? given[j].value
                        : given[j].kind == SIZE ? sizes[given[j].index] * given[j].value
                                                : slots[given[j].index] + given[j].value;
        const int64_t result = RUNS[command.code]({values});
        if (result) {
            *failure = result;
            return i + 1;
        }
    }
    if (stamps) stamps[count] = nanoseconds_now();
    return 0;
}
