// Paged attention in float32. Keys are taken in chunks of 64 positions, counted from position 0 of the sequence; each
// chunk gives a maximum, a sum and a weighted value on its own, and chunks are joined in ascending order. So a row's
// result depends on its query and its keys only: not on other rows, the split of a prompt, threads or block size.
#include "attention.h"
#include "attention_tile.h"
#include "exponential.h"
#include "lanes.h"
#include "threads.h"
#include <cmath>
#include <limits>

namespace {

constexpr int64_t TASK_QUERIES = 64, SPLIT_QUERIES = 16, SPLIT_CHUNKS = 4;
#ifdef LANES_AVX512
constexpr int TILE = 4; // queries in registers
#else
constexpr int TILE = 1;
#endif
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// Rows first .. first + rows - 1 of a sequence and the query heads of one key head.
struct Task {
    int64_t seq, token, position, rows, kv_head, low, high; // keys low .. high - 1 are visible to some row
};

// Softmax state of a query: largest logit, sum of weights, and `v_padded` weighted values behind it.
struct State {
    float top, sum;
};

int64_t round_up(int64_t n) { return (n + 15) / 16 * 16; }

struct Shape {
    const AttentionCall &call;
    int64_t group, v_padded, task_rows;

    explicit Shape(const AttentionCall &c)
        : call(c), group(c.heads / c.kv_heads), v_padded(round_up(c.v_width)),
          task_rows(TASK_QUERIES / group > 1 ? TASK_QUERIES / group : 1) {}
    int64_t rows(int64_t seq) const { return call.query_start[seq + 1] - call.query_start[seq]; }
    int64_t tasks(int64_t seq) const { return (rows(seq) + task_rows - 1) / task_rows * call.kv_heads; }
    int64_t low(int64_t position) const {
        return call.window > 0 && position >= call.window ? position - call.window + 1 : 0;
    }
    int64_t high(int64_t position, int64_t length) const {
        return position < 0 ? 0 : call.causal ? position + 1 : length;
    }

