// Moving elements from one layout to another.
#pragma once
#include "command.h"

constexpr int COPY_AXES = 4;

// Copies runs of `bytes` bytes that lie at distances of their own, in bytes, along up to four axes.
struct CopyCall {
    const char *from;
    char *to;
    int64_t sizes[COPY_AXES], from_strides[COPY_AXES], to_strides[COPY_AXES];
    int64_t bytes;
};

void copy_runs(const CopyCall &call);

// The command of a program: the members of a call in their order.
int64_t copy_command(Arguments a);
