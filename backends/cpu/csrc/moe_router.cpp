// Routing of tokens to experts. Scores are computed in float64 and rounded once; equal ones are taken by index. Sums
// over the experts of a token run over its choices in their order, in float32.
#include "moe_router.h"
#include "exponential.h"
#include "lanes.h"
#include "views.h"
#include <limits>

namespace {

constexpr double NOTHING = -std::numeric_limits<double>::infinity();

// The index of the largest value that is not taken, the first of equal ones.
int64_t largest(const double *values, const bool *taken, int64_t count) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    return best;
}

template <class T> void score(const GatingCall &c, const T *logits, double *scores) {
    if (c.sigmoid) {
        for (int64_t e = 0; e < c.experts; e++) scores[e] = 1.0 / (1.0 + exp_double(-to_float(logits[e])));
        return;
    }
    double top = NOTHING, sum = 0;
    for (int64_t e = 0; e < c.experts; e++) top = to_float(logits[e]) > top ? to_float(logits[e]) : top;
    for (int64_t e = 0; e < c.experts; e++) scores[e] = exp_double(to_float(logits[e]) - top);
    for (int64_t e = 0; e < c.experts; e++) sum += scores[e];
    for (int64_t e = 0; e < c.experts; e++) scores[e] /= sum;
}

// Marks the experts of all groups but the best ones as taken.
void keep_groups(const GatingCall &c, const double *choice, double *values, bool *kept, bool *taken) {
    const int64_t size = c.experts / c.groups;
    for (int64_t g = 0; g < c.groups; g++) {
        double first = NOTHING, second = NOTHING;
        for (int64_t e = g * size; e < (g + 1) * size; e++) {
            if (choice[e] > first) {
                second = first;
                first = choice[e];
            } else if (choice[e] > second)
                second = choice[e];
        }
        values[g] = c.top2 ? first + second : first;
        kept[g] = false;
    }
    for (int64_t i = 0; i < c.groups_kept; i++) kept[largest(values, kept, c.groups)] = true;
    for (int64_t e = 0; e < c.experts; e++) taken[e] = !kept[e / size];
}

template <class T> void choose(const GatingCall &c, int64_t token, const T *logits) {
    double *scores = scratch_of<double>(SLOT_SCORES, 2 * c.experts + c.groups), *choice = scores + c.experts,
           *values = choice + c.experts;
    bool *taken = scratch_of<bool>(SLOT_STATE, c.experts + c.groups);
    score(c, logits, scores);
    for (int64_t e = 0; e < c.experts; e++) {
        choice[e] = scores[e];
        taken[e] = false;
    }
    if (c.bias)
        with_type(c.bias_type, [&](auto *tag) {
            const auto *bias = static_cast<decltype(+tag)>(const_cast<void *>(c.bias));
            for (int64_t e = 0; e < c.experts; e++) choice[e] += to_float(bias[e]);
        });
    if (c.groups > 1) keep_groups(c, choice, values, taken + c.experts, taken);
    int32_t *chosen = c.chosen + token * c.k;
    double sum = 0;
    for (int64_t j = 0; j < c.k; j++) {
        const int64_t best = largest(choice, taken, c.experts);
        taken[best] = true;
        chosen[j] = static_cast<int32_t>(best);
        sum += scores[best];
    }
    const double divisor = c.renormalise ? sum + 1e-20 : 1.0;
    for (int64_t j = 0; j < c.k; j++)
        c.weights[token * c.k + j] = static_cast<float>(scores[chosen[j]] / divisor * c.scale);
}

template <class T, class Y>
void sum_row(const T *rows, const int32_t *places, const float *weights, int64_t k, int64_t width, Y *y) {
    for (int64_t d = 0; d < width; d += 16) {
        const int64_t count = width - d < 16 ? width - d : 16;
        float sums[16] = {};
        for (int64_t j = 0; j < k; j++) {
            const T *row = rows + places[j] * width + d;
            for (int64_t i = 0; i < count; i++) sums[i] += to_float(row[i]) * weights[j];
        }
        for (int64_t i = 0; i < count; i++) assign(y[d + i], sums[i]);
    }
}

} // namespace

int64_t choose_experts(const GatingCall &call) {
    if (call.bias && !with_type(call.bias_type, [](auto *) {})) return -1;
    const bool known = with_type(call.type, [&](auto *tag) {
        const auto *logits = static_cast<decltype(+tag)>(const_cast<void *>(call.logits));
        each_row(call.tokens, static_cast<double>(call.experts * (4 + call.k)),
                 [&](int64_t t) { choose(call, t, logits + t * call.stride); });
    });
    return known ? 0 : -1;
}