    Task task(int64_t index) const {
        int64_t seq = 0;
        while (index >= tasks(seq)) index -= tasks(seq++);
        Task t{};
        const int64_t first = index / call.kv_heads * task_rows, length = call.seq_lens[seq];
        t.seq = seq;
        t.kv_head = index % call.kv_heads;
        t.rows = rows(seq) - first < task_rows ? rows(seq) - first : task_rows;
        t.token = call.query_start[seq] + first;
        t.position = length - rows(seq) + first;
        t.low = low(t.position < 0 ? 0 : t.position);
        t.high = high(t.position + t.rows - 1, length);
        return t;
    }
};

// Keys of a chunk, transposed to [k_width][CHUNK], and its values as rows of v_padded; zero where not loaded.
struct Tile {
    float *keys;
    const float *values[CHUNK];
};

template <class C> void load_tile(const Shape &shape, const Task &task, int64_t base, Tile &tile) {
    const AttentionCall &c = shape.call;
    const int64_t first = task.low > base ? task.low - base : 0;
    const int64_t last = task.high - base < CHUNK ? task.high - base : CHUNK;
    const int32_t *table = c.block_table + task.seq * c.table_stride;
    const C *keys[CHUNK] = {};
    float *converted = scratch_of<float>(SLOT_VALUES, CHUNK * shape.v_padded);
    const bool direct = sizeof(C) == 4 && c.v_width == shape.v_padded;
    for (int64_t j = first; j < last; j++) {
        const int64_t at = base + j,
                      row = (table[at / c.block_size] * c.block_size + at % c.block_size) * c.kv_heads + task.kv_head;
        keys[j] = static_cast<const C *>(c.k) + row * c.k_width;
        const C *value = static_cast<const C *>(c.v) + row * c.v_width;
        float *to = converted + j * shape.v_padded;
        tile.values[j] = direct ? static_cast<const float *>(static_cast<const void *>(value)) : to;
        if (direct) continue;
        for (int64_t d = 0; d < c.v_width; d++) to[d] = to_float(value[d]);
        for (int64_t d = c.v_width; d < shape.v_padded; d++) to[d] = 0;
    }
    for (int64_t j = first / 16 * 16; j < last; j += 16) transpose_keys(keys + j, c.k_width, tile.keys + j);
}

// Turns the logits of one query into weights; keys outside first .. last - 1 weigh 0.
State weigh(const AttentionCall &c, int64_t first, int64_t last, float *logits) {
    const float scale = static_cast<float>(c.scale);
    for (int64_t j = 0; j < CHUNK; j++) logits[j] *= scale;
    if (c.softcap > 0)
        for (int64_t j = 0; j < CHUNK; j++)
            logits[j] = static_cast<float>(c.softcap * tanh_double(logits[j] / c.softcap));
    float tops[16];
    for (int l = 0; l < 16; l++) tops[l] = NOTHING;
    for (int64_t j = 0; j < CHUNK; j += 16)
        for (int l = 0; l < 16; l++) {
            const float x = j + l >= first && j + l < last ? logits[j + l] : NOTHING;
            logits[j + l] = x;
            tops[l] = x > tops[l] ? x : tops[l];
        }
    State state{NOTHING, 0};
    for (int l = 0; l < 16; l++) state.top = tops[l] > state.top ? tops[l] : state.top;
    const float top = state.top == NOTHING ? 0 : state.top;
    for (int64_t j = 0; j < CHUNK; j++) logits[j] = exp_negative(logits[j] - top);
    state.sum = sum(add(add(load(logits), load(logits + 16)), add(load(logits + 32), load(logits + 48))));
    return state;
}

// Adds a later chunk to the state of a query.
void join(State &state, float *values, const State &chunk, const float *chunk_values, int64_t width) {
    const float top = chunk.top > state.top ? chunk.top : state.top, shift = top == NOTHING ? 0 : top;
    const float a = exp_negative(state.top - shift), b = exp_negative(chunk.top - shift);
    state.top = top;
    state.sum = multiply_add(state.sum, a, chunk.sum * b);
    const Lanes wide_a = broadcast(a), wide_b = broadcast(b);
    for (int64_t d = 0; d < width; d += 16)
        store(values + d, fma(load(values + d), wide_a, multiply(load(chunk_values + d), wide_b)));
}

// A tile of queries of one row or of rows that see the same keys of the chunk.
template <int T>
void attend_tile(const Shape &shape, const float *q, const Tile &tile, int64_t first, int64_t last, State *states,
                 float *values) {
    float logits[T * CHUNK];
    multiply_keys<T>(q, shape.call.k_width, tile.keys, logits);
    for (int t = 0; t < T; t++) states[t] = weigh(shape.call, first, last, logits + t * CHUNK);
    multiply_values<T>(logits, tile.values, shape.v_padded, first, last, values, shape.v_padded);
}

// Attends to one chunk and hands (query, state, values) of every query that sees some of it to `take`.
template <class Take>
void attend_chunk(const Shape &shape, const Task &task, int64_t chunk, const float *q, Take take) {
    const AttentionCall &c = shape.call;
    const int64_t base = chunk * CHUNK, queries = task.rows * shape.group;
    Tile tile{scratch_of<float>(SLOT_KEYS, c.k_width * CHUNK), {}};
    with_type(c.cache_type, [&](auto *tag) {
        load_tile<typename std::remove_pointer<decltype(+tag)>::type>(shape, task, base, tile);
    });
    float *values = scratch_of<float>(SLOT_SCORES, TILE * shape.v_padded);
    auto range = [&](int64_t query, int64_t &first, int64_t &last) {
        const int64_t position = task.position + query / shape.group;
        first = shape.low(position) > base ? shape.low(position) - base : 0;
        last = shape.high(position, c.seq_lens[task.seq]) - base;
        last = last < CHUNK ? last : CHUNK;
    };
    for (int64_t query = 0; query < queries;) {
        int64_t first, last, next_first, next_last, count = 1;
        range(query, first, last);
        if (first >= last) {
            query++;
            continue;
        }
        for (; count < TILE && query + count < queries; count++) {
            range(query + count, next_first, next_last);
            if (next_first != first || next_last != last) break;
        }
        State states[TILE];
        const float *from = q + query * c.k_width;
        switch (count) {
        case 1: attend_tile<1>(shape, from, tile, first, last, states, values); break;
#ifdef LANES_AVX512
        case 2: attend_tile<2>(shape, from, tile, first, last, states, values); break;
        case 3: attend_tile<3>(shape, from, tile, first, last, states, values); break;
        case 4: attend_tile<4>(shape, from, tile, first, last, states, values); break;
#endif
        }
        for (int64_t t = 0; t < count; t++) take(query + t, states[t], values + t * shape.v_padded);
        query += count;
    }
}

// The queries of a task as float32 [rows * group, k_width].
const float *load_queries(const Shape &shape, const Task &task) {
    const AttentionCall &c = shape.call;
    float *q = scratch_of<float>(SLOT_INPUT, task.rows * shape.group * c.k_width);
    with_type(c.type, [&](auto *tag) {
        for (int64_t i = 0; i < task.rows * shape.group; i++) {
            const int64_t head = task.kv_head * shape.group + i % shape.group;
            const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(c.q)) +
                               (task.token + i / shape.group) * c.token_stride + head * c.head_stride;
            for (int64_t d = 0; d < c.k_width; d++) q[i * c.k_width + d] = to_float(from[d]);
        }
    });
    return q;
}

