// Products with weights and rows of weights.
#include "check.h"
#include "kernels.h"
#include "weight_rows.h"

namespace {

const char *const TILED[] = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k",
                             "q5_k", "q6_k", "q3_k", "iq4_nl", "iq4_xs", "mxfp4"};
constexpr int64_t FETCHED_AHEAD = 8192; // bytes behind the last tile that may be fetched

struct Packed {
    std::vector<uint8_t> memory;
    Tiles tiles;
};

Packed pack(const char *scheme, const WeightRows &w) {
    const int32_t source = xh_tile_source(scheme);
    Packed p;
    p.memory.resize(static_cast<size_t>(xh_tiles_bytes(source, w.rows, w.columns) + FETCHED_AHEAD));
    xh_pack_tiles(source, w.data.data(), w.row_bytes, w.rows, w.columns, p.memory.data());
    p.tiles = {xh_tile_format(source), 0, w.rows, w.columns, p.memory.data()};
    return p;
}

// Activations as the integer kernels see them: codes times a float32 scale per 32 values.
std::vector<double> quantised(const std::vector<float> &x) {
    std::vector<double> y(x.size());
    for (size_t b = 0; b < x.size(); b += 32) {
        float top = 0;
        for (size_t i = b; i < b + 32; i++) top = std::fabs(x[i]) > top ? std::fabs(x[i]) : top;
        const float d = top / 127.0f, inverse = d > 0 ? 1.0f / d : 0.0f;
        for (size_t i = b; i < b + 32; i++) y[i] = std::nearbyint(x[i] * inverse) * static_cast<double>(d);
    }
    return y;
}

// Compares y [tokens, rows] with x W^T + bias; `units` bounds the error in units of 2^-24 of the sum of magnitudes.
template <class T>
void compare(Check &check, const std::vector<T> &y, const std::vector<double> &x, int64_t tokens, const WeightRows &w,
             const std::vector<float> &bias, double units, const std::string &what) {
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t r = 0; r < w.rows; r++) {
            double sum = bias.empty() ? 0 : bias[static_cast<size_t>(r)], size = std::fabs(sum);
            for (int64_t k = 0; k < w.columns; k++) {
                const double term = x[static_cast<size_t>(t * w.columns + k)] * w.row(r)[k];
                sum += term;
                size += std::fabs(term);
            }
            const double bound = size * units * 0x1p-24 + std::fabs(sum) * rounding<T>() + 1e-7;
            check.near(to_float(y[static_cast<size_t>(t * w.rows + r)]), sum, bound, what);
        }
}

template <class T> void tile_product(Check &check, const char *scheme, int64_t tokens, Random &random) {
    const int64_t rows = 37, k = 512;
    const WeightRows w = random_rows(scheme, rows, k, random);
    const Packed packed = pack(scheme, w);
    const std::vector<T> x = rounded<T>(random.normals(tokens * k));
    std::vector<float> wide;
    for (T v : x) wide.push_back(to_float(v));
    const std::vector<float> bias = random.normals(rows);
    std::vector<T> y(static_cast<size_t>(tokens * rows));
    const TileJob job{&packed.tiles, bias.data(), y.data(), rows, FLOAT32, type_of<T>()};
    check.that(xh_tile_product(x.data(), type_of<T>(), tokens, k, k, &job, 1) == 0, "a type is unknown");
    compare(check, y, quantised(wide), tokens, w, bias, 40, std::string(scheme) + " tiles");
    std::vector<T> single(static_cast<size_t>(rows));
    for (int64_t t = 0; t < tokens; t++) {
        const TileJob one{&packed.tiles, bias.data(), single.data(), rows, FLOAT32, type_of<T>()};
        xh_tile_product(x.data() + t * k, type_of<T>(), 1, k, k, &one, 1);
        check.that(std::memcmp(single.data(), y.data() + t * rows, single.size() * sizeof(T)) == 0,
                   std::string(scheme) + " tiles: a token alone has other bits");
    }
}

template <class T> void linear(Check &check, const char *scheme, int64_t tokens, Random &random) {
    const WeightRows a = random_rows(scheme, 29, 512, random);
    const std::vector<T> x = rounded<T>(random.normals(tokens * 512));
    std::vector<double> wide;
    for (T v : x) wide.push_back(to_float(v));
    const std::vector<float> bias = random.normals(29);
    std::vector<T> y(static_cast<size_t>(tokens * 29));
    const Part part = a.part();
    check.that(xh_linear(x.data(), type_of<T>(), tokens, 512, 512, &part, 1, bias.data(), FLOAT32, y.data()) == 0,
               "a type is unknown");
    compare(check, y, wide, tokens, a, bias, 48, std::string(scheme) + " linear");
}

// Weights of float numbers in tiles: activations stay as they are, or are rounded to bfloat16 first.
void float_product(Check &check, const char *scheme, int64_t tokens, bool to_bf16, Random &random) {
    const int64_t rows = 37, k = 200;
    const WeightRows w = random_rows(scheme, rows, 208, random); // whole blocks; the last eight columns stay out
    WeightRows narrow = w;
    narrow.columns = k;
    narrow.values.clear();
    for (int64_t r = 0; r < rows; r++) narrow.values.insert(narrow.values.end(), w.row(r), w.row(r) + k);
    const Packed packed = pack(scheme, narrow);
    const std::vector<float> x = random.normals(tokens * k), bias = random.normals(rows);
    std::vector<double> wide;
    for (float v : x) {
        bf16 b;
        assign(b, v);
        wide.push_back(to_bf16 ? to_float(b) : v);
    }
    std::vector<float> y(static_cast<size_t>(tokens * rows));
    const TileJob job{&packed.tiles, bias.data(), y.data(), rows, FLOAT32, FLOAT32};
    check.that(xh_float_product(x.data(), FLOAT32, tokens, k, k, &job, 1, to_bf16) == 0, "a type is unknown");
    compare(check, y, wide, tokens, narrow, bias, 64, std::string(scheme) + " float tiles");
}

