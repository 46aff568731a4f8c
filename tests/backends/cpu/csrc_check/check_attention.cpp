// The paged cache, and attention over it in batches of prompts and single tokens.
#include "check.h"
#include "kernels.h"

namespace {

// Strides of a cache [blocks, block_size, heads, width].
PageStrides contiguous(int64_t block_size, int64_t heads, int64_t width) {
    return {block_size * heads * width, heads * width, width, 1};
}

// A batch over a paged cache: some sequences, their lengths, and blocks in random order.
struct Batch {
    int64_t heads = 4, kv_heads = 2, k_width = 20, v_width = 24, block_size = 16, blocks = 64, window = 0;
    bool causal = true;
    double softcap = 0;
    std::vector<int32_t> start{0}, lengths, table;
    int64_t table_width = 0;

    Batch(const std::vector<int32_t> &rows, const std::vector<int32_t> &given, Random &random) : lengths(given) {
        std::vector<int32_t> free;
        for (int32_t b = 0; b < blocks; b++) free.push_back(b);
        for (int32_t length : lengths)
            table_width = std::max<int64_t>(table_width, (length + block_size - 1) / block_size);
        for (size_t s = 0; s < rows.size(); s++) {
            start.push_back(start.back() + rows[s]);
            for (int64_t b = 0; b < table_width; b++) {
                const bool used = b * block_size < lengths[s];
                const size_t at = static_cast<size_t>(random.below(static_cast<int64_t>(free.size())));
                table.push_back(used ? free[at] : -1);
                if (used) free.erase(free.begin() + static_cast<int64_t>(at));
            }
        }
    }
    int64_t tokens() const { return start.back(); }
    int64_t slot(size_t seq, int64_t position) const {
        const int64_t at = static_cast<int64_t>(seq) * table_width + position / block_size;
        const int64_t block = table[static_cast<size_t>(at)];
        return block * block_size + position % block_size;
    }
};

template <class T, class C> struct Scene {
    Batch batch;
    std::vector<T> q;
    std::vector<C> k, v;
    std::vector<float> sinks;

    Scene(const Batch &b, bool with_sinks, Random &random) : batch(b) {
        const int64_t slots = b.blocks * b.block_size * b.kv_heads;
        q = rounded<T>(random.normals(b.tokens() * b.heads * b.k_width));
        k = rounded<C>(random.normals(slots * b.k_width));
        v = rounded<C>(random.normals(slots * b.v_width));
        if (with_sinks) sinks = random.normals(b.heads);
    }

    std::vector<T> run(Check &check, std::vector<float> &lse) const {
        const Batch &b = batch;
        std::vector<T> out(static_cast<size_t>(b.tokens() * b.heads * b.v_width));
        lse.assign(static_cast<size_t>(b.tokens() * b.heads), 0);
        AttentionCall c{};
        c.q = q.data();
        c.k = k.data();
        c.v = v.data();
        c.query_start = b.start.data();
        c.seq_lens = b.lengths.data();
        c.block_table = b.table.data();
        c.sinks = sinks.empty() ? nullptr : sinks.data();
        c.out = out.data();
        c.lse = lse.data();
        c.tokens = b.tokens();
        c.heads = b.heads;
        c.kv_heads = b.kv_heads;
        c.k_width = b.k_width;
        c.v_width = b.v_width;
        c.token_stride = b.heads * b.k_width;
        c.head_stride = b.k_width;
        c.blocks = b.blocks;
        c.block_size = b.block_size;
        c.seqs = static_cast<int64_t>(b.lengths.size());
        c.table_width = c.table_stride = b.table_width;
        c.scale = 0.3;
        c.softcap = b.softcap;
        c.window = b.window;
        c.k_strides = contiguous(b.block_size, b.kv_heads, b.k_width);
        c.v_strides = contiguous(b.block_size, b.kv_heads, b.v_width);
        c.type = type_of<T>();
        c.cache_type = type_of<C>();
        c.sinks_type = FLOAT32;
        c.causal = b.causal;
        check.that(xh_paged_attention(&c) == -1, "attention fails");
        return out;
    }

    // Output and log-sum-exp of one query by definition.
    std::vector<double> attend(size_t seq, int64_t token, int64_t head, double &lse) const {
        const Batch &b = batch;
        const int64_t length = b.lengths[seq], rows = b.start[seq + 1] - b.start[seq];
        const int64_t position = length - rows + token - b.start[seq], kv = head / (b.heads / b.kv_heads);
        std::vector<double> out(static_cast<size_t>(b.v_width));
        double sum = sinks.empty() ? 0 : std::exp(static_cast<double>(sinks[static_cast<size_t>(head)]));
        for (int64_t j = 0; j < length; j++) {
            if ((b.causal && j > position) || (b.window > 0 && j <= position - b.window)) continue;
            const int64_t at = b.slot(seq, j) * b.kv_heads + kv;
            double logit = 0;
            for (int64_t d = 0; d < b.k_width; d++)
                logit += static_cast<double>(to_float(q.data()[(token * b.heads + head) * b.k_width + d])) *
                         to_float(k.data()[at * b.k_width + d]);
            logit *= 0.3;
            if (b.softcap > 0) logit = b.softcap * std::tanh(logit / b.softcap);
            const double weight = std::exp(logit);
            sum += weight;
            for (int64_t d = 0; d < b.v_width; d++)
                out[static_cast<size_t>(d)] += weight * to_float(v[static_cast<size_t>(at * b.v_width + d)]);
        }
        for (double &x : out) x /= sum;
        lse = std::log(sum);
        return out;
    }

    void compare(Check &check, const std::string &what) const {
        std::vector<float> lse;
        const std::vector<T> got = run(check, lse);
        const Batch &b = batch;
        for (size_t s = 0; s < b.lengths.size(); s++)
            for (int64_t t = b.start[s]; t < b.start[s + 1]; t++)
                for (int64_t h = 0; h < b.heads; h++) {
                    double wanted_lse;
                    const std::vector<double> wanted = attend(s, t, h, wanted_lse);
                    check.near(lse[static_cast<size_t>(t * b.heads + h)], wanted_lse, 2e-5, what + " (log-sum-exp)");
                    for (int64_t d = 0; d < b.v_width; d++) {
                        const double x = wanted[static_cast<size_t>(d)];
                        check.near(to_float(got[static_cast<size_t>((t * b.heads + h) * b.v_width + d)]), x,
                                   std::fabs(x) * rounding<T>() + 2e-5, what);
                    }
                }
    }
};

template <class T, class C> void write(Check &check, Random &random) {
    const int64_t tokens = 7, heads = 3, width = 20, slots = 32;
    const std::vector<T> x = rounded<T>(random.normals(tokens * heads * width));
    const std::vector<int32_t> to{5, -1, 31, 0, 8, 5, -7}; // 5 twice: the later token stays
    std::vector<C> cache(static_cast<size_t>(slots * heads * width)), wanted = cache;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < heads * width && to[static_cast<size_t>(t)] >= 0; i++)
            assign(wanted[static_cast<size_t>(to[static_cast<size_t>(t)] * heads * width + i)],
                   to_float(x[static_cast<size_t>(t * heads * width + i)]));
    const PageStrides strides = contiguous(16, heads, width);
    const int64_t result = xh_write_cache(x.data(), type_of<T>(), tokens, heads, heads * width, width, width, to.data(),
                                          cache.data(), type_of<C>(), slots / 16, 16, &strides);
    check.that(result == -1, "write_cache fails");
    check.that(std::memcmp(cache.data(), wanted.data(), cache.size() * sizeof(C)) == 0, "write_cache wrote other bits");
}