// Divides by the sum, adds the sink, and writes output and log-sum-exp of one query.
void finish(const Shape &shape, const Task &task, int64_t query, State state, const float *values) {
    const AttentionCall &c = shape.call;
    const int64_t head = task.kv_head * shape.group + query % shape.group,
                  at = (task.token + query / shape.group) * c.heads + head;
    const int64_t position = task.position + query / shape.group;
    const bool seen = shape.low(position) < shape.high(position, c.seq_lens[task.seq]);
    float factor = 1;
    if (c.sinks && seen)
        with_type(c.sinks_type, [&](auto *tag) {
            const float sink = to_float(static_cast<decltype(+tag)>(const_cast<void *>(c.sinks))[head]);
            const float top = sink > state.top ? sink : state.top, shift = top == NOTHING ? 0 : top;
            factor = exp_negative(state.top - shift);
            state.sum = multiply_add(state.sum, factor, exp_negative(sink - shift));
            state.top = top;
        });
    const double log_sum = state.top + std::log(static_cast<double>(state.sum));
    c.lse[at] = seen ? static_cast<float>(log_sum) : NOTHING;
    with_type(c.type, [&](auto *tag) {
        auto *out = static_cast<decltype(+tag)>(c.out) + at * c.v_width;
        for (int64_t d = 0; d < c.v_width; d++) assign(out[d], seen ? values[d] * factor / state.sum : 0.0f);
    });
}

void attend(const Shape &shape, const Task &task) {
    const int64_t queries = task.rows * shape.group, width = shape.v_padded;
    const float *q = load_queries(shape, task);
    State *states = scratch_of<State>(SLOT_STATE, queries);
    float *values = scratch_of<float>(SLOT_PARTIAL, queries * width);
    for (int64_t i = 0; i < queries; i++) states[i] = {NOTHING, 0};
    std::memset(values, 0, sizeof(float) * static_cast<size_t>(queries * width));
    for (int64_t chunk = task.low / CHUNK; chunk * CHUNK < task.high; chunk++)
        attend_chunk(shape, task, chunk, q, [&](int64_t query, const State &state, const float *chunk_values) {
            join(states[query], values + query * width, state, chunk_values, width);
        });
    for (int64_t i = 0; i < queries; i++) finish(shape, task, i, states[i], values + i * width);
}

// Few queries over long contexts: chunks are attended in parallel, then joined in the same order as in `attend`.
void attend_split(const Shape &shape, int64_t tasks, int64_t most_chunks, double nanoseconds) {
    const int64_t queries =
        shape.group * shape.task_rows < SPLIT_QUERIES ? shape.group * shape.task_rows : SPLIT_QUERIES;
    const int64_t width = shape.v_padded, cell = width + 2; // values, top, sum
    float *cells = scratch_of<float>(SLOT_PANEL, tasks * most_chunks * queries * cell);
    auto cell_at = [&](int64_t task, int64_t index, int64_t query) {
        return cells + ((task * most_chunks + index) * queries + query) * cell;
    };
    parallel(tasks * most_chunks, nanoseconds, [&](int64_t i) {
        const Task task = shape.task(i / most_chunks);
        const int64_t index = i % most_chunks, chunk = task.low / CHUNK + index;
        if (chunk * CHUNK >= task.high) return;
        attend_chunk(shape, task, chunk, load_queries(shape, task),
                     [&](int64_t query, const State &state, const float *values) {
                         float *to = cell_at(i / most_chunks, index, query);
                         std::memcpy(to, values, sizeof(float) * static_cast<size_t>(width));
                         to[width] = state.top;
                         to[width + 1] = state.sum;
                     });
    });
    float *values = scratch_of<float>(SLOT_PARTIAL, width);
    for (int64_t t = 0; t < tasks; t++) {
        const Task task = shape.task(t);
        for (int64_t query = 0; query < task.rows * shape.group; query++) {
            const int64_t position = task.position + query / shape.group;
            const int64_t low = shape.low(position), high = shape.high(position, shape.call.seq_lens[task.seq]);
            State state{NOTHING, 0};
            std::memset(values, 0, sizeof(float) * static_cast<size_t>(width));
            for (int64_t chunk = low / CHUNK; chunk * CHUNK < high; chunk++) {
                const float *from = cell_at(t, chunk - task.low / CHUNK, query);
                join(state, values, {from[width], from[width + 1]}, from, width);
            }
            finish(shape, task, query, state, values);
        }
    }
}

