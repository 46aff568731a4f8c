// The packed block formats of GGUF files as plain loops: `unpack` writes the values, exact in double and rounded once
// in float. Layouts: ggml-common.h and ggml-quants.c of ggml; the same formats in numpy: core/schemes/gguf.py.
// `d` and `m` are float16 factors; every product has at most 24 significant bits, so only adding a minimum rounds.
#pragma once
#include "numbers.h"

static inline float half_at(const uint8_t *p) {
    f16 h;
    std::memcpy(&h, p, 2);
    return to_float(h);
}

inline constexpr int8_t IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t MXFP4_LEVELS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; // twice the value

// 2^(e - 128), exact, subnormal for e < 2.
static inline float mxfp4_factor(uint8_t e) { return float_of(e < 2 ? 0x00200000u << e : (e - 1u) << 23); }

// Scale and minimum of group g of Q4_K and Q5_K, from their 12 packed bytes.
static inline void scale_and_minimum(const uint8_t *b, int g, int &scale, int &minimum) {
    if (g < 4) {
        scale = b[g] & 63;
        minimum = b[g + 4] & 63;
    } else {
        scale = (b[g + 4] & 15) | ((b[g - 4] >> 6) << 4);
        minimum = (b[g + 4] >> 4) | ((b[g] >> 6) << 4);
    }
}

struct Q4_0 {
    static constexpr int values = 32, bytes = 18;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p);
        for (int i = 0; i < 16; i++) {
            y[i] = d * static_cast<R>((p[2 + i] & 15) - 8);
            y[16 + i] = d * static_cast<R>((p[2 + i] >> 4) - 8);
        }
    }
};

struct Q4_1 {
    static constexpr int values = 32, bytes = 20;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p), m = half_at(p + 2);
        for (int i = 0; i < 16; i++) {
            y[i] = d * static_cast<R>(p[4 + i] & 15) + m;
            y[16 + i] = d * static_cast<R>(p[4 + i] >> 4) + m;
        }
    }
};

struct Q5_0 {
    static constexpr int values = 32, bytes = 22;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p);
        uint32_t high;
        std::memcpy(&high, p + 2, 4);
        for (int i = 0; i < 16; i++) {
            const int low0 = p[6 + i] & 15, low1 = p[6 + i] >> 4;
            y[i] = d * static_cast<R>((low0 | static_cast<int>((high >> i) & 1) << 4) - 16);
            y[16 + i] = d * static_cast<R>((low1 | static_cast<int>((high >> (i + 16)) & 1) << 4) - 16);
        }
    }
};

struct Q5_1 {
    static constexpr int values = 32, bytes = 24;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p), m = half_at(p + 2);
        uint32_t high;
        std::memcpy(&high, p + 4, 4);
        for (int i = 0; i < 16; i++) {
            const int low0 = p[8 + i] & 15, low1 = p[8 + i] >> 4;
            y[i] = d * static_cast<R>(low0 | static_cast<int>((high >> i) & 1) << 4) + m;
            y[16 + i] = d * static_cast<R>(low1 | static_cast<int>((high >> (i + 16)) & 1) << 4) + m;
        }
    }
};

struct Q8_0 {
    static constexpr int values = 32, bytes = 34;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p);
        for (int i = 0; i < 32; i++) y[i] = d * static_cast<R>(static_cast<int8_t>(p[2 + i]));
    }
};

struct Q2_K {
    static constexpr int values = 256, bytes = 84;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p + 80), dmin = half_at(p + 82);
        for (int g = 0; g < 16; g++) {
            const R scale = d * static_cast<R>(p[g] & 15), minimum = dmin * static_cast<R>(p[g] >> 4);
            const uint8_t *q = p + 16 + 32 * (g / 8) + 16 * (g % 2);
            const int shift = 2 * (g % 8 / 2);
            for (int i = 0; i < 16; i++) y[16 * g + i] = scale * static_cast<R>((q[i] >> shift) & 3) - minimum;
        }
    }
};

struct Q3_K {
    static constexpr int values = 256, bytes = 110;
    static int scale(const uint8_t *p, int g) {
        const int low = g < 8 ? p[96 + g] & 15 : p[96 + g - 8] >> 4;
        return (low | ((p[104 + g % 4] >> (2 * (g / 4))) & 3) << 4) - 32;
    }
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p + 108);
        for (int g = 0; g < 16; g++) {
            const R factor = d * static_cast<R>(scale(p, g));
            const uint8_t *q = p + 32 + 32 * (g / 8) + 16 * (g % 2), *high = p + 16 * (g % 2);
            const int shift = 2 * (g % 8 / 2), bit = g / 2;
            for (int i = 0; i < 16; i++) {
                const int level = ((q[i] >> shift) & 3) - (((high[i] >> bit) & 1) ? 0 : 4);
                y[16 * g + i] = factor * static_cast<R>(level);
            }
        }
    }
};

