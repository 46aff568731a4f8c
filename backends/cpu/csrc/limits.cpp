// What the machine gives at most with the threads of the pool: bytes read per second, and operations per second of
// products whose operands stay in registers. Kernels are judged by their share of these.
#include "codes.h"
#include "threads.h"

namespace {

constexpr int64_t PIECE = 1 << 20;   // bytes that a thread reads before it takes more
constexpr int CHAINS = 12;           // products under way at the same time, which hides their latency
constexpr double LONG = 1e9;         // nanoseconds: enough that all threads take part

// Sums keep the compiler from leaving out the work; nobody reads them.
volatile float sink;

template <class Body> double seconds(int64_t count, const Body &body) {
    const int64_t start = nanoseconds_now();
    parallel(count, LONG, [&](int64_t i) { body(i); });
    return static_cast<double>(nanoseconds_now() - start) * 1e-9;
}

template <class Step> double chains(int64_t steps, double operations, const Step &step) {
    const int threads = thread_count();
    return operations * static_cast<double>(CHAINS * steps * threads) / seconds(threads, step);
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Bytes per second of one pass over `bytes` bytes, a multiple of 1 MiB, at a 64-byte aligned address.
EXPORT double xh_measure_read(const void *data, int64_t bytes) {
    const char *p = static_cast<const char *>(data);
    const double taken = seconds(bytes / PIECE, [p](int64_t i) {
        const float *x = reinterpret_cast<const float *>(p + i * PIECE);
        Lanes a = zero(), b = a, c = a, d = a;
        for (int64_t k = 0; k < PIECE / 4; k += 64) {
            a = add(a, load(x + k));
            b = add(b, load(x + k + 16));
            c = add(c, load(x + k + 32));
            d = add(d, load(x + k + 48));
        }
        sink = sum(add(add(a, b), add(c, d)));
    });
    return static_cast<double>(bytes / PIECE * PIECE) / taken;
}

// float32 multiplications and additions per second.
EXPORT double xh_measure_float32(int64_t steps) {
    return chains(steps, 2.0 * WIDTH, [steps](int64_t) {
        Vector x = spread(1.0f), y = spread(1e-9f), total[CHAINS];
        for (int c = 0; c < CHAINS; c++) total[c] = spread(0.0f);
        for (int64_t k = 0; k < steps; k++) {
            x = kept(x);
            _Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) total[c] = fused(x, y, total[c]);
        }
        Vector all = total[0];
        for (int c = 1; c < CHAINS; c++) all = all + total[c];
        float out[WIDTH];
        store_vector(out, all);
        sink = out[0];
    });
}

// int8 multiplications and additions per second, by the instructions of the kernels for tiled weights.
EXPORT double xh_measure_int8(int64_t steps) {
    alignas(64) static const uint8_t codes[64] = {3, 1, 2};
    return chains(steps, 2.0 * 64, [steps](int64_t) {
        const Codes w = load_codes(codes);
        Ints total[CHAINS];
        for (int c = 0; c < CHAINS; c++) total[c] = ints(c);
        int32_t four = 0x01020301;
        for (int64_t k = 0; k < steps; k++) {
            __asm__ volatile("" : "+r"(four)); // may have changed, as far as the compiler knows
            _Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) total[c] = dot<false>(total[c], w, four);
        }
        Ints all = total[0];
        for (int c = 1; c < CHAINS; c++) all = add(all, total[c]);
        sink = sum(to_lanes(all));
    });
}

// bfloat16 multiplications and additions per second where the processor has dot products of them, else 0.
EXPORT double xh_measure_bfloat16(int64_t steps) {
#if defined(__AVX512BF16__)
    return chains(steps, 4.0 * 16, [steps](int64_t) {
        __m512i x = _mm512_set1_epi32(0x3f803f80);
        const __m512bh y = (__m512bh)_mm512_set1_epi32(0x30003000);
        __m512 total[CHAINS];
        for (int c = 0; c < CHAINS; c++) total[c] = _mm512_setzero_ps();
        for (int64_t k = 0; k < steps; k++) {
            __asm__ volatile("" : "+v"(x));
            _Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) total[c] =
                _mm512_dpbf16_ps(total[c], (__m512bh)x, y);
        }
        __m512 all = total[0];
        for (int c = 1; c < CHAINS; c++) all = _mm512_add_ps(all, total[c]);
        sink = _mm512_reduce_add_ps(all);
    });
#else
    static_cast<void>(steps);
    return 0.0;
#endif
}
