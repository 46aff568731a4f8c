// Attention over cached latents in float32: all heads share the keys, latent and rotary key side by side, and the values,
// which are the latents. Keys are taken in chunks of 64 positions, counted from position 0 of the sequence; each chunk
// gives a maximum, a sum and weighted values on its own, and chunks are joined in ascending order. So the result of a
// token and head depends on its query and its keys only.
#include "latent.h"
#include "attention_tile.h"
#include "softmax.h"
#include "threads.h"
#include <cmath>

namespace {

constexpr int64_t MOST_QUERIES = 64; // of a task

// Queries first .. first + count - 1 of a sequence, counted token by token and head by head.
struct Task {
    int64_t seq, first, count;
};

struct Shape {
    const LatentCall &call;
    int64_t width, padded, task_queries;

    explicit Shape(const LatentCall &c) : call(c), width(c.dim + c.rope_dim), padded((c.dim + 15) / 16 * 16) {
        // a share for each thread even where there is one token only; tiles stay whole
        const int64_t share = c.tokens * c.heads / (2 * thread_count()) / TILE * TILE;
        task_queries = share < TILE ? TILE : share < MOST_QUERIES ? share : MOST_QUERIES;
    }
    int64_t rows(int64_t seq) const { return call.query_start[seq + 1] - call.query_start[seq]; }
    int64_t queries(int64_t seq) const { return rows(seq) * call.heads; }
    int64_t tasks(int64_t seq) const { return (queries(seq) + task_queries - 1) / task_queries; }
    // How many keys the token of a query sees.
    int64_t keys(int64_t seq, int64_t query) const {
        const int64_t length = call.seq_lens[seq], seen = length - rows(seq) + query / call.heads + 1;
        return seen <= 0 ? 0 : call.causal ? seen : length;
    }
    Task task(int64_t index) const {
        int64_t seq = 0;
        while (index >= tasks(seq)) index -= tasks(seq++);
        const int64_t first = index * task_queries, left = queries(seq) - first;
        return {seq, first, left < task_queries ? left : task_queries};
    }
};

// Queries of a task as float32 [count, width].
const float *load_queries(const Shape &shape, const Task &task) {
    const LatentCall &c = shape.call;
    float *q = scratch_of<float>(SLOT_INPUT, task.count * shape.width);
    with_type(c.type, [&](auto *tag) {
        typedef decltype(+tag) Pointer;
        for (int64_t i = 0; i < task.count; i++) {
            const int64_t token = c.query_start[task.seq] + (task.first + i) / c.heads, head = (task.first + i) % c.heads;
            const auto *latent = static_cast<Pointer>(const_cast<void *>(c.q_latent)) + token * c.latent_token_stride +
                                 head * c.latent_head_stride;
            const auto *rope = static_cast<Pointer>(const_cast<void *>(c.q_rope)) + token * c.rope_token_stride +
                               head * c.rope_head_stride;
            float *to = q + i * shape.width;
            for (int64_t d = 0; d < c.dim; d++) to[d] = to_float(latent[d]);
            for (int64_t d = 0; d < c.rope_dim; d++) to[c.dim + d] = to_float(rope[d]);
        }
    });
    return q;
}

// Keys of a chunk, transposed to [width][CHUNK], and its values as rows of `padded`; zero where not loaded.
struct Tile {
    float *keys;
    const float *values[CHUNK];
};

template <class C> void load_tile(const Shape &shape, int64_t seq, int64_t base, int64_t count, Tile &tile) {
    const LatentCall &c = shape.call;
    const int32_t *table = c.block_table + seq * c.table_width;
    const C *latents[CHUNK] = {}, *ropes[CHUNK] = {};
    const bool direct = sizeof(C) == 4 && c.dim == shape.padded;
    float *converted = scratch_of<float>(SLOT_VALUES, CHUNK * shape.padded);
    for (int64_t j = 0; j < count; j++) {
        const int64_t at = base + j, row = table[at / c.block_size] * c.block_size + at % c.block_size;
        latents[j] = static_cast<const C *>(c.latent) + row * c.dim;
        ropes[j] = static_cast<const C *>(c.rope) + row * c.rope_dim;
        float *to = converted + j * shape.padded;
        tile.values[j] = direct ? static_cast<const float *>(static_cast<const void *>(latents[j])) : to;
        if (direct) continue;
        for (int64_t d = 0; d < c.dim; d++) to[d] = to_float(latents[j][d]);
        for (int64_t d = c.dim; d < shape.padded; d++) to[d] = 0;
    }
    for (int64_t j = 0; j < count; j += 16) {
        transpose_keys(latents + j, c.dim, tile.keys + j);
        transpose_keys(ropes + j, c.rope_dim, tile.keys + c.dim * CHUNK + j);
    }
}

// T queries that see the first `count` keys of a chunk.
template <int T>
void attend_tile(const Shape &shape, const float *q, const Tile &tile, int64_t count, State *states, float *values) {
    float logits[T * CHUNK], *made = scratch_of<float>(SLOT_SCORES, T * shape.padded);
    const KeyGroups<float> keys{{tile.keys, tile.keys + 16, tile.keys + 32, tile.keys + 48}, CHUNK};
    const int64_t groups = (count + 15) / 16;
    multiply_keys<T, false>(q, shape.width, keys, 0, groups, logits, Ahead{}, 0);
    State chunk[T];
    for (int t = 0; t < T; t++)
        chunk[t] = weigh(static_cast<float>(shape.call.scale), 0, 0, count, groups, logits + t * CHUNK);
    multiply_values<T, false>(logits, tile.values, shape.padded, 0, count, true, made, shape.padded, Ahead{}, 0);
    for (int t = 0; t < T; t++)
        join(states[t], values + t * shape.padded, chunk[t], made + t * shape.padded, shape.padded);
}

void attend_chunk(const Shape &shape, const Task &task, int64_t base, const float *q, State *states, float *values) {
    const int64_t seen = shape.keys(task.seq, task.first + task.count - 1) - base, loaded = seen < CHUNK ? seen : CHUNK;
    Tile tile{scratch_of<float>(SLOT_KEYS, shape.width * CHUNK), {}};
    with_type(shape.call.cache_type, [&](auto *tag) {
        load_tile<typename std::remove_pointer<decltype(+tag)>::type>(shape, task.seq, base, loaded, tile);
    });
    auto keys = [&](int64_t i) {
        const int64_t count = shape.keys(task.seq, task.first + i) - base;
        return count < CHUNK ? count : CHUNK;
    };
    for (int64_t i = 0, count; i < task.count; i += count) {
        const int64_t own = keys(i);
        for (count = 1; count < TILE && i + count < task.count && keys(i + count) == own;) count++;
        if (own <= 0) continue;
        const float *from = q + i * shape.width;
        float *to = values + i * shape.padded;
        switch (count) {
        case 1: attend_tile<1>(shape, from, tile, own, states + i, to); break;
        case 2: attend_tile<2>(shape, from, tile, own, states + i, to); break;
        case 3: attend_tile<TILE < 3 ? TILE : 3>(shape, from, tile, own, states + i, to); break;
        default: attend_tile<TILE>(shape, from, tile, own, states + i, to);
        }
    }
}

void attend(const Shape &shape, const Task &task) {
    const LatentCall &c = shape.call;
    const float *q = load_queries(shape, task);
    State *states = scratch_of<State>(SLOT_STATE, task.count);
    float *values = scratch_of<float>(SLOT_PARTIAL, task.count * shape.padded);
    for (int64_t i = 0; i < task.count; i++) states[i] = NEW;
    const int64_t high = shape.keys(task.seq, task.first + task.count - 1);
    for (int64_t base = 0; base < high; base += CHUNK) attend_chunk(shape, task, base, q, states, values);
    const int64_t at = c.query_start[task.seq] * c.heads + task.first;
    with_type(c.type, [&](auto *tag) {
        auto *out = static_cast<decltype(+tag)>(c.out) + at * c.dim;
        for (int64_t i = 0; i < task.count; i++) {
            const bool seen = shape.keys(task.seq, task.first + i) > 0;
            const State &state = states[i];
            c.lse[at + i] = seen ? static_cast<float>(state.top + std::log(static_cast<double>(state.sum))) : NOTHING;
            for (int64_t d = 0; d < c.dim; d++)
                assign(out[i * c.dim + d], seen ? values[i * shape.padded + d] / state.sum : 0.0f);
        }
    });
}

// The first sequence whose lengths or visible blocks are out of range, or -1.
int64_t first_invalid(const Shape &shape) {
    const LatentCall &c = shape.call;
    for (int64_t s = 0; s < c.seqs; s++) {
        const int64_t rows = shape.rows(s), length = c.seq_lens[s];
        if (c.query_start[s] < 0 || rows < 0 || c.query_start[s + 1] > c.tokens || length < 0) return s;
        const int64_t used = rows == 0 ? 0 : (length + c.block_size - 1) / c.block_size;
        if (used > c.table_width) return s;
        for (int64_t b = 0; b < used; b++)
            if (c.block_table[s * c.table_width + b] < 0 || c.block_table[s * c.table_width + b] >= c.blocks) return s;
    }
    return -1;
}

void clear_rows(const LatentCall &c, int64_t first, int64_t last) {
    const size_t bytes = static_cast<size_t>(c.heads * c.dim) * (c.type == FLOAT32 ? 4 : 2);
    for (int64_t t = first; t < last; t++) {
        std::memset(static_cast<char *>(c.out) + static_cast<size_t>(t) * bytes, 0, bytes);
        for (int64_t h = 0; h < c.heads; h++) c.lse[t * c.heads + h] = NOTHING;
    }
}

} // namespace

