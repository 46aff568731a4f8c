// Choosing experts, sorting rows by expert and adding them up again.
#pragma once
#include "command.h"

// moe_gating_topk: `weights` float32 and `chosen` int32 [tokens, k] from logits [tokens, experts] of `type`, rows of
// them `stride` values apart; bias [experts] of bias_type or null.
struct GatingCall {
    const void *logits, *bias;
    float *weights;
    int32_t *chosen;
    int64_t tokens, experts, stride, k, groups, groups_kept;
    double scale;
    int32_t type, bias_type, sigmoid, renormalise, top2;
};

// Returns 0, or -1 for an unknown type.
int64_t choose_experts(const GatingCall &call);

// y [tokens * k, bytes], order [tokens * k] and counts [experts] from rows of x, x_stride bytes apart, and experts
// `chosen` [tokens, k]. Returns 0, or the position of the first expert that does not exist plus 1 (then nothing is
// written).
int64_t sort_by_expert(const void *x, int64_t x_stride, int64_t bytes, const int32_t *chosen, int64_t tokens, int64_t k,
                       int64_t experts, void *y, int32_t *order, int32_t *counts);

// y [tokens, width] of y_type = for each token the sum of weights [tokens, k] times its rows; rows [tokens * k, width] of
// `type` and `order` are those of `sort_by_expert`. Returns 0, the position of the first element plus 1 that makes
// `order` no permutation, or -1 for an unknown type.
int64_t sum_experts(const void *rows, int32_t type, const int32_t *order, const float *weights, int64_t tokens,
                    int64_t k, int64_t width, int32_t y_type, void *y);

// The commands of a program for them.
int64_t gating_command(Arguments a);
int64_t permute_command(Arguments a);
int64_t unpermute_command(Arguments a);
