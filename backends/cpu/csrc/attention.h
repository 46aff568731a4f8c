// One call of paged_attention as the kernel sees it. Strides count values.
#pragma once
#include <cstdint>

struct AttentionCall {
    const void *q;                                       // [tokens, heads, k_width]
    const void *k, *v;                                   // [blocks, block_size, kv_heads, width], contiguous
    const int32_t *query_start, *seq_lens, *block_table; // [seqs + 1], [seqs], [seqs, table_width]
    const void *sinks;                                   // [heads] or null
    void *out;                                           // [tokens, heads, v_width], type of q
    float *lse;                                          // [tokens, heads]
    int64_t tokens, heads, kv_heads, k_width, v_width, token_stride, head_stride;
    int64_t blocks, block_size, seqs, table_width, table_stride;
    double scale, softcap; // softcap 0: none
    int64_t window;        // 0: none
    int32_t type, cache_type, sinks_type, causal;
};
