// Where the keys and values of a chunk of 64 positions lie in a paged cache, and how they are brought together.
#pragma once
#include "attention.h"
#include "attention_tile.h"
#include "lanes.h"
#include "threads.h"

// Some rows of a sequence, from `token` at `position` on, and query heads from `head` on, all of one key head.
struct Task {
    int64_t seq, token, position, rows, head, kv_head, low, high; // keys low .. high - 1 are visible to some row
};

// Keys first .. last - 1 of a chunk.
struct Range {
    int64_t first, last;
    bool empty() const { return first >= last; }
};

static inline int64_t round_up(int64_t n) { return (n + 15) / 16 * 16; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

// The keys of a chunk in groups, and its values as rows of v_padded.
template <class C> struct Chunk {
    KeyGroups<C> keys;
    const C *values[CHUNK];
    float k_scale[CHUNK], v_scale[CHUNK]; // of codes, 0 where nothing is seen; else not written
    int64_t groups;                       // that are loaded
    Ahead own_values, next_keys; // pieces to be fetched, if there are next keys
    bool fetches() const { return next_keys.piece[0] != nullptr; }
};

// Where keys and values of a task lie in the cache, position by position.
template <class C> struct Pages {
    const AttentionCall &c;
    const int32_t *table;
    const C *k, *v;

    Pages(const AttentionCall &call, const Task &task)
        : c(call), table(call.block_table + task.seq * call.table_stride),
          k(static_cast<const C *>(call.k) + task.kv_head * call.k_strides.head),
          v(static_cast<const C *>(call.v) + task.kv_head * call.v_strides.head) {}
    const C *key(int64_t p) const {
        return k + table[p / c.block_size] * c.k_strides.block + p % c.block_size * c.k_strides.slot;
    }
    const C *value(int64_t p) const {
        return v + table[p / c.block_size] * c.v_strides.block + p % c.block_size * c.v_strides.slot;
    }
    // Whether sixteen keys adjoin, dim by dim, as `KeyGroups` has them.
    bool grouped() const { return c.k_strides.slot == 1 && c.block_size % 16 == 0; }
    bool whole_rows() const { return c.v_width % 16 == 0; }
    // Whether the keys of a head adjoin in a block, and its values, in pieces of a page or less: the prefetchers of
    // processors stop at the end of a page, and are better left alone before it.
    bool scattered() const {
        return c.k_strides.dim == c.block_size && c.v_strides.slot == c.v_width &&
               16 * c.k_width * static_cast<int64_t>(sizeof(C)) <= 4096;
    }
    // The keys of the chunk at `base`, as far as they are before `high`, in pieces as large as sixteen keys.
    Ahead pieces(int64_t base, int64_t high) const {
        Ahead made;
        if (!grouped() || !scattered() || base >= high) return made;
        for (int64_t g = 0; g < GROUPS; g++) {
            const int64_t p = smaller(base + 16 * g, (high - 1) / 16 * 16);
            const C *block = key(p - p % c.block_size);
            made.piece[g] = reinterpret_cast<const char *>(block + p % c.block_size * c.k_width);
        }
        return made;
    }
};

// The scales of the codes of a chunk, block by block.
template <class C> void load_scales(const Pages<C> &pages, const Task &task, int64_t base, Range seen, float *k, float *v) {
    const AttentionCall &c = pages.c;
    for (int64_t j = 0; j < CHUNK; j++) k[j] = v[j] = 0;
    for (int64_t j = seen.first; j < seen.last;) {
        const int64_t block = pages.table[(base + j) / c.block_size], slot = (base + j) % c.block_size;
        const int64_t stop = smaller(seen.last, j + c.block_size - slot);
        auto from = [&](const float *scales, const PageStrides &s) {
            return scales + block * s.block + slot * s.slot + task.kv_head * s.head;
        };
        const float *k_from = from(c.k_scale, c.k_scale_strides), *v_from = from(c.v_scale, c.v_scale_strides);
        for (int64_t i = 0; j < stop; i++, j++) {
            k[j] = k_from[i * c.k_scale_strides.slot];
            v[j] = v_from[i * c.v_scale_strides.slot];
        }
    }
}

// The chunk as it lies in the cache; only for pages that are grouped and have whole rows.
template <class C> void point_at(const Pages<C> &pages, int64_t base, Range seen, Chunk<C> &chunk) {
    chunk.keys.stride = pages.c.k_strides.dim;
    chunk.groups = (seen.last + 15) / 16;
    for (int64_t g = seen.first / 16; g < chunk.groups; g++) {
        chunk.keys.group[g] = pages.key(base + 16 * g);
        const C *row = pages.value(base + 16 * g);
        for (int64_t j = 0; j < 16; j++) chunk.values[16 * g + j] = row + j * pages.c.v_strides.slot;
        chunk.own_values.piece[g] = reinterpret_cast<const char *>(row);
    }
}

// Dims of sixteen keys, null where there is none, as columns of `to` [k_width][CHUNK].
template <class C> void gather_keys(const Pages<C> &pages, const C *const *keys, float *to) {
    if (pages.c.k_strides.dim == 1) return transpose_keys(keys, pages.c.k_width, to);
    for (int64_t d = 0; d < pages.c.k_width; d++)
        for (int j = 0; j < 16; j++) to[d * CHUNK + j] = keys[j] ? to_float(keys[j][d * pages.c.k_strides.dim]) : 0.0f;
}

// The chunk in float32 in scratch memory.
template <class C> void widen(const Pages<C> &pages, int64_t v_padded, int64_t base, Range seen, Chunk<float> &chunk) {
    const AttentionCall &c = pages.c;
    float *to = scratch_of<float>(SLOT_KEYS, c.k_width * CHUNK);
    chunk.keys.stride = CHUNK;
    chunk.groups = (seen.last + 15) / 16;
    for (int64_t g = seen.first / 16; g < chunk.groups; g++) {
        chunk.keys.group[g] = to + 16 * g;
        if (pages.grouped()) {
            const C *from = pages.key(base + 16 * g);
            for (int64_t d = 0; d < c.k_width; d++) store(to + d * CHUNK + 16 * g, load(from + d * c.k_strides.dim));
            continue;
        }
        const C *keys[16] = {};
        for (int64_t j = greater(seen.first, 16 * g); j < smaller(seen.last, 16 * g + 16); j++)
            keys[j % 16] = pages.key(base + j);
        gather_keys(pages, keys, to + 16 * g);
    }
    float *rows = scratch_of<float>(SLOT_VALUES, CHUNK * v_padded);
    for (int64_t j = seen.first; j < seen.last; j++) {
        const C *from = pages.value(base + j);
        chunk.values[j] = rows + j * v_padded;
        if (sizeof(C) == 4 && pages.whole_rows()) {
            chunk.values[j] = static_cast<const float *>(static_cast<const void *>(from));
            continue;
        }
        int64_t d = 0;
        for (; d + 16 <= c.v_width; d += 16) store(rows + j * v_padded + d, load(from + d));
        for (; d < v_padded; d++) rows[j * v_padded + d] = d < c.v_width ? to_float(from[d]) : 0.0f;
    }
}
