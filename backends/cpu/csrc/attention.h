// One call of paged_attention as the kernel sees it. Strides count values. Keys and values of INT8 are codes times
// scales.
#pragma once
#include <cstdint>

// Where the value of a cache lies: pages + block * block_stride + offset in the block * slot + head * head_stride +
// dim * dim_stride.
struct PageStrides {
    int64_t block, slot, head, dim;
};

struct AttentionCall {
    const void *q;                                       // [tokens, heads, k_width]
    const void *k, *v;                                   // [blocks, block_size, kv_heads, width]; dims of v adjoin
    const float *k_scale, *v_scale;                      // [blocks, block_size, kv_heads] of INT8, else null
    const int32_t *query_start, *seq_lens, *block_table; // [seqs + 1], [seqs], [seqs, table_width]
    const void *sinks;                                   // [heads] or null
    void *out;                                           // [tokens, heads, v_width], type of q
    float *lse;                                          // [tokens, heads] or null
    int64_t tokens, heads, kv_heads, k_width, v_width, token_stride, head_stride;
    int64_t blocks, block_size, seqs, table_width, table_stride;
    PageStrides k_strides, v_strides, k_scale_strides, v_scale_strides; // scales have no dims
    double scale, softcap; // softcap 0: none
    int64_t window;        // 0: none
    int32_t type, cache_type, sinks_type, causal;
};
