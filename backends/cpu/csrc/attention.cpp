// Paged attention in float32. Keys are taken in chunks of 64 positions, counted from position 0 of the sequence; each
// chunk gives a maximum, a sum and a weighted value on its own, and chunks are joined in ascending order. So a row's
// result depends on its query and its keys only: not on other rows, the split of a prompt, threads, block size or the
// layout of the cache.
#include "kernels.h"
#include "attention.h"
#include "attention_pages.h"
#include "attention_tile.h"
#include "lanes.h"
#include "softmax.h"
#include "threads.h"
#include <cmath>

namespace {

constexpr int64_t TASK_QUERIES = 64, SPLIT_QUERIES = 16, SPLIT_CHUNKS = 2;
constexpr int64_t LONGEST_RUN = 16, RUNS_PER_THREAD = 8; // tasks or chunks that a thread takes at a time
constexpr int64_t WIDEN_QUERIES = 12; // from so many queries on, a chunk of 16-bit numbers is widened once

// The heads that share a key head are taken in `parts` of `group` heads, so that even one key head keeps threads busy.
struct Shape {
    const AttentionCall &call;
    int64_t parts, group, v_padded, task_rows;

    explicit Shape(const AttentionCall &c)
        : call(c), parts(parts_of(c.heads / c.kv_heads)), group(c.heads / c.kv_heads / parts),
          v_padded(round_up(c.v_width)), task_rows(greater(TASK_QUERIES / group, 1)) {}
    static int64_t parts_of(int64_t heads) {
        int64_t parts = (heads + SPLIT_QUERIES - 1) / SPLIT_QUERIES;
        while (heads % parts) parts++;
        return parts;
    }
    int64_t rows(int64_t seq) const { return call.query_start[seq + 1] - call.query_start[seq]; }
    int64_t tasks(int64_t seq) const { return (rows(seq) + task_rows - 1) / task_rows * call.kv_heads * parts; }
    int64_t low(int64_t position) const {
        return call.window > 0 && position >= call.window ? position - call.window + 1 : 0;
    }
    int64_t high(int64_t position, int64_t length) const {
        return position < 0 ? 0 : call.causal ? position + 1 : length;
    }
    // What a row of a task sees of the chunk at `base`.
    Range range(const Task &task, int64_t row, int64_t base) const {
        const int64_t position = task.position + row;
        return {greater(low(position) - base, 0), smaller(high(position, call.seq_lens[task.seq]) - base, CHUNK)};
    }

