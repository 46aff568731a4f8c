// Products of int8 activations with tiled weights.
#pragma once
#include "activations.h"
#include "tiles.h"

// y [tokens, rows] of `type`, rows of it `stride` values apart, for all rows of `tiles`; bias [rows] or null.
// Mirrored by kernels/tiles.py.
struct TileJob {
    const Tiles *tiles;
    const void *bias;
    void *y;
    int64_t stride;
    int32_t bias_type, type;
};

// All jobs share x and run in one parallel section.
void multiply_tiles(const Activations &x, const TileJob *jobs, int32_t count);
