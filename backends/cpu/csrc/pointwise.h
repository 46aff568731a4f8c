// Elementwise functions over [rows, columns] with broadcasting.
#pragma once
#include <cstdint>
#include <type_traits>

enum Pointwise : int32_t { CAST, NEGATE, COSINE, SINE, TANH, SIGMOID, EXPONENTIAL, ADD, SUBTRACT, MULTIPLY, DIVIDE };

constexpr int32_t INTEGER32 = 8; // besides `Type`, as a type of operands

struct Operand {
    const void *data;
    int64_t row_stride, stride; // in values; 0 along an axis that is broadcast
    int32_t type;
};

// y [rows, columns] contiguous; `b` counts for functions from ADD on. Returns 0, or -1 for an unknown type.
int32_t pointwise(int32_t function, int64_t rows, int64_t columns, const Operand &a, const Operand &b, int32_t type,
                  void *y);
