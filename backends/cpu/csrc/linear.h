// Products with packed or dense weight rows, accumulated in float32.
#pragma once
#include "weights.h"

// y [tokens, rows] of x_type, whose rows are y_stride values apart, = x W^T + bias for the rows of all parts; x [tokens,
// k] of x_type with x_stride values from row to row; bias [rows] of bias_type or null. Returns 0, or -1 for an unknown
// type or scheme.
int32_t multiply_weight(const void *x, int32_t x_type, int64_t tokens, int64_t k, int64_t x_stride, const Part *parts,
                        int32_t part_count, const void *bias, int32_t bias_type, void *y, int64_t y_stride);
