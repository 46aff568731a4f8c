// The thread pool. The tasks of a job are split evenly among threads beforehand; who is done takes from the others.
// A worker joins a job only while it is open, so the caller never waits for a thread that has not started, for instance
// because another program holds its core. Between the jobs of a program workers spin, else they sleep.
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
constexpr int64_t SPIN_NANOSECONDS = 20000;    // from then on others may have the core
constexpr int64_t LINGER_NANOSECONDS = 200000; // no program runs: from then on sleep; about Python's time between two
constexpr double AWAKE_NANOSECONDS = 1500, ASLEEP_NANOSECONDS = 6000; // work that is worth a job
constexpr size_t LINE = 128; // two cache lines, which processors fetch together

// A thread's part of a job's tasks: number of the job << 32 | tasks taken.
struct alignas(LINE) Share {
    std::atomic<uint64_t> taken{0};
};

// The job that a worker takes part in, 0 for none.
struct alignas(LINE) Worker {
    std::atomic<uint32_t> job{0};
    pthread_t thread;
};

struct Job {
    void (*call)(void *, int64_t);
    void *context;
    int64_t count;
};

struct Pool {
    alignas(LINE) std::atomic<uint64_t> gate{0}; // number of the job << 1 | whether it may be joined
    Job job{nullptr, nullptr, 0};
    alignas(LINE) std::atomic<int> sleeping{0};
    std::atomic<bool> busy{false}, stopping{false};
    int workers = 0;
    Pool *before = nullptr; // the one that was stopped before this one
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
    Share shares[MAX_THREADS];
    Worker worker[MAX_THREADS];
};

struct Start {
    Pool *pool;
    int index;
};

std::atomic<Pool *> the_pool{nullptr};
Pool *last_stopped = nullptr;
std::atomic<int> wanted{1}, programs{0};
pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;

// Takes a task of `share`, one of `threads`; -1 if none is left.
inline int64_t take(Share &share, int index, int threads, uint32_t job, int64_t count) {
    const int64_t first = count * index / threads, stop = count * (index + 1) / threads;
    uint64_t seen = share.taken.load(std::memory_order_relaxed);
    for (;;) {
        const int64_t taken = seen >> 32 == job ? static_cast<int64_t>(seen & 0xffffffffu) : 0;
        if (first + taken >= stop) return -1;
        const uint64_t next = static_cast<uint64_t>(job) << 32 | static_cast<uint64_t>(taken + 1);
        if (share.taken.compare_exchange_weak(seen, next, std::memory_order_relaxed)) return first + taken;
    }
}

// Its own tasks first, then what is left of the others'.
void take_tasks(Pool *pool, uint32_t number, int index) {
    const Job job = pool->job;
    const int threads = pool->workers + 1;
    for (int i = 0; i < threads; i++) {
        const int of = index + i < threads ? index + i : index + i - threads;
        for (int64_t task; (task = take(pool->shares[of], of, threads, number, job.count)) >= 0;)
            job.call(job.context, task);
    }
}

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

// Waits for a gate that is open for another job than `seen` and returns it; 0 when the pool stops.
uint64_t wait_for_job(Pool *pool, uint32_t seen) {
    uint64_t gate = 0;
    auto ready = [&] {
        gate = pool->gate.load();
        if ((gate & 1) && static_cast<uint32_t>(gate >> 1) != seen) return true;
        gate = 0;
        return pool->stopping.load();
    };
    for (;;) {
        const int64_t start = nanoseconds_now();
        for (int64_t waited = 0; waited < LINGER_NANOSECONDS || programs.load();) {
            for (int i = 0; i < 64; i++) {
                if (ready()) return gate;
                pause_briefly();
            }
            waited = nanoseconds_now() - start;
            if (waited > SPIN_NANOSECONDS) sched_yield();
        }
        pthread_mutex_lock(&pool->mutex);
        pool->sleeping.fetch_add(1);
        while (!ready() && !programs.load()) pthread_cond_wait(&pool->wake, &pool->mutex);
        pool->sleeping.fetch_sub(1);
        pthread_mutex_unlock(&pool->mutex);
    }
}