template <class T, class C> void scenes(Check &check, Random &random) {
    Batch prompts({3, 20, 1, 0}, {3, 150, 70, 5}, random);
    Scene<T, C>(prompts, false, random).compare(check, "prompts and tokens");
    Batch single({1}, {400}, random); // split over its context
    Scene<T, C>(single, true, random).compare(check, "one token, sinks");
    prompts.window = 33;
    prompts.softcap = 5;
    Scene<T, C>(prompts, true, random).compare(check, "window, softcap, sinks");
    Batch open({4, 2}, {9, 100}, random);
    open.causal = false;
    Scene<T, C>(open, false, random).compare(check, "not causal");
}

} // namespace

void check_cache(Check &check) {
    Random random;
    write<float, float>(check, random);
    write<float, bf16>(check, random);
    write<bf16, bf16>(check, random);
    write<f16, float>(check, random);
    const int32_t outside[] = {0, 32};
    std::vector<float> x(2), cache(32);
    const PageStrides strides = contiguous(16, 1, 1);
    check.that(xh_write_cache(x.data(), FLOAT32, 2, 1, 1, 1, 1, outside, cache.data(), FLOAT32, 2, 16, &strides) == 1,
               "a slot outside the cache is not found");
}

void check_attention(Check &check) {
    Random random;
    scenes<float, float>(check, random);
    scenes<float, bf16>(check, random);
    scenes<bf16, f16>(check, random);
}
