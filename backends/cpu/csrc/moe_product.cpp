// grouped_linear: rows sorted by expert times the weight of their expert. Each expert is a product of its own, whose
// elements are accumulated as those of `linear`: a row has the same bits whatever other rows its expert got.
#include "moe_product.h"
#include "linear.h"
#include "threads.h"
#include "tile_product.h"

namespace {

struct ExpertRun {
    int64_t expert, first, rows; // rows first .. first + rows - 1 of x
};

// The first expert whose count is negative or exceeds the rows that are left, or -1; rows without an expert count for
// the last one.
int64_t first_impossible(const ExpertRows &in) {
    int64_t left = in.rows;
    for (int64_t e = 0; e < in.experts; e++) {
        if (in.counts[e] < 0 || in.counts[e] > left) return e;
        left -= in.counts[e];
    }
    return left == 0 ? -1 : in.experts - 1;
}

// Calls body(run) for every expert that has rows. Where there are plenty, each thread takes some; otherwise they run
// one after another, and the threads share each product.
template <class Body> void each_expert(const ExpertRows &in, double nanoseconds, Body body) {
    ExpertRun *runs = scratch_of<ExpertRun>(SLOT_EXPERTS, in.experts);
    int64_t count = 0, first = 0;
    for (int64_t e = 0; e < in.experts; first += in.counts[e++])
        if (in.counts[e] > 0) runs[count++] = {e, first, in.counts[e]};
    if (count >= 2 * thread_count())
        parallel(count, nanoseconds, [&](int64_t i) { body(runs[i]); });
    else
        for (int64_t i = 0; i < count; i++) body(runs[i]);
}

// Calls body(part, row, rows, at) for the runs that rows first .. first + count - 1 of a weight lie in: from `row` of
// the part on, at row `at` of the count.
template <class Run, class Body> void each_part(const Run *parts, int64_t first, int64_t count, Body body) {
    while (first >= parts->rows) first -= (parts++)->rows;
    for (int64_t at = 0; at < count; parts++, first = 0) {
        const int64_t left = parts->rows - first, rows = left < count - at ? left : count - at;
        body(*parts, first, rows, at);
        at += rows;
    }
}

double estimate(const ExpertRows &in, int32_t job_count, int64_t out) {
    return static_cast<double>(in.rows * in.k) * static_cast<double>(job_count * out) / 20;
}

bool known_schemes(const Part *parts, int64_t rows) {
    for (; rows > 0; rows -= (parts++)->rows)
        if (!with_scheme(parts->scheme, [](auto) {})) return false;
    return true;
}

} // namespace

int64_t multiply_experts(const ExpertRows &in, const ExpertJob *jobs, int32_t job_count, int64_t out) {
    if (!with_type(in.type, [](auto *) {})) return -1;
    for (int32_t j = 0; j < job_count; j++)
        if (!known_schemes(static_cast<const Part *>(jobs[j].weight), in.experts * out)) return -1;
    const int64_t impossible = first_impossible(in), bytes = value_bytes(in.type);
    if (impossible >= 0) return impossible + 1;
    each_expert(in, estimate(in, job_count, out), [&](const ExpertRun &run) {
        const char *x = static_cast<const char *>(in.x) + run.first * in.x_stride * bytes;
        for (int32_t j = 0; j < job_count; j++) {
            char *y = static_cast<char *>(jobs[j].y) + run.first * out * bytes;
            each_part(static_cast<const Part *>(jobs[j].weight), run.expert * out, out,
                      [&](Part part, int64_t row, int64_t rows, int64_t at) {
                          part.data += row * part.row_bytes;
                          part.rows = rows;
                          multiply_weight(x, in.type, run.rows, in.k, in.x_stride, &part, 1, nullptr, 0,
                                          y + at * bytes, out);
                      });
        }
    });
    return 0;
}

int64_t multiply_expert_tiles(const ExpertRows &in, const ExpertJob *jobs, int32_t job_count, int64_t out) {
    const int64_t impossible = first_impossible(in), bytes = value_bytes(in.type);
    if (impossible >= 0) return impossible + 1;
    Activations x;
    if (!quantise(in.x, in.type, in.rows, in.k, in.x_stride, x)) return -1;
    each_expert(in, estimate(in, job_count, out) / 8, [&](const ExpertRun &run) {
        const Activations own = x.rows(run.first, run.rows);
        TileJob made[16]; // more are further parallel sections, not less work
        int32_t count = 0;
        for (int32_t j = 0; j < job_count; j++) {
            char *y = static_cast<char *>(jobs[j].y) + run.first * out * bytes;
            each_part(static_cast<const Tiles *>(jobs[j].weight), run.expert * out, out,
                      [&](const Tiles &tiles, int64_t, int64_t, int64_t at) {
                          if (count == 16) {
                              multiply_tiles(own, made, count);
                              count = 0;
                          }
                          made[count++] = {&tiles, nullptr, y + at * bytes, out, 0, in.type};
                      });
        }
        multiply_tiles(own, made, count);
    });
    return 0;
}

int64_t experts_command(Arguments a) {
    const ExpertRows in{a.at<void>(0), a.number(2), a.number(3), a.number(4), a.at<int32_t>(5), a.number(6), a.code(1)};
    const int32_t count = a.code(9);
    ExpertJob jobs[MOST_EXPERT_JOBS];
    for (int32_t i = 0; i < count; i++) jobs[i] = {a.at<void>(10 + 2 * i), a.at<void>(11 + 2 * i)};
    return a.code(8) ? multiply_expert_tiles(in, jobs, count, a.number(7))
                     : multiply_experts(in, jobs, count, a.number(7));
}

extern "C" {

// As above, from Python; `tiled` says what the weights are runs of.
__attribute__((visibility("default"))) int64_t xh_grouped_linear(const void *x, int32_t type, int64_t rows, int64_t k,
                                                                 int64_t x_stride, const int32_t *counts,
                                                                 int64_t experts, int64_t out, const void *weight,
                                                                 int32_t tiled, void *y) {
    const ExpertRows in{x, rows, k, x_stride, counts, experts, type};
    const ExpertJob job{weight, y};
    return tiled ? multiply_expert_tiles(in, &job, 1, out) : multiply_experts(in, &job, 1, out);
}
}
