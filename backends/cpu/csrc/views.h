// Rows of a strided tensor [outer, inner, width] whose last axis is contiguous.
#pragma once
#include "threads.h"

struct Rows {
    int64_t outer, inner, outer_stride, inner_stride; // strides in values
    int64_t count() const { return outer * inner; }
    int64_t offset(int64_t i) const { return i / inner * outer_stride + i % inner * inner_stride; }
};

// Calls body(row) for every row, several rows a task; `nanoseconds` is the estimate for one row.
template <class Body> static inline void each_row(int64_t rows, double nanoseconds, Body body) {
    const int64_t step = 1 + static_cast<int64_t>(8000 / (nanoseconds + 1));
    parallel((rows + step - 1) / step, nanoseconds * static_cast<double>(rows), [&](int64_t task) {
        const int64_t stop = (task + 1) * step < rows ? (task + 1) * step : rows;
        for (int64_t r = task * step; r < stop; r++) body(r);
    });
}
