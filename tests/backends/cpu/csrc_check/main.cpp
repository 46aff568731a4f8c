// Runs the checks that are named as arguments, or all, with one, two and three threads; 0 if all hold.
#include "check.h"
#include "kernels.h"
#include <cstring>

int main(int count, char **arguments) {
    struct {
        const char *name;
        void (*run)(Check &);
    } const checks[] = {
        {"threads", check_threads}, {"numbers", check_numbers},     {"tiles", check_tiles},
        {"linear", check_linear},   {"rows", check_rows},           {"norm", check_norm},
        {"cache", check_cache},     {"attention", check_attention}, {"pointwise", check_pointwise},
        {"program", check_program}, {"faults", check_faults},
    };
    int failures = 0, ran = 0;
    for (int threads = 1; threads <= 3; threads++) {
        xh_set_threads(threads);
        for (const auto &each : checks) {
            bool wanted = count == 1;
            for (int i = 1; i < count; i++) wanted |= std::strcmp(arguments[i], each.name) == 0;
            if (!wanted) continue;
            Check check{std::string(each.name) + " with " + std::to_string(threads) + " threads"};
            each.run(check);
            failures += check.failures;
            ran++;
        }
    }
    std::printf("%d checks, %d failures\n", ran, failures);
    return failures || !ran ? 1 : 0;
}