struct Q4_K {
    static constexpr int values = 256, bytes = 144;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p), dmin = half_at(p + 2);
        for (int g = 0; g < 8; g++) {
            int s, m;
            scale_and_minimum(p + 4, g, s, m);
            const R scale = d * static_cast<R>(s), minimum = dmin * static_cast<R>(m);
            const uint8_t *q = p + 16 + 32 * (g / 2);
            const int shift = 4 * (g % 2);
            for (int i = 0; i < 32; i++) y[32 * g + i] = scale * static_cast<R>((q[i] >> shift) & 15) - minimum;
        }
    }
};

struct Q5_K {
    static constexpr int values = 256, bytes = 176;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p), dmin = half_at(p + 2);
        for (int g = 0; g < 8; g++) {
            int s, m;
            scale_and_minimum(p + 4, g, s, m);
            const R scale = d * static_cast<R>(s), minimum = dmin * static_cast<R>(m);
            const uint8_t *q = p + 48 + 32 * (g / 2), *high = p + 16;
            const int shift = 4 * (g % 2);
            for (int i = 0; i < 32; i++) {
                const int level = ((q[i] >> shift) & 15) | ((high[i] >> g) & 1) << 4;
                y[32 * g + i] = scale * static_cast<R>(level) - minimum;
            }
        }
    }
};

struct Q6_K {
    static constexpr int values = 256, bytes = 210;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p + 208);
        for (int g = 0; g < 16; g++) {
            const R factor = d * static_cast<R>(static_cast<int8_t>(p[192 + g]));
            const int run = g % 8 / 2; // of four runs of 32 values in each half
            const uint8_t *q = p + 64 * (g / 8) + 32 * (run % 2) + 16 * (g % 2);
            const uint8_t *high = p + 128 + 32 * (g / 8) + 16 * (g % 2);
            for (int i = 0; i < 16; i++) {
                const int level = ((q[i] >> (4 * (run / 2))) & 15) | ((high[i] >> (2 * run)) & 3) << 4;
                y[16 * g + i] = factor * static_cast<R>(level - 32);
            }
        }
    }
};

struct IQ4_NL {
    static constexpr int values = 32, bytes = 18;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R d = half_at(p);
        for (int i = 0; i < 16; i++) {
            y[i] = d * static_cast<R>(IQ4_LEVELS[p[2 + i] & 15]);
            y[16 + i] = d * static_cast<R>(IQ4_LEVELS[p[2 + i] >> 4]);
        }
    }
};

struct IQ4_XS {
    static constexpr int values = 256, bytes = 136;
    static int scale(const uint8_t *p, int g) {
        const int low = (p[4 + g / 2] >> (4 * (g % 2))) & 15, high = (p[2 + g / 4] >> (2 * (g % 4))) & 3;
        return (low | high << 4) - 32;
    }
    static float factor(const uint8_t *p, int g) { return half_at(p) * static_cast<float>(scale(p, g)); }
    template <class R> static void unpack(const uint8_t *p, R *y) {
        for (int g = 0; g < 8; g++) {
            const R scale = factor(p, g);
            for (int i = 0; i < 16; i++) {
                y[32 * g + i] = scale * static_cast<R>(IQ4_LEVELS[p[8 + 16 * g + i] & 15]);
                y[32 * g + 16 + i] = scale * static_cast<R>(IQ4_LEVELS[p[8 + 16 * g + i] >> 4]);
            }
        }
    }
};

struct MXFP4 {
    static constexpr int values = 32, bytes = 17;
    template <class R> static void unpack(const uint8_t *p, R *y) {
        const R factor = mxfp4_factor(p[0]);
        for (int i = 0; i < 16; i++) {
            y[i] = factor * static_cast<R>(MXFP4_LEVELS[p[1 + i] & 15]);
            y[16 + i] = factor * static_cast<R>(MXFP4_LEVELS[p[1 + i] >> 4]);
        }
    }
};

// Dense rows, seen as blocks of sixteen numbers.
template <class T> struct Dense {
    typedef T element;
    static constexpr int values = 16, bytes = 16 * sizeof(T);
    template <class R> static void unpack(const uint8_t *p, R *y) {
        T x[16];
        std::memcpy(x, p, sizeof x);
        for (int i = 0; i < 16; i++) y[i] = to_float(x[i]);
    }
};
