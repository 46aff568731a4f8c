// Products of rows that are sorted by expert with the weights of their experts.
#pragma once
#include "command.h"

// One weight [experts, out, k] and its result: y [rows, out], contiguous, of the type of x.
struct ExpertJob {
    const void *weight; // runs of rows: `Part` or `Tiles`
    void *y;
};

constexpr int32_t MOST_EXPERT_JOBS = 8; // of a command

// The rows of x [rows, k] of `type`, x_stride values apart, and how many of them each expert has.
struct ExpertRows {
    const void *x;
    int64_t rows, k, x_stride;
    const int32_t *counts;
    int64_t experts;
    int32_t type;
};

// All jobs multiply the same rows. Return 0, the number of the first expert whose count is impossible plus 1 (then
// nothing is written), or -1 for an unknown type or scheme.
int64_t multiply_experts(const ExpertRows &in, const ExpertJob *jobs, int32_t job_count, int64_t out);
int64_t multiply_expert_tiles(const ExpertRows &in, const ExpertJob *jobs, int32_t job_count, int64_t out);

// The command of a program: x, type, rows, k, stride, counts, experts, out, whether the weights are tiles, count of jobs,
// and for each job its weight and y.
int64_t experts_command(Arguments a);
