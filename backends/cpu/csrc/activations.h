// Activations as int8 codes: x = scale * code with one scale for 32 values of k, the largest of them becoming +-127.
#pragma once
#include <cstdint>

// More tokens than these are multiplied by panels of unpacked codes.
constexpr int64_t MANY = 16;

struct Activations {
    const int8_t *codes;   // [tokens, k]
    const float *scales;   // [tokens, k / 32]
    const float *weighted; // [tokens, k / 32]: the scale times the sum of the codes
    const int32_t *sums;   // [tokens, k / 32]: sums of the codes of a block
    const int32_t *halves; // [tokens, k / 16]: sums of sixteen codes
    const uint8_t *raised; // [tokens, k]: the codes plus 128; null where nothing multiplies those
    int64_t tokens, k;

    // Rows first .. first + count - 1.
    Activations rows(int64_t first, int64_t count) const {
        const int64_t at = first * (k / 32);
        const uint8_t *up = raised ? raised + first * k : nullptr;
        return {codes + first * k, scales + at, weighted + at, sums + at, halves + 2 * at, up, count, k};
    }
};

// Quantises rows of k values of type `type` that are `stride` values apart into this thread's scratch, where they stay
// until its next call; k is a multiple of 32. False for an unknown type.
bool quantise(const void *x, int32_t type, int64_t tokens, int64_t k, int64_t stride, Activations &out);
