// What a command of a program is given: numbers, real numbers as their bits, and addresses.
#pragma once
#include <cstdint>
#include <cstring>

struct Arguments {
    const int64_t *values;
    int64_t number(int i) const { return values[i]; }
    int32_t code(int i) const { return static_cast<int32_t>(values[i]); }
    template <class T> T *at(int i) const { return reinterpret_cast<T *>(static_cast<uintptr_t>(values[i])); }
    double real(int i) const {
        double x;
        std::memcpy(&x, values + i, 8);
        return x;
    }
};