// The first of the largest values.
void argmax(Check &check, int64_t columns, Random &random) {
    std::vector<float> x = random.normals(3 * columns);
    x[static_cast<size_t>(columns / 2)] = x[static_cast<size_t>(columns - 1)] = 9.0f;
    int32_t found[3];
    xh_argmax(x.data(), 3, columns, columns, found);
    for (int64_t r = 0; r < 3; r++) {
        int64_t best = 0;
        for (int64_t c = 1; c < columns; c++)
            if (x[static_cast<size_t>(r * columns + c)] > x[static_cast<size_t>(r * columns + best)]) best = c;
        check.that(found[r] == best, "argmax of " + std::to_string(columns) + " columns");
    }
}

void tile_rows(Check &check, const char *scheme, Random &random) {
    const WeightRows w = random_rows(scheme, 35, 256, random);
    const Packed packed = pack(scheme, w);
    const int32_t ids[] = {0, 34, 17, 34};
    std::vector<float> y(4 * 256);
    check.that(xh_tile_rows(ids, 0, 4, &packed.tiles, 1, FLOAT32, y.data()) == -1, "rows of tiles fail");
    for (int64_t i = 0; i < 4; i++)
        for (int64_t k = 0; k < 256; k++)
            check.near(y[static_cast<size_t>(i * 256 + k)], static_cast<float>(w.row(ids[i])[k]), 0,
                       std::string(scheme) + " rows of tiles");
    const int32_t outside[] = {0, 35};
    check.that(xh_tile_rows(outside, 0, 2, &packed.tiles, 1, FLOAT32, y.data()) == 1, "a row outside is not found");
}

template <class T> void rows(Check &check, const char *scheme, Random &random) {
    const WeightRows w = random_rows(scheme, 9, 256, random);
    const Part part = w.part();
    std::vector<T> all(9 * 256), some(3 * 256);
    check.that(xh_dequantize(&part, 1, 256, type_of<T>(), all.data()) == 0, "dequantize fails");
    for (int64_t i = 0; i < 9 * 256; i++) {
        T once;
        if (sizeof(T) == 4) // half a unit for adding a minimum
            check.near(to_float(all[static_cast<size_t>(i)]), w.values[static_cast<size_t>(i)],
                       std::fabs(w.values[static_cast<size_t>(i)]) * 0x1p-24 + 1e-6 * 0.02, scheme);
        assign(once, static_cast<float>(w.values[static_cast<size_t>(i)]));
        check.near(to_float(all[static_cast<size_t>(i)]), to_float(once),
                   std::fabs(to_float(once)) * 2 * rounding<T>() + 1e-8, std::string(scheme) + " dequantized");
    }
    const int64_t ids[] = {8, 0, 3};
    check.that(xh_embedding(ids, 1, 3, &part, 1, 256, type_of<T>(), some.data()) == -1, "embedding fails");
    for (int i = 0; i < 3; i++)
        check.that(std::memcmp(some.data() + i * 256, all.data() + ids[i] * 256, 256 * sizeof(T)) == 0,
                   std::string(scheme) + " embedding is not dequantize");
    const int64_t outside[] = {8, -1};
    const int64_t first = xh_embedding(outside, 1, 2, &part, 1, 256, type_of<T>(), some.data());
    check.that(first == 1, "a row outside is not found");
}

} // namespace

void check_tiles(Check &check) {
    Random random;
    for (const char *scheme : TILED) {
        for (int64_t tokens : {1, 2, 7}) tile_product<float>(check, scheme, tokens, random);
        tile_product<bf16>(check, scheme, 3, random);
        tile_product<f16>(check, scheme, 1, random);
        tile_rows(check, scheme, random);
    }
    for (const char *scheme : {"float32", "bfloat16", "float16"})
        for (int64_t tokens : {1, 2, 7})
            for (bool to_bf16 : {false, true}) float_product(check, scheme, tokens, to_bf16, random);
    for (int64_t columns : {1, 17, 5000}) argmax(check, columns, random);
    check.that(xh_tile_source("no such scheme") < 0, "an unknown scheme is tiled");
    check.that(xh_tiles_bytes(0, 16, 100) == 0, "columns that fill no blocks are tiled");
}

void check_linear(Check &check) {
    Random random;
#define LINEAR(number, name, type)                                                 \
    for (int64_t tokens : {1, 4, 9}) linear<float>(check, name, tokens, random);   \
    linear<bf16>(check, name, 3, random);                                          \
    linear<f16>(check, name, 6, random);
    FOR_EACH_SCHEME(LINEAR)
#undef LINEAR
}

void check_rows(Check &check) {
    Random random;
#define ROWS(number, name, type)        \
    rows<float>(check, name, random);   \
    rows<bf16>(check, name, random);    \
    rows<f16>(check, name, random);
    FOR_EACH_SCHEME(ROWS)
#undef ROWS
    check.that(xh_scheme("no such scheme") == -1, "an unknown scheme has a code");
}
