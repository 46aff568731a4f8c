// One call of mla_attention. Strides count values.
#pragma once
#include "command.h"

struct LatentCall {
    const void *q_latent, *q_rope;                       // [tokens, heads, dim] and [tokens, heads, rope_dim]
    const void *latent, *rope;                           // [blocks, block_size, width], contiguous
    const int32_t *query_start, *seq_lens, *block_table; // [seqs + 1], [seqs], [seqs, table_width]
    void *out;                                           // [tokens, heads, dim], type of q_latent
    float *lse;                                          // [tokens, heads]
    int64_t tokens, heads, dim, rope_dim, latent_token_stride, latent_head_stride, rope_token_stride, rope_head_stride;
    int64_t blocks, block_size, seqs, table_width;
    double scale;
    int32_t type, cache_type, causal;
};

// Returns -1, the first sequence with impossible lengths or blocks (then nothing is written), or -2 for an unknown
// type.
int64_t attend_latent(const LatentCall &call);

// The command of a program: the members of a call in their order.
int64_t latent_command(Arguments a);