    Task task(int64_t index) const {
        int64_t seq = 0;
        while (index >= tasks(seq)) index -= tasks(seq++);
        Task t{};
        const int64_t length = call.seq_lens[seq], first = index / (call.kv_heads * parts) * task_rows;
        t.seq = seq;
        t.head = index % (call.kv_heads * parts) * group;
        t.kv_head = t.head / (parts * group);
        t.rows = smaller(rows(seq) - first, task_rows);
        t.token = call.query_start[seq] + first;
        t.position = length - rows(seq) + first;
        t.low = low(greater(t.position, 0));
        t.high = high(t.position + t.rows - 1, length);
        return t;
    }
};

// Rows of T queries times what a chunk has for each key, from `first` on.
template <int T> void scale_keys(const float *scales, int64_t first, int64_t last, float *rows) {
    for (int t = 0; t < T; t++)
        for (int64_t j = first / 16 * 16; j < last; j += 16)
            store(rows + t * CHUNK + j, multiply(load(rows + t * CHUNK + j), load(scales + j)));
}

// T queries over one chunk: their states and weighted values. FETCH: what is read next is fetched on the way.
template <int T, bool FETCH, class C>
void attend_tile(const Shape &shape, const float *q, const Chunk<C> &chunk, const Range *ranges, State *states,
                 float *values) {
    const AttentionCall &c = shape.call;
    Range all = ranges[0], common = ranges[0];
    for (int t = 1; t < T; t++) {
        all = {smaller(all.first, ranges[t].first), greater(all.last, ranges[t].last)};
        common = {greater(common.first, ranges[t].first), smaller(common.last, ranges[t].last)};
    }
    float logits[T * CHUNK];
    const int64_t first_group = all.first / 16, groups = (all.last + 15) / 16;
    for (int t = 0; t < T && first_group > 0; t++)
        std::memset(logits + t * CHUNK, 0, sizeof(float) * static_cast<size_t>(16 * first_group));
    const int64_t key_row = 16 * c.v_width * static_cast<int64_t>(sizeof(C)) / c.k_width;
    const int64_t value_row = c.k_width * static_cast<int64_t>(sizeof(C));
    multiply_keys<T, FETCH>(q, c.k_width, chunk.keys, first_group, groups, logits, chunk.own_values, key_row);
    if (c.k_scale) scale_keys<T>(chunk.k_scale, all.first, all.last, logits);
    for (int t = 0; t < T; t++)
        states[t] = weigh(static_cast<float>(c.scale), c.softcap, ranges[t].first, ranges[t].last, groups,
                          logits + t * CHUNK);
    if (c.v_scale) scale_keys<T>(chunk.v_scale, all.first, all.last, logits); // now weights, whose sums are taken
    const int64_t width = shape.v_padded;
    auto alone = [&](int t, int64_t first, int64_t last, bool fresh) {
        if (first < last || fresh)
            multiply_values<1, FETCH>(logits + t * CHUNK, chunk.values, width, first, last, fresh, values + t * width,
                                      width, chunk.next_keys, value_row);
    };
    if (T == 1 || common.empty()) {
        for (int t = 0; t < T; t++) alone(t, ranges[t].first, ranges[t].last, true);
        return;
    }
    bool fresh = true;
    for (int t = 0; t < T; t++) fresh = fresh && ranges[t].first == common.first;
    for (int t = 0; t < T && !fresh; t++) alone(t, ranges[t].first, common.first, true);
    multiply_values<T, FETCH>(logits, chunk.values, width, common.first, common.last, fresh, values, width,
                              chunk.next_keys, value_row);
    for (int t = 0; t < T; t++) alone(t, common.last, ranges[t].last, false);
}

template <bool FETCH, class C>
void attend_tiles(int64_t count, const Shape &shape, const float *q, const Chunk<C> &chunk, const Range *ranges,
                  State *states, float *values) {
    switch (count) {
    case 1: return attend_tile<1, FETCH>(shape, q, chunk, ranges, states, values);
    case 2: return attend_tile<2, FETCH>(shape, q, chunk, ranges, states, values);
    case 3: return attend_tile<TILE < 3 ? TILE : 3, FETCH>(shape, q, chunk, ranges, states, values);
    default: return attend_tile<TILE, FETCH>(shape, q, chunk, ranges, states, values);
    }
}

// Hands (query, state, values) of every query that sees some of a chunk to `take`.
template <class C, class Take>
void attend_queries(const Shape &shape, const Task &task, int64_t base, const float *q, const Chunk<C> &chunk,
                    Take take) {
    const int64_t queries = task.rows * shape.group, k_width = shape.call.k_width;
    float *values = scratch_of<float>(SLOT_SCORES, TILE * shape.v_padded);
    for (int64_t query = 0; query < queries;) {
        Range ranges[TILE];
        int64_t count = 0;
        for (; count < TILE && query + count < queries; count++) {
            ranges[count] = shape.range(task, (query + count) / shape.group, base);
            if (ranges[count].empty()) break;
        }
        State states[TILE];
        const float *from = q + query * k_width;
        if (count == 0) {
            query++;
            continue;
        }
        if (chunk.fetches() && query == 0)
            attend_tiles<true>(count, shape, from, chunk, ranges, states, values);
        else
            attend_tiles<false>(count, shape, from, chunk, ranges, states, values);
        for (int64_t t = 0; t < count; t++) take(query + t, states[t], values + t * shape.v_padded);
        query += count;
    }
}

template <class C, class Take>
void attend_chunk(const Shape &shape, const Task &task, int64_t index, const float *q, const Ahead &next, Take take) {
    const int64_t base = index * CHUNK;
    const Range seen{greater(task.low - base, 0), smaller(task.high - base, CHUNK)};
    const Pages<C> pages(shape.call, task);
    const bool whole = pages.grouped() && pages.whole_rows();
    if (whole && (sizeof(C) == 4 || task.rows * shape.group < WIDEN_QUERIES)) {
        Chunk<C> chunk;
        point_at(pages, base, seen, chunk);
        if (shape.call.k_scale) load_scales(pages, task, base, seen, chunk.k_scale, chunk.v_scale);
        chunk.next_keys = next.piece[0] ? next : pages.pieces(base, task.high);
        attend_queries(shape, task, base, q, chunk, take);
    } else {
        Chunk<float> chunk;
        widen(pages, shape.v_padded, base, seen, chunk);
        if (shape.call.k_scale) load_scales(pages, task, base, seen, chunk.k_scale, chunk.v_scale);
        attend_queries(shape, task, base, q, chunk, take);
    }
}

// The queries of a task as float32 [rows * group, k_width].
const float *load_queries(const Shape &shape, const Task &task) {
    const AttentionCall &c = shape.call;
    const int64_t first = task.token * c.token_stride + task.head * c.head_stride;
    if (c.type == FLOAT32 && c.head_stride == c.k_width &&
        (task.rows == 1 || c.token_stride == shape.group * c.k_width))
        return static_cast<const float *>(c.q) + first;
    float *q = scratch_of<float>(SLOT_INPUT, task.rows * shape.group * c.k_width);
    with_type(c.type, [&](auto *tag) {
        for (int64_t i = 0; i < task.rows * shape.group; i++) {
            const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(c.q)) + first +
                               i / shape.group * c.token_stride + i % shape.group * c.head_stride;
            for (int64_t d = 0; d < c.k_width; d++) q[i * c.k_width + d] = to_float(from[d]);
        }
    });
    return q;
}

