// Random rows of a weight in a scheme of the library, and their values in double.
#pragma once
#include "check.h"
#include "kernels.h"

struct WeightRows {
    int32_t scheme = 0;
    int64_t rows = 0, columns = 0, row_bytes = 0;
    std::vector<uint8_t> data;
    std::vector<double> values; // [rows, columns]
    Part part() const { return {scheme, 0, rows, data.data(), row_bytes}; }
    const double *row(int64_t r) const { return values.data() + r * columns; }
};

// Puts usable factors, or usable numbers, into a block of random bytes.
template <class S> void make_usable(S, const std::string &, uint8_t *p, Random &random, const std::vector<int> &at) {
    for (int offset : at) {
        f16 factor;
        assign(factor, random.normal() * 0.02f);
        std::memcpy(p + offset, &factor, 2);
    }
}
template <class E>
void make_usable(Dense<E>, const std::string &, uint8_t *p, Random &random, const std::vector<int> &) {
    for (int i = 0; i < 16; i++) {
        E x;
        assign(x, random.normal());
        std::memcpy(p + i * static_cast<int>(sizeof(E)), &x, sizeof(E));
    }
}

// Where the float16 factors of a scheme's blocks are.
inline std::vector<int> factors_of(const std::string &scheme) {
    if (scheme == "q2_k") return {80, 82};
    if (scheme == "q3_k") return {108};
    if (scheme == "q6_k") return {208};
    if (scheme == "mxfp4") return {};
    if (scheme == "q4_1" || scheme == "q5_1" || scheme == "q4_k" || scheme == "q5_k") return {0, 2};
    return {0};
}

inline WeightRows random_rows(const std::string &scheme, int64_t rows, int64_t columns, Random &random) {
    WeightRows w;
    w.scheme = xh_scheme(scheme.c_str());
    w.rows = rows;
    w.columns = columns;
    with_scheme(w.scheme, [&](auto s) {
        typedef decltype(s) S;
        w.row_bytes = columns / S::values * S::bytes;
        w.data.resize(static_cast<size_t>(rows * w.row_bytes));
        for (uint8_t &byte : w.data) byte = static_cast<uint8_t>(random.next() >> 56);
        w.values.resize(static_cast<size_t>(rows * columns));
        for (int64_t block = 0; block < rows * columns / S::values; block++) {
            uint8_t *p = w.data.data() + block * S::bytes;
            make_usable(s, scheme, p, random, factors_of(scheme));
            if (scheme == "mxfp4") p[0] = static_cast<uint8_t>(118 + random.below(7)); // exponents around 1
            double exact[S::values];
            S::unpack(p, exact);
            for (int i = 0; i < S::values; i++) w.values[static_cast<size_t>(block * S::values + i)] = exact[i];
        }
    });
    return w;
}
