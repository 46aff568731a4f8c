// Norms, rotary embedding, gated activations, elementwise functions, and the conversions that all of them use.
#include "check.h"
#include "kernels.h"

namespace {

template <class T> void norm(Check &check, int64_t width, Random &random) {
    const int64_t rows = 40;
    const std::vector<T> x = rounded<T>(random.normals(rows * (width + 3)));
    const std::vector<float> weight = random.normals(width);
    std::vector<T> y(static_cast<size_t>(rows * width));
    xh_rms_norm(x.data(), type_of<T>(), rows, 1, width + 3, 0, width, weight.data(), FLOAT32, 1e-6, y.data());
    for (int64_t r = 0; r < rows; r++) {
        const T *row = x.data() + r * (width + 3);
        double squares = 0;
        for (int64_t i = 0; i < width; i++) squares += static_cast<double>(to_float(row[i])) * to_float(row[i]);
        const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
        for (int64_t i = 0; i < width; i++) {
            const double wanted = to_float(row[i]) * factor * weight[static_cast<size_t>(i)];
            const double bound = std::fabs(wanted) * (rounding<T>() + static_cast<double>(width) * 0x1p-24) + 1e-8;
            check.near(to_float(y[static_cast<size_t>(r * width + i)]), wanted, bound, "rms_norm");
        }
    }
}

template <class T> void rotary(Check &check, bool interleaved, Random &random) {
    const int64_t tokens = 19, heads = 3, width = 20, half = 8;
    const std::vector<T> x = rounded<T>(random.normals(tokens * heads * width));
    std::vector<float> cosines, sines;
    for (int64_t i = 0; i < tokens * half; i++) {
        cosines.push_back(static_cast<float>(std::cos(0.1 * static_cast<double>(i))));
        sines.push_back(static_cast<float>(std::sin(0.1 * static_cast<double>(i))));
    }
    std::vector<T> y(x.size());
    xh_rotary(x.data(), type_of<T>(), tokens, heads, heads * width, width, width, cosines.data(), sines.data(), half,
              interleaved, y.data());
    for (int64_t row = 0; row < tokens * heads; row++)
        for (int64_t i = 0; i < width; i++) {
            const T *from = x.data() + row * width;
            double wanted = to_float(from[i]);
            if (i < 2 * half) {
                const int64_t pair = interleaved ? i / 2 : i % half, at = row / heads * half + pair;
                const bool second = interleaved ? i % 2 : i >= half;
                const double a = to_float(from[interleaved ? 2 * pair : pair]);
                const double b = to_float(from[interleaved ? 2 * pair + 1 : pair + half]);
                const double c = cosines[static_cast<size_t>(at)], s = sines[static_cast<size_t>(at)];
                wanted = second ? b * c + a * s : a * c - b * s;
            }
            check.near(to_float(y[static_cast<size_t>(row * width + i)]), wanted,
                       std::fabs(wanted) * rounding<T>() + 1e-7, "rotary_embedding");
        }
}

template <class T> void gated(Check &check, int32_t function, Random &random) {
    const int64_t rows = 21, width = 50;
    const std::vector<T> x = rounded<T>(random.normals(rows * 2 * width));
    std::vector<T> y(static_cast<size_t>(rows * width));
    const int32_t known =
        xh_gated(function, x.data(), x.data() + width, type_of<T>(), rows, width, 2 * width, 2 * width, y.data());
    check.that(known == 0, "a gated function is unknown");
    for (int64_t i = 0; i < rows * width; i++) {
        const int64_t at = i / width * 2 * width + i % width;
        const double g = to_float(x[static_cast<size_t>(at)]), u = to_float(x[static_cast<size_t>(at + width)]);
        const double inner = std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
        const double activated = function == 0   ? g / (1 + std::exp(-g))
                                 : function == 1 ? 0.5 * g * (1 + std::tanh(inner))
                                                 : 0.5 * g * (1 + std::erf(g / std::sqrt(2.0)));
        const double wanted = activated * u;
        const double bound = std::fabs(wanted) * (rounding<T>() + 6 * 0x1p-24) + 1e-7; // e^x is good to some units
        check.near(to_float(y[static_cast<size_t>(i)]), wanted, bound, "gated");
    }
}

double reference(int32_t function, double a, double b) {
    switch (function) {
    case CAST: return a;
    case NEGATE: return -a;
    case COSINE: return std::cos(a);
    case SINE: return std::sin(a);
    case TANH: return std::tanh(a);
    case SIGMOID: return 1 / (1 + std::exp(-a));
    case EXPONENTIAL: return std::exp(a);
    case ADD: return a + b;
    case SUBTRACT: return a - b;
    case MULTIPLY: return a * b;
    default: return a / b;
    }
}

// a [rows, columns] with b [rows, 1] or [1, columns].
template <class T> void elementwise(Check &check, int32_t function, bool along_rows, Random &random) {
    const int64_t rows = 33, columns = 17;
    const std::vector<T> a = rounded<T>(random.normals(rows * columns)), b = rounded<T>(random.normals(rows + columns));
    std::vector<T> y(a.size());
    xh_pointwise(function, rows, columns, a.data(), columns, 1, type_of<T>(), b.data(), along_rows, !along_rows,
                 type_of<T>(), type_of<T>(), y.data());
    for (int64_t i = 0; i < rows * columns; i++) {
        const T second = b[static_cast<size_t>(along_rows ? i / columns : i % columns)];
        const double wanted = reference(function, to_float(a[static_cast<size_t>(i)]), to_float(second));
        check.near(to_float(y[static_cast<size_t>(i)]), wanted, std::fabs(wanted) * rounding<T>() + 1e-7,
                   "elementwise function " + std::to_string(function));
    }
}

} // namespace

