"""Functions of single float32 numbers for kernels, accurate to a few units in the last place.

The instructions that Triton takes for `exp` and `/` lose accuracy with the size of their argument, by more than the
grade that devices declare; those for `sqrt` and the quotient have correctly rounded variants.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
"""The interpreter cuts off what bfloat16 has no bits for, and multiplies its bit patterns as if they were integers;
the functions below then do with bits what cards do in one instruction, to the same numbers."""


def device(function: Any) -> Any:
    """A function for kernels to call. The interpreter would patch the whole language anew for each call of one."""
    made = triton.jit(function)
    return made.rewrite() if INTERPRETED.value else made


# interpreters before that of 3.9 do not patch what these call in their turn
_DIRECT = INTERPRETED.value and tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
sum_of, max_of, min_of, cumsum_of = (f.rewrite() if _DIRECT else f for f in (tl.sum, tl.max, tl.min, tl.cumsum))
"""Triton's own reductions, called likewise."""


@device
def widen(x):
    """Floats as float32."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@device
def narrow(x, KIND: tl.constexpr):
    """Float32 numbers rounded once to a dtype, halves to even."""
    if INTERPRETED and KIND == tl.bfloat16:  # noqa: SIM300
        bits = x.to(tl.uint32, bitcast=True)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16)
        return tl.where(x == x, rounded, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(KIND)


@device
def exp(x):
    """e^x: x = k ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite 1980), then 2^k in two exact factors."""
    k = tl.floor(tl.minimum(tl.maximum(x * 1.4426950408889634, -250.0), 250.0) + 0.5)
    r = tl.fma(k, -0.693145751953125, x)
    r = tl.fma(k, -1.428606765330187e-06, r)
    half = tl.floor(k * 0.5)
    low = ((half.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    high = (((k - half).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.exp2(r * 1.4426950408889634) * low * high


@device
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return tl.div_rn(1.0, 1.0 + exp(-x))


@device
def silu(x):
    """x / (1 + e^-x)."""
    return tl.div_rn(x, 1.0 + exp(-x))


@device
def tanh(x):
    """The hyperbolic tangent: a polynomial near zero, where 1 - 2 / (e^2x + 1) would cancel (coefficients: Cephes)."""
    size = tl.abs(x)
    z = x * x
    p = tl.fma(z, -5.70498872745e-3, 2.06390887954e-2)
    p = tl.fma(z, p, -5.37397155531e-2)
    p = tl.fma(z, p, 1.33314422036e-1)
    p = tl.fma(z, p, -3.33332819422e-1)
    near = tl.fma(z * p, x, x)
    far = 1.0 - tl.div_rn(2.0, exp(2.0 * tl.minimum(size, 40.0)) + 1.0)
    return tl.where(size < 0.625, near, tl.where(x < 0, -far, tl.where(x > 0, far, x)))


@device
def inverse_root(x):
    """1 / sqrt(x), both rounded."""
    return tl.div_rn(1.0, tl.sqrt_rn(x))


@device
def nearest(x):
    """The nearest integer, halves to the even one; for magnitudes below 2^22."""
    return (x + 12582912.0) - 12582912.0


@device
def product(a, b, total):
    """total + a b over matrices; factors of float32 are not cut, and those of bytes are added up in int32."""
    if INTERPRETED and total.dtype == tl.float32:
        # the library below numpy adds the terms of some rows of a matrix in another order than those of others; in
        # float64 that does not show
        made = tl.dot(widen(a).to(tl.float64), widen(b).to(tl.float64), out_dtype=tl.float64)
        return total + made.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee", out_dtype=total.dtype)