int64_t attend_latent(const LatentCall &c) {
    auto known = [](int32_t type) { return with_type(type, [](auto *) {}); };
    if (!known(c.type) || !known(c.cache_type)) return -2;
    const Shape shape(c);
    const int64_t invalid = first_invalid(shape);
    if (invalid >= 0) return invalid;
    clear_rows(c, 0, c.seqs ? c.query_start[0] : c.tokens);
    clear_rows(c, c.seqs ? c.query_start[c.seqs] : c.tokens, c.tokens);
    int64_t tasks = 0;
    double pairs = 0;
    for (int64_t s = 0; s < c.seqs; s++) {
        tasks += shape.tasks(s);
        pairs += static_cast<double>(shape.queries(s)) * static_cast<double>(c.seq_lens[s]);
    }
    const double nanoseconds = pairs * static_cast<double>(shape.width + c.dim) / 40;
    parallel(tasks, nanoseconds, [&](int64_t i) { attend(shape, shape.task(i)); });
    return -1;
}

int64_t latent_command(Arguments a) {
    LatentCall c{a.at<void>(0),    a.at<void>(1),    a.at<void>(2), a.at<void>(3), a.at<int32_t>(4),
                 a.at<int32_t>(5), a.at<int32_t>(6), a.at<void>(7), a.at<float>(8)};
    int64_t *const sizes[] = {&c.tokens, &c.heads, &c.dim, &c.rope_dim, &c.latent_token_stride, &c.latent_head_stride,
                              &c.rope_token_stride, &c.rope_head_stride, &c.blocks, &c.block_size, &c.seqs,
                              &c.table_width};
    for (int i = 0; i < 12; i++) *sizes[i] = a.number(9 + i);
    c.scale = a.real(21);
    int32_t *const codes[] = {&c.type, &c.cache_type, &c.causal};
    for (int i = 0; i < 3; i++) *codes[i] = a.code(22 + i);
    return attend_latent(c) + 1; // -1 is success
}

// As `attend_latent`, from Python.
extern "C" __attribute__((visibility("default"))) int64_t xh_latent_attention(const LatentCall *call) {
    return attend_latent(*call);
}