void check_norm(Check &check) {
    Random random;
    for (int64_t width : {1, 16, 61, 576}) {
        norm<float>(check, width, random);
        norm<bf16>(check, width, random);
        norm<f16>(check, width, random);
    }
}

void check_pointwise(Check &check) {
    Random random;
    for (bool interleaved : {false, true}) {
        rotary<float>(check, interleaved, random);
        rotary<bf16>(check, interleaved, random);
        rotary<f16>(check, interleaved, random);
    }
    for (int32_t function = 0; function < 3; function++) {
        gated<float>(check, function, random);
        gated<bf16>(check, function, random);
        gated<f16>(check, function, random);
    }
    for (int32_t function = CAST; function <= DIVIDE; function++)
        for (bool along_rows : {false, true}) {
            elementwise<float>(check, function, along_rows, random);
            elementwise<bf16>(check, function, along_rows, random);
            elementwise<f16>(check, function, along_rows, random);
        }
}

// Every float16 and bfloat16 survives a round trip, and halves between two of them go to the even one.
void check_numbers(Check &check) {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const f16 h{static_cast<uint16_t>(bits)};
        const bf16 b{static_cast<uint16_t>(bits)};
        f16 h2;
        bf16 b2;
        assign(h2, to_float(h));
        assign(b2, to_float(b));
        const bool h_nan = (bits & 0x7fff) > 0x7c00, b_nan = (bits & 0x7fff) > 0x7f80;
        check.that(h_nan ? (h2.bits & 0x7fff) > 0x7c00 : h2.bits == bits, "float16 round trip");
        check.that(b_nan ? (b2.bits & 0x7fff) > 0x7f80 : b2.bits == bits, "bfloat16 round trip");
        if ((bits & 0x7fff) >= 0x7bff) continue;
        const f16 above{static_cast<uint16_t>(bits + 1)};
        f16 middle;
        assign(middle, static_cast<float>((static_cast<double>(to_float(h)) + to_float(above)) / 2));
        check.that(middle.bits == (bits % 2 ? bits + 1 : bits), "float16 ties to even");
    }
}