// The first sequence whose lengths or visible blocks are out of range, or -1.
int64_t first_invalid(const Shape &shape) {
    const AttentionCall &c = shape.call;
    for (int64_t s = 0; s < c.seqs; s++) {
        const int64_t rows = shape.rows(s), length = c.seq_lens[s];
        if (c.query_start[s] < 0 || rows < 0 || c.query_start[s + 1] > c.tokens || length < 0) return s;
        if (rows == 0) continue;
        const int64_t start = length - rows < 0 ? 0 : length - rows, high = shape.high(length - 1, length);
        if ((high + c.block_size - 1) / c.block_size > c.table_width) return s;
        for (int64_t b = shape.low(start) / c.block_size; b * c.block_size < high; b++) {
            const int32_t block = c.block_table[s * c.table_stride + b];
            if (block < 0 || block >= c.blocks) return s;
        }
    }
    return -1;
}

void clear_rows(const AttentionCall &c, int64_t first, int64_t last) {
    const size_t bytes = static_cast<size_t>(c.heads * c.v_width) * (c.type == FLOAT32 ? 4 : 2);
    for (int64_t t = first; t < last; t++) {
        std::memset(static_cast<char *>(c.out) + static_cast<size_t>(t) * bytes, 0, bytes);
        for (int64_t h = 0; h < c.heads; h++) c.lse[t * c.heads + h] = NOTHING;
    }
}

} // namespace

// Returns -1, the first sequence with impossible lengths or blocks (then nothing is written), or -2 for an unknown
// type.
extern "C" __attribute__((visibility("default"))) int64_t xh_paged_attention(const AttentionCall *call) {
    const AttentionCall &c = *call;
    auto known = [](int32_t type) { return with_type(type, [](auto *) {}); };
    if (!known(c.type) || !known(c.cache_type) || (c.sinks && !known(c.sinks_type))) return -2;
    const Shape shape(c);
    const int64_t invalid = first_invalid(shape);
    if (invalid >= 0) return invalid;
    clear_rows(c, 0, c.seqs ? c.query_start[0] : c.tokens);
    clear_rows(c, c.seqs ? c.query_start[c.seqs] : c.tokens, c.tokens);
    int64_t tasks = 0, most_queries = 0, most_chunks = 0;
    double pairs = 0;
    for (int64_t s = 0; s < c.seqs; s++) {
        const int64_t rows = shape.rows(s), length = c.seq_lens[s];
        const int64_t first = length > rows ? shape.low(length - rows) : 0, keys = rows > 0 ? length - first : 0;
        const int64_t chunks = keys > 0 ? (length - 1) / CHUNK - first / CHUNK + 1 : 0, queries = rows * shape.group;
        tasks += shape.tasks(s);
        most_queries = queries > most_queries ? queries : most_queries;
        most_chunks = chunks > most_chunks ? chunks : most_chunks;
        pairs += static_cast<double>(rows * c.heads) * static_cast<double>(keys);
    }
    const double nanoseconds = pairs * static_cast<double>(c.k_width + c.v_width) / 40;
    if (tasks < 2 * thread_count() && thread_count() > 1 && most_queries <= SPLIT_QUERIES &&
        most_chunks >= SPLIT_CHUNKS)
        attend_split(shape, tasks, most_chunks, nanoseconds);
    else
        parallel(tasks, nanoseconds, [&](int64_t i) { attend(shape, shape.task(i)); });
    return -1;
}
