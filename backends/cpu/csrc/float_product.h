// Products of float activations with tiled weights, accumulated in float32.
#pragma once
#include "float_tiles.h"
#include "tile_product.h"

// y = x W^T + bias for x [tokens, k] of `type`, rows of it `stride` values apart, and all jobs in one parallel section.
// `rounded` rounds activations to bfloat16 first. False for an unknown type or format.
bool multiply_floats(const void *x, int32_t type, int64_t tokens, int64_t k, int64_t stride, const TileJob *jobs,
                     int32_t count, bool rounded);
