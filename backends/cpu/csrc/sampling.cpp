// Choosing tokens: a counter-based stream of uniform numbers, and the inversion of a distribution over a vocabulary.
//
// A distribution is looked at in descending order of its weights, but only where somebody looks is it put in order:
// tokens fall into bins by how far their logit lies below the largest one, and of most bins only the sum matters.
#include "exponential.h"
#include "kernels.h"
#include "threads.h"
#include <algorithm>

namespace {

constexpr int BINS = 1024;
constexpr double BINS_PER_UNIT = 16; // so the last bin holds weights below e^-64 of the largest one

// Philox4x32-10 (Salmon et al. 2011); the three upper words of the counter are zero.
uint32_t philox(uint32_t c0, uint32_t k0, uint32_t k1) {
    uint32_t c1 = 0, c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
        c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
        c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(b);
        c3 = static_cast<uint32_t>(a);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

// The tokens of a row by descending weight, equal ones by index.
class Ranking {
  public:
    // Weights e^((x - top) / temperature) of logits x [count], `top` the largest of them.
    Ranking(const float *x, int64_t count, double top, double temperature)
        : logits(x), weights(scratch_of<double>(SLOT_SCORES, count)), order(scratch_of<int32_t>(SLOT_STATE, count)),
          bins(scratch_of<int16_t>(SLOT_CODES, count)) {
        for (int64_t i = 0; i < count; i++) weights[i] = (x[i] - top) / temperature;
        for (int64_t i = 0; i < count; i++) {
            const double below = -weights[i] * BINS_PER_UNIT;
            bins[i] = static_cast<int16_t>(below < BINS - 1 ? below : BINS - 1.0);
        }
        for (int64_t i = 0; i < count; i++) {
            const double d = weights[i], w = exp_double(d);
            weights[i] = d < -700.0 ? 0.0 : w;
        }
        int32_t sizes[BINS] = {};
        for (int64_t i = 0; i < count; i++) {
            sizes[bins[i]]++;
            mass[bins[i]] += weights[i];
        }
        for (int b = 0; b < BINS; b++) first[b + 1] = first[b] + sizes[b];
        int32_t next[BINS];
        std::copy(first, first + BINS, next);
        for (int64_t i = 0; i < count; i++) order[next[bins[i]]++] = static_cast<int32_t>(i);
    }

    int64_t size(int b) const { return first[b + 1] - first[b]; }
    double sum(int b) const { return mass[b]; }
    double weight(int32_t token) const { return weights[token]; }

    // The tokens of a bin in order.
    const int32_t *in_order(int b) {
        int32_t *tokens = order + first[b];
        if (!sorted[b])
            std::sort(tokens, order + first[b + 1], [this](int32_t l, int32_t r) {
                return logits[l] > logits[r] || (logits[l] == logits[r] && l < r);
            });
        sorted[b] = true;
        return tokens;
    }

  private:
    const float *logits;
    double *weights;
    int32_t *order;
    int16_t *bins;
    int32_t first[BINS + 1] = {};
    double mass[BINS] = {};
    bool sorted[BINS] = {};
};

// The sum of the `count` largest weights.
double sum_of_first(Ranking &ranking, int64_t count) {
    double sum = 0;
    for (int b = 0; b < BINS && count > 0; b++) {
        if (ranking.size(b) <= count)
            sum += ranking.sum(b);
        else {
            const int32_t *tokens = ranking.in_order(b);
            for (int64_t i = 0; i < count; i++) sum += ranking.weight(tokens[i]);
        }
        count -= ranking.size(b);
    }
    return sum;
}

// How many tokens stay, and the sum of their weights.
struct Kept {
    int64_t count;
    double sum;
};

// At most `most` tokens; those whose predecessors weigh less than `nucleus`, and that weigh `least` or more themselves.
Kept kept_of(Ranking &ranking, int64_t most, double nucleus, double least) {
    Kept kept{0, 0};
    for (int b = 0; b < BINS; b++) {
        const int64_t size = ranking.size(b);
        const bool whole = kept.count + size <= most && kept.sum + ranking.sum(b) <= nucleus &&
                           (least <= 0 || exp_double(-(b + 1) / BINS_PER_UNIT) >= least);
        if (whole) {
            kept.count += size;
            kept.sum += ranking.sum(b);
            continue;
        }
        const int32_t *tokens = ranking.in_order(b);
        for (int64_t i = 0; i < size; i++) {
            const double w = ranking.weight(tokens[i]);
            if (kept.count > 0 && (kept.count >= most || kept.sum >= nucleus || w < least || w == 0)) return kept;
            kept.count++;
            kept.sum += w;
        }
    }
    return kept;
}

// The first of the kept tokens at which the running sum exceeds `target`, or the last of them that weighs anything.
int32_t token_at(Ranking &ranking, Kept kept, double target) {
    double sum = 0;
    int32_t last = ranking.in_order(0)[0];
    for (int b = 0; b < BINS && kept.count > 0; b++) {
        const int64_t size = ranking.size(b) < kept.count ? ranking.size(b) : kept.count;
        kept.count -= ranking.size(b);
        const bool passed = size == ranking.size(b) && kept.count > 0 && sum + ranking.sum(b) <= target;
        if (passed || size == 0) {
            sum += ranking.sum(b);
            continue;
        }
        const int32_t *tokens = ranking.in_order(b);
        for (int64_t i = 0; i < size && ranking.weight(tokens[i]) > 0; i++) {
            last = tokens[i];
            sum += ranking.weight(last);
            if (sum > target) return last;
        }
    }
    return last;
}

// The largest logit, the first of equal ones and the first NaN before any number.
int32_t best_of(const float *x, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (x[i] > x[best] || (x[i] != x[i] && x[best] == x[best])) best = i;
    return static_cast<int32_t>(best);
}

// Whether all logits are numbers below infinity, and some above minus infinity.
bool is_distribution(const float *x, int64_t count, float top) {
    float found = 0;
    for (int64_t i = 0; i < count; i++) found += x[i] != x[i] ? 1.0f : 0.0f;
    return found == 0 && top - top == 0;
}

int32_t sample(const float *x, int64_t count, double uniform, double temperature, int32_t top_k, double top_p,
               double min_p) {
    const int32_t best = best_of(x, count);
    if (temperature <= 0 || !is_distribution(x, count, x[best])) return best;
    Ranking ranking(x, count, x[best], temperature);
    const int64_t allowed = top_k > 0 && top_k < count ? top_k : count;
    const double total = sum_of_first(ranking, allowed);
    const Kept kept = kept_of(ranking, allowed, top_p * total, min_p);
    return token_at(ranking, kept, uniform * kept.sum);
}

} // namespace

// y float32 [rows] in [0, 1) for seed [rows, 2] and counter [rows].
extern "C" __attribute__((visibility("default"))) void xh_random_uniform(const uint32_t *seed, const uint32_t *counter,
                                                                         int64_t rows, float *y) {
    for (int64_t r = 0; r < rows; r++)
        y[r] = static_cast<float>(philox(counter[r], seed[2 * r], seed[2 * r + 1]) >> 8) * 0x1p-24f;
}

// logits float32 [rows, columns], rows `stride` values apart; the other operands and y int32 are [rows].
extern "C" __attribute__((visibility("default"))) void
xh_sample(const float *logits, int64_t rows, int64_t columns, int64_t stride, const float *uniform,
          const float *temperature, const int32_t *top_k, const float *top_p, const float *min_p, int32_t *y) {
    parallel(rows, static_cast<double>(rows * columns) * 4, [&](int64_t r) {
        y[r] = sample(logits + r * stride, columns, uniform[r], temperature[r], top_k[r], top_p[r], min_p[r]);
    });
}