void *work(void *argument) {
    const Start start = *static_cast<Start *>(argument);
    std::free(argument);
    Pool *pool = start.pool;
    std::atomic<uint32_t> &joined = pool->worker[start.index].job;
    for (uint32_t seen = 0;;) {
        const uint64_t gate = wait_for_job(pool, seen);
        if (gate == 0) return nullptr;
        seen = static_cast<uint32_t>(gate >> 1);
        joined.store(seen); // either the caller sees this when it has closed the gate, or this thread sees it closed
        if (pool->gate.load() == gate) take_tasks(pool, seen, start.index + 1);
        joined.store(0, std::memory_order_release);
    }
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
    programs.store(0);
    pool_mutex = PTHREAD_MUTEX_INITIALIZER;
}

bool start_worker(Pool *pool) {
    void *memory = std::malloc(sizeof(Start));
    Start *start = memory ? new (memory) Start{pool, pool->workers} : nullptr;
    if (start && pthread_create(&pool->worker[pool->workers].thread, nullptr, work, start) == 0) return true;
    std::free(memory);
    return false;
}

Pool *open_pool() {
    Pool *pool = the_pool.load(std::memory_order_acquire);
    if (pool) return pool;
    pthread_mutex_lock(&pool_mutex);
    pool = the_pool.load();
    if (!pool) {
        static bool registered = false;
        if (!registered) registered = pthread_atfork(nullptr, nullptr, forget_pool) == 0;
        void *memory = nullptr;
        if (posix_memalign(&memory, LINE, sizeof(Pool)) == 0) pool = new (memory) Pool;
        // the number of workers is what jobs are split by: it is final before the first one
        const int workers = wanted.load() - 1;
        while (pool && pool->workers < workers && start_worker(pool)) pool->workers++;
        the_pool.store(pool, std::memory_order_release);
    }
    pthread_mutex_unlock(&pool_mutex);
    return pool;
}

// The pool itself stays allocated, reachable and busy: a caller that still holds it finds it busy and works alone.
void stop_workers(Pool *pool) {
    pool->stopping.store(true);
    wake_sleepers(pool);
    for (int i = 0; i < pool->workers; i++) pthread_join(pool->worker[i].thread, nullptr);
}

// The number of the next job; 0 means none, and shares that still carry old numbers are cleared when they recur.
uint32_t next_number(Pool *pool) {
    const uint32_t number = static_cast<uint32_t>(pool->gate.load(std::memory_order_relaxed) >> 1) + 1;
    if (number) return number;
    for (Share &share : pool->shares) share.taken.store(0, std::memory_order_relaxed);
    return 1;
}

// Until no worker takes part in job `number` any more.
void wait_for_workers(Pool *pool, uint32_t number) {
    for (int w = 0; w < pool->workers; w++)
        for (int64_t i = 1; pool->worker[w].job.load() == number; i++) {
            pause_briefly();
            if (i % 4096 == 0) sched_yield();
        }
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
    if (count > 1 && count < INT32_MAX && wanted.load(std::memory_order_relaxed) > 1 && nanoseconds > AWAKE_NANOSECONDS)
        pool = open_pool();
    const bool alone = !pool || pool->workers == 0 ||
                       (nanoseconds < ASLEEP_NANOSECONDS && pool->sleeping.load(std::memory_order_relaxed));
    if (alone || pool->busy.exchange(true, std::memory_order_acquire)) {
        for (int64_t i = 0; i < count; i++) call(context, i);
        return;
    }
    const uint32_t number = next_number(pool);
    pool->job = {call, context, count};
    pool->gate.store(static_cast<uint64_t>(number) << 1 | 1);
    wake_sleepers(pool);
    take_tasks(pool, number, 0);
    pool->gate.store(static_cast<uint64_t>(number) << 1);
    wait_for_workers(pool, number);
    pool->busy.store(false, std::memory_order_release);
}

Running::Running() {
    programs.fetch_add(1);
    Pool *pool = the_pool.load(std::memory_order_acquire);
    if (pool) wake_sleepers(pool);
}

Running::~Running() { programs.fetch_sub(1); }

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

// Uses `count` threads (1 .. 256) from now on; a change waits for a job in flight. Returns the count in use.
__attribute__((visibility("default"))) int32_t xh_set_threads(int32_t count) {
    count = count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
    pthread_mutex_lock(&pool_mutex);
    Pool *pool = wanted.load() == count ? nullptr : the_pool.load();
    wanted.store(count);
    if (pool) {
        while (pool->busy.exchange(true)) sched_yield();
        the_pool.store(nullptr);
        pool->before = last_stopped;
        last_stopped = pool;
    }
    pthread_mutex_unlock(&pool_mutex);
    if (pool) stop_workers(pool);
    return count;
}

__attribute__((visibility("default"))) int32_t xh_threads() { return thread_count(); }
}