// Divides by the sum, adds the sink, and writes output and log-sum-exp of one query.
void finish(const Shape &shape, const Task &task, int64_t query, State state, const float *values) {
    const AttentionCall &c = shape.call;
    const int64_t head = task.head + query % shape.group,
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
    if (c.lse)
        c.lse[at] = seen ? static_cast<float>(state.top + std::log(static_cast<double>(state.sum))) : NOTHING;
    with_type(c.type, [&](auto *tag) {
        auto *out = static_cast<decltype(+tag)>(c.out) + at * c.v_width;
        for (int64_t d = 0; d < c.v_width; d++) assign(out[d], seen ? values[d] * factor / state.sum : 0.0f);
    });
}

// The keys of a chunk, where they may be fetched before they are read.
template <class C> Ahead keys_of(const Shape &shape, const Task &task, int64_t chunk) {
    return Pages<C>(shape.call, task).pieces(chunk * CHUNK, task.high);
}

// Tasks first .. last - 1, the latest rows of prompts before earlier ones, for they see most.
template <class C> void attend(const Shape &shape, int64_t tasks, int64_t first, int64_t last) {
    Task task = shape.task(tasks - 1 - first);
    for (int64_t i = first; i < last; i++) {
        const int64_t queries = task.rows * shape.group, width = shape.v_padded;
        const Task following = i + 1 < last ? shape.task(tasks - 2 - i) : Task{};
        const float *q = load_queries(shape, task);
        State *states = scratch_of<State>(SLOT_STATE, queries);
        float *values = scratch_of<float>(SLOT_PARTIAL, queries * width);
        for (int64_t query = 0; query < queries; query++) states[query] = NEW;
        for (int64_t chunk = task.low / CHUNK; chunk * CHUNK < task.high; chunk++) {
            const Ahead next = (chunk + 1) * CHUNK < task.high ? keys_of<C>(shape, task, chunk + 1)
                                                               : keys_of<C>(shape, following, following.low / CHUNK);
            auto take = [&](int64_t query, const State &state, const float *chunk_values) {
                join(states[query], values + query * width, state, chunk_values, width);
            };
            attend_chunk<C>(shape, task, chunk, q, next, take);
        }
        for (int64_t query = 0; query < queries; query++)
            finish(shape, task, query, states[query], values + query * width);
        task = following;
    }
}

