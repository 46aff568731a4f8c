// The thread pool. A job is published by a new value of `gate`; a worker joins it only while it is open, so the caller
// never waits for a thread that has not started, for instance because another program holds its core.
#include "threads.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

int64_t nanoseconds_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

namespace {

constexpr int MAX_THREADS = 256;
constexpr int64_t SPIN_NANOSECONDS = 100000; // about the Python time between two kernels, many times over
constexpr double PARALLEL_NANOSECONDS = 6000;
constexpr uint64_t OPEN = 1ull << 31, JOINED = OPEN - 1; // gate = job number << 32 | OPEN | threads that joined

struct Pool {
    std::atomic<uint64_t> gate{0};
    std::atomic<int> finished{0}, sleeping{0};
    std::atomic<bool> busy{false}, stopping{false};
    std::atomic<int64_t> next{0};
    void (*call)(void *, int64_t) = nullptr;
    void *context = nullptr;
    int64_t count = 0;
    int workers = 0;
    pthread_t threads[MAX_THREADS];
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
};

std::atomic<Pool *> the_pool{nullptr};
std::atomic<int> wanted{1};
pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

void take_chunks(Pool *pool) {
    for (int64_t i; (i = pool->next.fetch_add(1, std::memory_order_relaxed)) < pool->count;)
        pool->call(pool->context, i);
}

// Waits for a gate that is open and newer than `seen`; false when the pool stops.
bool wait_for_job(Pool *pool, uint64_t seen) {
    auto ready = [&] {
        const uint64_t gate = pool->gate.load();
        return pool->stopping.load() || ((gate & OPEN) && (gate >> 32) != seen);
    };
    const int64_t start = nanoseconds_now();
    do {
        for (int i = 0; i < 64; i++) {
            if (ready()) return !pool->stopping.load();
            pause_briefly();
        }
    } while (nanoseconds_now() - start < SPIN_NANOSECONDS);
    pthread_mutex_lock(&pool->mutex);
    pool->sleeping.fetch_add(1);
    while (!ready()) pthread_cond_wait(&pool->wake, &pool->mutex);
    pool->sleeping.fetch_sub(1);
    pthread_mutex_unlock(&pool->mutex);
    return !pool->stopping.load();
}

void *work(void *argument) {
    Pool *pool = static_cast<Pool *>(argument);
    uint64_t seen = 0;
    while (wait_for_job(pool, seen)) {
        uint64_t gate = pool->gate.load();
        bool joined = false;
        while ((gate & OPEN) && (gate >> 32) != seen && !joined)
            joined = pool->gate.compare_exchange_weak(gate, gate + 1);
        if (!joined) continue;
        seen = gate >> 32;
        take_chunks(pool);
        pool->finished.fetch_add(1, std::memory_order_release);
    }
    return nullptr;
}

void wake_sleepers(Pool *pool) {
    if (pool->sleeping.load() == 0) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

// After fork only the calling thread exists in the child: forget the pool and start another one when needed.
void forget_pool() {
    the_pool.store(nullptr);
    pool_mutex = PTHREAD_MUTEX_INITIALIZER;
}

Pool *open_pool() {
    Pool *pool = the_pool.load(std::memory_order_acquire);
    if (pool) return pool;
    pthread_mutex_lock(&pool_mutex);
    pool = the_pool.load();
    if (!pool) {
        static bool registered = false;
        if (!registered) registered = pthread_atfork(nullptr, nullptr, forget_pool) == 0;
        void *memory = std::malloc(sizeof(Pool));
        pool = memory ? new (memory) Pool : nullptr;
        const int workers = wanted.load() - 1;
        while (pool && pool->workers < workers &&
               pthread_create(&pool->threads[pool->workers], nullptr, work, pool) == 0)
            pool->workers++;
        the_pool.store(pool, std::memory_order_release);
    }
    pthread_mutex_unlock(&pool_mutex);
    return pool;
}

// The pool itself stays allocated and busy: a caller that still holds it finds it busy and works alone.
void stop_workers(Pool *pool) {
    pool->stopping.store(true);
    wake_sleepers(pool);
    for (int i = 0; i < pool->workers; i++) pthread_join(pool->threads[i], nullptr);
}

struct Arena {
    void *memory[SLOTS] = {};
    size_t bytes[SLOTS] = {};
};
pthread_key_t arena_key;
pthread_once_t arena_once = PTHREAD_ONCE_INIT;
thread_local Arena *arena = nullptr;

[[noreturn]] void out_of_memory(size_t bytes) {
    std::fprintf(stderr, "xinheng: no memory for %zu bytes of kernel scratch\n", bytes);
    std::abort();
}

void free_arena(void *argument) {
    Arena *mine = static_cast<Arena *>(argument);
    for (void *memory : mine->memory) std::free(memory);
    std::free(mine);
}

} // namespace

void run_parallel(void (*call)(void *, int64_t), void *context, int64_t count, double nanoseconds) {
    Pool *pool = nullptr;
    if (count > 1 && wanted.load(std::memory_order_relaxed) > 1 && nanoseconds >= PARALLEL_NANOSECONDS)
        pool = open_pool();
    if (!pool || pool->workers == 0 || pool->busy.exchange(true, std::memory_order_acquire)) {
        for (int64_t i = 0; i < count; i++) call(context, i);
        return;
    }
    pool->call = call;
    pool->context = context;
    pool->count = count;
    pool->next.store(0, std::memory_order_relaxed);
    pool->finished.store(0, std::memory_order_relaxed);
    pool->gate.store((((pool->gate.load() >> 32) + 1) << 32) | OPEN);
    wake_sleepers(pool);
    take_chunks(pool);
    const int joined = static_cast<int>(pool->gate.fetch_and(~OPEN) & JOINED);
    for (int i = 0; pool->finished.load(std::memory_order_acquire) != joined; i++) {
        if (i < 4096)
            pause_briefly();
        else
            sched_yield();
    }
    pool->busy.store(false, std::memory_order_release);
}

int thread_count() { return wanted.load(std::memory_order_relaxed); }

void *scratch(Slot slot, size_t bytes) {
    if (!arena) {
        pthread_once(&arena_once, [] { pthread_key_create(&arena_key, free_arena); });
        arena = static_cast<Arena *>(std::calloc(1, sizeof(Arena)));
        if (!arena) out_of_memory(sizeof(Arena));
        pthread_setspecific(arena_key, arena);
    }
    if (arena->bytes[slot] < bytes) {
        const size_t rounded = (bytes + 4095) / 4096 * 4096;
        std::free(arena->memory[slot]);
        arena->memory[slot] = nullptr;
        if (posix_memalign(&arena->memory[slot], 64, rounded) != 0) out_of_memory(rounded);
        arena->bytes[slot] = rounded;
    }
    return arena->memory[slot];
}

extern "C" {

// Uses `count` threads (1 .. 256) from now on; waits for a job in flight. Returns the count in use.
__attribute__((visibility("default"))) int32_t xh_set_threads(int32_t count) {
    count = count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
    pthread_mutex_lock(&pool_mutex);
    Pool *pool = the_pool.load();
    wanted.store(count);
    if (pool) {
        while (pool->busy.exchange(true)) sched_yield();
        the_pool.store(nullptr);
    }
    pthread_mutex_unlock(&pool_mutex);
    if (pool) stop_workers(pool);
    return count;
}

__attribute__((visibility("default"))) int32_t xh_threads() { return thread_count(); }
}
