// A persistent pool of threads that spin between the jobs of a program and sleep when none runs.
#pragma once
#include <cstddef>
#include <cstdint>

// Runs call(context, i) for i in 0 .. count - 1, in any order, on this thread and on pool threads that are free.
// `nanoseconds` is a rough estimate of the whole work: small work stays on the calling thread.
// Results must not depend on which thread runs which i. Safe to call from several threads at once.
void run_parallel(void (*call)(void *, int64_t), void *context, int64_t count, double nanoseconds);

// While one exists, a program runs: pool threads stay awake between its jobs, and let others have the core.
struct Running {
    Running();
    ~Running();
    Running(const Running &) = delete;
    Running &operator=(const Running &) = delete;
};

// Of the monotonic clock.
int64_t nanoseconds_now();

// Threads that may take part, the caller included.
int thread_count();

// At least `bytes` bytes, 64-byte aligned, owned by the calling thread and valid until its next call for this slot.
enum Slot {
    SLOT_INPUT,
    SLOT_PANEL,
    SLOT_KEYS,
    SLOT_VALUES,
    SLOT_SCORES,
    SLOT_PARTIAL,
    SLOT_STATE,
    SLOT_CODES,
    SLOT_EXPERTS,
    SLOT_ROWS,
    SLOTS
};
void *scratch(Slot slot, size_t bytes);

template <class T> static inline T *scratch_of(Slot slot, int64_t count) {
    return static_cast<T *>(scratch(slot, sizeof(T) * static_cast<size_t>(count)));
}

template <class Body> static inline void parallel(int64_t count, double nanoseconds, Body &&body) {
    auto call = [](void *context, int64_t i) { (*static_cast<Body *>(context))(i); };
    run_parallel(call, &body, count, nanoseconds);
}