// Few queries over long contexts: chunks are attended in parallel, then joined in the same order as in `attend`.
template <class C> void attend_split(const Shape &shape, int64_t tasks, int64_t most_chunks, double nanoseconds) {
    const int64_t queries = smaller(shape.group * shape.task_rows, SPLIT_QUERIES);
    const int64_t width = shape.v_padded, cell = width + 16; // top, sum, padding, values
    float *cells = scratch_of<float>(SLOT_PANEL, tasks * most_chunks * queries * cell);
    auto cell_at = [&](int64_t task, int64_t index, int64_t query) {
        return cells + ((task * most_chunks + index) * queries + query) * cell;
    };
    const int64_t units = tasks * most_chunks;
    const int64_t runs = greater(thread_count(), smaller(units, (units + LONGEST_RUN - 1) / LONGEST_RUN));
    parallel(runs, nanoseconds, [&](int64_t run) {
        for (int64_t i = run * units / runs; i < (run + 1) * units / runs; i++) {
            const Task task = shape.task(i / most_chunks);
            const int64_t index = i % most_chunks, chunk = task.low / CHUNK + index;
            if (chunk * CHUNK >= task.high) continue;
            Ahead next = keys_of<C>(shape, task, chunk + 1);
            if (!next.piece[0] && i / most_chunks + 1 < tasks) {
                const Task following = shape.task(i / most_chunks + 1);
                next = keys_of<C>(shape, following, following.low / CHUNK);
            }
            attend_chunk<C>(shape, task, chunk, load_queries(shape, task), next,
                            [&](int64_t query, const State &state, const float *values) {
                                float *to = cell_at(i / most_chunks, index, query);
                                to[0] = state.top;
                                to[1] = state.sum;
                                std::memcpy(to + 16, values, sizeof(float) * static_cast<size_t>(width));
                            });
        }
    });
    const double joins = static_cast<double>(tasks * most_chunks * queries);
    parallel(tasks * queries, joins * (20 + static_cast<double>(width) / 8), [&](int64_t i) {
        const Task task = shape.task(i / queries);
        const int64_t query = i % queries, position = task.position + query / shape.group;
        if (query >= task.rows * shape.group) return;
        const int64_t low = shape.low(position), high = shape.high(position, shape.call.seq_lens[task.seq]);
        float *values = scratch_of<float>(SLOT_PARTIAL, width);
        State state = NEW;
        for (int64_t chunk = low / CHUNK; chunk * CHUNK < high; chunk++) {
            const float *from = cell_at(i / queries, chunk - task.low / CHUNK, query);
            join(state, values, {from[0], from[1]}, from + 16, width);
        }
        finish(shape, task, query, state, values);
    });
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
    const size_t bytes = static_cast<size_t>(c.heads * c.v_width * value_bytes(c.type));
    for (int64_t t = first; t < last; t++) {
        std::memset(static_cast<char *>(c.out) + static_cast<size_t>(t) * bytes, 0, bytes);
        for (int64_t h = 0; h < c.heads && c.lse; h++) c.lse[t * c.heads + h] = NOTHING;
    }
}

} // namespace

// Returns -1, the first sequence with impossible lengths or blocks (then nothing is written), or -2 for an unknown
// type.
extern "C" __attribute__((visibility("default"))) int64_t xh_paged_attention(const AttentionCall *call) {
    const AttentionCall &c = *call;
    auto known = [](int32_t type) { return with_type(type, [](auto *) {}); };
    if (!known(c.type) || (c.sinks && !known(c.sinks_type))) return -2;
    if (!known(c.cache_type) && !(c.cache_type == INT8 && c.k_scale && c.v_scale)) return -2;
    const Shape shape(c);
    const int64_t invalid = first_invalid(shape);
    if (invalid >= 0) return invalid;
    clear_rows(c, 0, c.seqs ? c.query_start[0] : c.tokens);
    clear_rows(c, c.seqs ? c.query_start[c.seqs] : c.tokens, c.tokens);
    int64_t tasks = 0, most_queries = 0, most_chunks = 0;
    double pairs = 0, keys_read = 0;
    for (int64_t s = 0; s < c.seqs; s++) {
        const int64_t rows = shape.rows(s), length = c.seq_lens[s];
        const int64_t first = length > rows ? shape.low(length - rows) : 0, keys = rows > 0 ? length - first : 0;
        const int64_t chunks = keys > 0 ? (length - 1) / CHUNK - first / CHUNK + 1 : 0, queries = rows * shape.group;
        tasks += shape.tasks(s);
        most_queries = queries > most_queries ? queries : most_queries;
        most_chunks = chunks > most_chunks ? chunks : most_chunks;
        pairs += static_cast<double>(rows * c.heads) * static_cast<double>(keys);
        keys_read += static_cast<double>(keys);
    }
    const double widths = static_cast<double>(c.k_width + c.v_width);
    const double bytes = keys_read * widths * static_cast<double>(c.kv_heads * value_bytes(c.cache_type));
    const double nanoseconds = pairs * widths / 40 + bytes / 20;
    with_cache_type(c.cache_type, [&](auto *tag) {
        typedef typename std::remove_pointer<decltype(+tag)>::type C;
        if (tasks < 2 * thread_count() && thread_count() > 1 && most_queries <= SPLIT_QUERIES &&
            most_chunks >= SPLIT_CHUNKS)
            attend_split<C>(shape, tasks, most_chunks, nanoseconds);
        else {
            const int64_t runs = smaller(tasks, greater(RUNS_PER_THREAD * thread_count(), tasks / LONGEST_RUN));
            parallel(runs, nanoseconds,
                     [&](int64_t i) { attend<C>(shape, tasks, i * tasks / runs, (i + 1) * tasks / runs); });
        }
    });
    return -1;
}
