// The thread pool: every task runs once, from several callers, through resizing and after fork.
#include "check.h"
#include "kernels.h"
#include "threads.h"
#include <atomic>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr double LARGE = 1e9; // an estimate that always makes a job

void every_task_runs_once(Check &check, int64_t count) {
    std::vector<int> runs(static_cast<size_t>(count));
    parallel(count, LARGE, [&](int64_t i) { runs[static_cast<size_t>(i)]++; });
    for (int n : runs)
        check.that(n == 1, "a task of " + std::to_string(count) + " ran " + std::to_string(n) + " times");
}

// What a job wrote is there for the caller, and what the caller wrote for the next job.
void results_are_seen(Check &check) {
    std::vector<int64_t> x(64, 1);
    const Running running;
    for (int round = 0; round < 2000; round++) {
        parallel(64, LARGE, [&](int64_t i) { x[static_cast<size_t>(i)] += i; });
        int64_t total = 0;
        for (int64_t v : x) total += v;
        if (total != 64 + (round + 1) * 2016) return check.fail("a job's results are missing");
    }
}

void jobs_inside_jobs(Check &check) {
    std::atomic<int> runs{0};
    parallel(8, LARGE, [&](int64_t) { parallel(8, LARGE, [&](int64_t) { runs++; }); });
    check.that(runs == 64, "jobs inside jobs ran " + std::to_string(runs) + " of 64 tasks");
}

void several_callers(Check &check) {
    std::atomic<int64_t> runs{0};
    std::vector<std::thread> callers;
    for (int c = 0; c < 3; c++)
        callers.emplace_back([&] {
            const Running running;
            for (int round = 0; round < 300; round++) parallel(16, LARGE, [&](int64_t) { runs++; });
        });
    for (int round = 0; round < 20; round++) {
        xh_set_threads(1 + round % 4);
        usleep(200);
    }
    for (std::thread &caller : callers) caller.join();
    check.that(runs == 3 * 300 * 16, "callers at the same time lost tasks");
}

void sleep_and_wake(Check &check) {
    for (int round = 0; round < 5; round++) {
        usleep(3000); // workers sleep by now
        every_task_runs_once(check, 50);
        const Running running;
        usleep(1000);
        every_task_runs_once(check, 50);
    }
}

void scratch_belongs_to_threads(Check &check) {
    std::atomic<int> clashes{0};
    parallel(200, LARGE, [&](int64_t i) {
        int64_t *own = scratch_of<int64_t>(SLOT_PANEL, 512 + i);
        for (int64_t j = 0; j < 512; j++) own[j] = i;
        for (int64_t j = 0; j < 512; j++) clashes += own[j] != i;
    });
    check.that(clashes == 0, "two threads had the same scratch");
}

#if !defined(__SANITIZE_THREAD__) && !defined(EMULATED) // neither lets a process with threads fork
void fork_keeps_working(Check &check) {
    every_task_runs_once(check, 10);
    const pid_t child = fork();
    if (child == 0) {
        Check own{"child"};
        every_task_runs_once(own, 100);
        results_are_seen(own);
        _exit(own.failures ? 1 : 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    check.that(child > 0 && status == 0, "a forked process did not compute");
    every_task_runs_once(check, 10);
}
#endif

} // namespace

void check_threads(Check &check) {
    const int threads = xh_threads();
    for (int64_t count : {0, 1, 2, 3, 7, 64, 1000}) every_task_runs_once(check, count);
    results_are_seen(check);
    jobs_inside_jobs(check);
    sleep_and_wake(check);
    scratch_belongs_to_threads(check);
#if !defined(__SANITIZE_THREAD__) && !defined(EMULATED)
    fork_keeps_working(check);
#endif
    if (threads > 1) several_callers(check);
    xh_set_threads(threads);
    check.that(xh_set_threads(0) == 1 && xh_set_threads(1000) == 256, "counts out of range are not limited");
    xh_set_threads(threads);
}