int64_t sort_by_expert(const void *x, int64_t x_stride, int64_t bytes, const int32_t *chosen, int64_t tokens, int64_t k,
                       int64_t experts, void *y, int32_t *order, int32_t *counts) {
    const int64_t rows = tokens * k;
    for (int64_t i = 0; i < rows; i++)
        if (chosen[i] < 0 || chosen[i] >= experts) return i + 1;
    int64_t *next = scratch_of<int64_t>(SLOT_STATE, experts);
    for (int64_t e = 0; e < experts; e++) counts[e] = 0;
    for (int64_t i = 0; i < rows; i++) counts[chosen[i]]++;
    for (int64_t e = 0, first = 0; e < experts; first += counts[e++]) next[e] = first;
    for (int64_t i = 0; i < rows; i++) order[next[chosen[i]]++] = static_cast<int32_t>(i);
    each_row(rows, static_cast<double>(bytes) / 16, [&](int64_t r) {
        std::memcpy(static_cast<char *>(y) + r * bytes, static_cast<const char *>(x) + order[r] / k * x_stride,
                    static_cast<size_t>(bytes));
    });
    return 0;
}

int64_t sum_experts(const void *rows, int32_t type, const int32_t *order, const float *weights, int64_t tokens,
                    int64_t k, int64_t width, int32_t y_type, void *y) {
    int32_t *places = scratch_of<int32_t>(SLOT_STATE, tokens * k);
    for (int64_t i = 0; i < tokens * k; i++) places[i] = -1;
    for (int64_t i = 0; i < tokens * k; i++) {
        if (order[i] < 0 || order[i] >= tokens * k || places[order[i]] >= 0) return i + 1;
        places[order[i]] = static_cast<int32_t>(i);
    }
    bool known = false;
    with_type(type, [&](auto *tag) {
        const auto *from = static_cast<decltype(+tag)>(const_cast<void *>(rows));
        known = with_type(y_type, [&](auto *y_tag) {
            auto *to = static_cast<decltype(+y_tag)>(y);
            each_row(tokens, static_cast<double>(k * width) * 0.2, [&](int64_t t) {
                sum_row(from, places + t * k, weights + t * k, k, width, to + t * width);
            });
        });
    });
    return known ? 0 : -1;
}

int64_t gating_command(Arguments a) {
    GatingCall c{a.at<void>(0), a.at<void>(1), a.at<float>(2), a.at<int32_t>(3)};
    int64_t *const sizes[] = {&c.tokens, &c.experts, &c.stride, &c.k, &c.groups, &c.groups_kept};
    for (int i = 0; i < 6; i++) *sizes[i] = a.number(4 + i);
    c.scale = a.real(10);
    int32_t *const codes[] = {&c.type, &c.bias_type, &c.sigmoid, &c.renormalise, &c.top2};
    for (int i = 0; i < 5; i++) *codes[i] = a.code(11 + i);
    return choose_experts(c);
}

int64_t permute_command(Arguments a) {
    return sort_by_expert(a.at<void>(0), a.number(1), a.number(2), a.at<int32_t>(3), a.number(4), a.number(5),
                          a.number(6), a.at<void>(7), a.at<int32_t>(8), a.at<int32_t>(9));
}

int64_t unpermute_command(Arguments a) {
    return sum_experts(a.at<void>(0), a.code(1), a.at<int32_t>(2), a.at<float>(3), a.number(4), a.number(5),
                       a.number(6), a.code(1), a.at<void>(7));
}

extern "C" {

// As above, from Python.
__attribute__((visibility("default"))) int64_t xh_moe_gating(const GatingCall *call) { return choose_experts(*call); }

__attribute__((visibility("default"))) int64_t xh_moe_permute(const void *x, int64_t x_stride, int64_t bytes,
                                                              const int32_t *chosen, int64_t tokens, int64_t k,
                                                              int64_t experts, void *y, int32_t *order,
                                                              int32_t *counts) {
    return sort_by_expert(x, x_stride, bytes, chosen, tokens, k, experts, y, order, counts);
}

__attribute__((visibility("default"))) int64_t xh_moe_unpermute(const void *rows, int32_t type, const int32_t *order,
                                                                const float *weights, int64_t tokens, int64_t k,
                                                                int64_t width, void *y) {
    return sum_experts(rows, type, order, weights, tokens, k, width, type, y);
}
}
