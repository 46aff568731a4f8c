// The functions of the library under test, as kernels/library.py declares them.
#pragma once
#include "attention.h"
#include "pointwise.h"
#include "tile_product.h"
#include "weights.h"

// One argument and one command of a program; `Argument` and `Command` in csrc/program.cpp.
struct Argument {
    int64_t value;
    int32_t kind, index;
};
struct Command {
    int32_t code, first, count;
};

extern "C" {
int32_t xh_set_threads(int32_t count);
int32_t xh_threads();
int32_t xh_scheme(const char *name);
int32_t xh_linear(const void *x, int32_t x_type, int64_t tokens, int64_t k, int64_t x_stride, const Part *parts,
                  int32_t part_count, const void *bias, int32_t bias_type, void *y);
int64_t xh_embedding(const void *indices, int32_t wide, int64_t count, const Part *parts, int32_t part_count,
                     int64_t k, int32_t y_type, void *y);
int32_t xh_dequantize(const Part *parts, int32_t part_count, int64_t k, int32_t y_type, void *y);
int32_t xh_rms_norm(const void *x, int32_t type, int64_t outer, int64_t inner, int64_t outer_stride,
                    int64_t inner_stride, int64_t width, const void *weight, int32_t weight_type, double eps, void *y);
int32_t xh_rotary(const void *x, int32_t type, int64_t tokens, int64_t heads, int64_t token_stride,
                  int64_t head_stride, int64_t width, const float *cosines, const float *sines, int64_t half,
                  int32_t interleaved, void *y);
int32_t xh_gated(int32_t function, const void *gate, const void *up, int32_t type, int64_t rows, int64_t width,
                 int64_t gate_stride, int64_t up_stride, void *y);
int64_t xh_write_cache(const void *x, int32_t x_type, int64_t tokens, int64_t heads, int64_t token_stride,
                       int64_t head_stride, int64_t width, const int32_t *slots, void *cache, int32_t cache_type,
                       int64_t blocks, int64_t block_size, const PageStrides *strides);
int64_t xh_paged_attention(const AttentionCall *call);
int32_t xh_tile_source(const char *scheme);
int32_t xh_tile_format(int32_t source);
int64_t xh_tiles_bytes(int32_t source, int64_t rows, int64_t columns);
int32_t xh_pack_tiles(int32_t source, const uint8_t *from, int64_t row_bytes, int64_t rows, int64_t columns,
                      uint8_t *to);
int32_t xh_tile_product(const void *x, int32_t type, int64_t tokens, int64_t k, int64_t stride, const TileJob *jobs,
                        int32_t count);
int32_t xh_float_product(const void *x, int32_t type, int64_t tokens, int64_t k, int64_t stride, const TileJob *jobs,
                         int32_t count, int32_t rounded);
void xh_argmax(const float *x, int64_t rows, int64_t columns, int64_t stride, int32_t *y);
int64_t xh_tile_rows(const void *indices, int32_t wide, int64_t count, const Tiles *parts, int32_t part_count,
                     int32_t y_type, void *y);
int32_t xh_pointwise(int32_t function, int64_t rows, int64_t columns, const void *a, int64_t a_row, int64_t a_column,
                     int32_t a_type, const void *b, int64_t b_row, int64_t b_column, int32_t b_type, int32_t type,
                     void *y);
int64_t xh_run(const Command *commands, int64_t count, const Argument *arguments, const int64_t *sizes,
               const int64_t *slots, int64_t *failure, int64_t *stamps);
}
