// fused_moe: the weighted sum of gated SiLU networks chosen per token.
#pragma once
#include "command.h"

// y [tokens, width] of `type` from x [tokens, width], rows x_stride values apart, and for each token the k networks
// `chosen` with their weights. gate and up are [experts, inner, width], down [experts, width, inner]: runs of `Part`, or
// of `Tiles` if `tiled`.
struct MoeCall {
    const void *x;
    const float *weights;
    const int32_t *chosen;
    const void *gate, *up, *down;
    void *y;
    int64_t tokens, k, experts, width, inner, x_stride;
    int32_t type, tiled;
};

// Returns 0, the position of the first expert that does not exist plus 1 (then nothing is written), or -1 for an
// unknown type or scheme.
int64_t run_experts(const MoeCall &call);

// The command of a program: the members of a call in their order.
int64_t moe_command(Arguments a);
