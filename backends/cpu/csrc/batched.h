// batched_linear: each head of x times a weight of its own.
#pragma once
#include "command.h"

struct Part;

// y [tokens, heads, rows] of `type`, contiguous, from x [tokens, heads, columns] with strides in values. The parts hold
// a weight [heads, rows, columns], or [heads, columns, rows] if `transposed`.
struct BatchedCall {
    const void *x;
    const Part *parts;
    void *y;
    int64_t tokens, heads, columns, rows, token_stride, head_stride;
    int32_t type, transposed;
};

// Returns 0, or -1 for an unknown type or scheme.
int64_t multiply_heads(const BatchedCall &call);

// The command of a program: the members of a call in their order.
int64_t batched_command(Arguments a);
