// Kernels that commands of a program call as Python does. Each file that defines one includes this header, so that no
// signature drifts apart from its calls.
#pragma once
#include <cstdint>

struct AttentionCall;
struct PageStrides;
struct Part;
struct Tiles;

extern "C" {
int32_t xh_rms_norm(const void *, int32_t, int64_t, int64_t, int64_t, int64_t, int64_t, const void *, int32_t, double,
                    void *);
int32_t xh_rotary(const void *, int32_t, int64_t, int64_t, int64_t, int64_t, int64_t, const float *, const float *,
                  int64_t, int32_t, void *);
int32_t xh_gated(int32_t, const void *, const void *, int32_t, int64_t, int64_t, int64_t, int64_t, void *);
int64_t xh_write_cache(const void *, int32_t, int64_t, int64_t, int64_t, int64_t, int64_t, const int32_t *, void *,
                       int32_t, int64_t, int64_t, const PageStrides *, float *, const PageStrides *);
int64_t xh_paged_attention(const AttentionCall *);
int32_t xh_linear(const void *, int32_t, int64_t, int64_t, int64_t, const Part *, int32_t, const void *, int32_t,
                  void *);
int64_t xh_embedding(const void *, int32_t, int64_t, const Part *, int32_t, int64_t, int32_t, void *);
int64_t xh_tile_rows(const void *, int32_t, int64_t, const Tiles *, int32_t, int32_t, void *);
void xh_argmax(const float *, int64_t, int64_t, int64_t, int32_t *);
void xh_random_uniform(const uint32_t *, const uint32_t *, int64_t, float *);
void xh_sample(const float *, int64_t, int64_t, int64_t, const float *, const float *, const int32_t *, const float *,
               const float *, int32_t *);
}
