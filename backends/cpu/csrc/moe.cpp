// Mixtures of experts in one piece: rows are widened once, stay in float32 from product to product, and each result is
// rounded once. What a token gets depends on its row and its choices only.
#include "kernels.h"
#include "moe.h"
#include "moe_product.h"
#include "moe_router.h"
#include "numbers.h"
#include "views.h"

namespace {

constexpr int32_t SILU = 0; // of `Function` in activation.cpp

void widen(const MoeCall &c, float *wide) {
    with_type(c.type, [&](auto *tag) {
        const auto *x = static_cast<decltype(+tag)>(const_cast<void *>(c.x));
        each_row(c.tokens, static_cast<double>(c.width) * 0.1, [&](int64_t t) {
            for (int64_t i = 0; i < c.width; i++) wide[t * c.width + i] = to_float(x[t * c.x_stride + i]);
        });
    });
}

} // namespace

int64_t run_experts(const MoeCall &c) {
    if (!with_type(c.type, [](auto *) {})) return -1;
    const int64_t rows = c.tokens * c.k, outer = rows * c.width, inner = rows * c.inner;
    // sorted rows, whose place the results of the networks take, and the two inner products; then order and counts
    float *sorted = scratch_of<float>(SLOT_ROWS, outer + 2 * inner + c.tokens * c.width + rows + c.experts);
    float *gated = sorted + outer, *lifted = gated + inner, *wide = lifted + inner;
    int32_t *order = reinterpret_cast<int32_t *>(wide + c.tokens * c.width), *counts = order + rows;
    widen(c, wide);
    const int64_t bytes = c.width * static_cast<int64_t>(sizeof(float));
    int64_t bad = sort_by_expert(wide, bytes, bytes, c.chosen, c.tokens, c.k, c.experts, sorted, order, counts);
    if (bad) return bad;
    const auto multiply = c.tiled ? multiply_expert_tiles : multiply_experts;
    const ExpertJob up[] = {{c.gate, gated}, {c.up, lifted}}, down[] = {{c.down, sorted}};
    if (multiply({sorted, rows, c.width, c.width, counts, c.experts, FLOAT32}, up, 2, c.inner)) return -1;
    xh_gated(SILU, gated, lifted, FLOAT32, rows, c.inner, c.inner, c.inner, gated);
    if (multiply({gated, rows, c.inner, c.inner, counts, c.experts, FLOAT32}, down, 1, c.width)) return -1;
    return sum_experts(sorted, FLOAT32, order, c.weights, c.tokens, c.k, c.width, c.type, c.y);
}

int64_t moe_command(Arguments a) {
    MoeCall c{a.at<void>(0), a.at<float>(1), a.at<int32_t>(2), a.at<void>(3),
              a.at<void>(4), a.at<void>(5),  a.at<void>(6)};
    int64_t *const sizes[] = {&c.tokens, &c.k, &c.experts, &c.width, &c.inner, &c.x_stride};
    for (int i = 0; i < 6; i++) *sizes[i] = a.number(7 + i);
    c.type = a.code(13);
    c.tiled = a.code(14);
    return run_experts(c);
}

// As `run_experts`, from Python.
extern "C" __attribute__((visibility("default"))) int64_t xh_fused_moe(const MoeCall *call) {
    return run_experts(*call);
}
