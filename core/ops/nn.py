"""Composites of transformer layers: norms, rotary position embedding, gated activations."""

from __future__ import annotations

import math

import numpy as np

from ..ir import numeric
from ..ir.dim import require_equal
from ..ir.dtype import float32
from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType
from .elementwise import add, floating, gelu, joined, mul, narrowed, rsqrt, silu, square, sub, widened
from .movement import concat, reshape, slice
from .reduction import mean


@op(tolerance=Tolerance.REDUCTION)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019).

    Computed in at least float32 and rounded once; the quotient may be rounded before it meets the weight. A weight
    stored as an offset from one is not meant here: add the one when the weight is loaded.
    """
    return numeric.point(x * numeric.rsqrt(np.mean(x * x, axis=-1, keepdims=True) + eps), "normed") * weight


@rms_norm.infer
def _(x: TensorType, weight: TensorType, *, eps: float) -> TensorType:
    require(x.rank > 0 and weight.shape == x.shape[-1:], f"weight {weight} must match the last axis of {x}")
    require(weight.dtype == x.dtype, f"weight is {weight.dtype}, x is {x.dtype}")
    return floating(x)


@rms_norm.decompose
def _(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    wide = widened(x)
    normed = mul(wide, rsqrt(add(mean(square(wide), axis=-1, keepdims=True), eps)))
    return narrowed(mul(normed, widened(weight)), x)


@op(tolerance=Tolerance.REDUCTION)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The sum x + residual normed as by `rms_norm`, and the sum itself, in this order.

    Both are rounded once; the norm may start from the sum before or after it was rounded. Nothing is changed in place,
    and the reciprocal root that some chips return besides is not a result.
    """
    total = x + residual
    return rms_norm.reference(numeric.point(total, "sum"), weight, eps=eps), total


@add_rms_norm.infer
def _(x: TensorType, residual: TensorType, weight: TensorType, *, eps: float) -> tuple[TensorType, TensorType]:
    require(x.dtype == residual.dtype and x.rank == residual.rank, f"x {x} and residual {residual} differ")
    for a, b in zip(x.shape, residual.shape, strict=True):
        require_equal(a, b, f"x {x} and residual {residual} differ in shape")
    require(x.rank > 0 and weight.shape == x.shape[-1:], f"weight {weight} must match the last axis of {x}")
    require(weight.dtype == x.dtype, f"weight is {weight.dtype}, x is {x.dtype}")
    return floating(x), x


@add_rms_norm.decompose
def _(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    total = add(x, residual)
    return rms_norm(total, weight, eps=eps), total


@op(tolerance=Tolerance.REDUCTION)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis (Ba et al. 2016).

    The variance is the mean of squared distances from the mean (divided by n). Computed in at least float32 and rounded
    once; the quotient may be rounded before it meets the weight.
    """
    centred = x - np.mean(x, axis=-1, keepdims=True)
    y = centred * numeric.rsqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
    y = y if weight is None else numeric.point(y, "normed") * weight
    return y if bias is None else y + bias


@layer_norm.infer
def _(x: TensorType, weight: TensorType | None, bias: TensorType | None, *, eps: float) -> TensorType:
    for name, value in (("weight", weight), ("bias", bias)):
        fits = value is None or (x.rank > 0 and value == TensorType(x.dtype, x.shape[-1:]))
        require(fits, f"{name} {value} must match the last axis of {x}")
    return floating(x)


@layer_norm.decompose
def _(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
    wide = widened(x)
    centred = sub(wide, mean(wide, axis=-1, keepdims=True))
    y = mul(centred, rsqrt(add(mean(square(centred), axis=-1, keepdims=True), eps)))
    y = y if weight is None else mul(y, widened(weight))
    return narrowed(y if bias is None else add(y, widened(bias)), x)


@op(tolerance=Tolerance.ELEMENTWISE)
def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Rotate pairs of elements of each head by the given angles (Su et al. 2021).

    x is [tokens, heads, width]; cos and sin are float32 [tokens, r / 2] for the first r <= width elements, the rest
    passes through. The i-th pair is (x[i], x[i + r/2]), or (x[2i], x[2i + 1]) if `interleaved`; (a, b) becomes
    (a cos - b sin, b cos + a sin). Computed in float32 and rounded once.
    """
    half = cos.shape[-1]
    cos, sin = np.expand_dims(cos, 1), np.expand_dims(sin, 1)
    if interleaved:
        a, b = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        a, b = x[..., :half], x[..., half : 2 * half]
    turned = [a * cos - b * sin, b * cos + a * sin]
    rest = [x[..., 2 * half :]] if 2 * half < x.shape[-1] else []
    if interleaved:
        pairs = np.stack(turned, axis=-1)
        turned = [np.reshape(pairs, (*x.shape[:-1], 2 * half))]
    return np.concatenate([*turned, *rest], axis=-1)


@rotary_embedding.infer
def _(x: TensorType, cos: TensorType, sin: TensorType, *, interleaved: bool) -> TensorType:
    require(x.rank == 3, f"x must be [tokens, heads, width], not {x}")
    require(
        cos == sin and cos.rank == 2 and cos.dtype == float32, f"cos and sin must be equal float32 matrices, not {cos}"
    )
    require_equal(cos.shape[0], x.shape[0], f"tables {cos} do not have the rows of {x}")
    width, half = x.shape[-1], cos.shape[-1]
    require(isinstance(width, int) and isinstance(half, int) and 2 * half <= width, f"tables {cos} are wider than {x}")
    return floating(x)


@rotary_embedding.decompose
def _(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    half, width = cos.shape[-1], x.shape[-1]
    table = (x.shape[0], 1, half)
    wide = widened(x)
    cos, sin = (narrowed(reshape(angle, shape=table), wide) for angle in (cos, sin))
    if interleaved:
        a = slice(wide, axis=2, start=0, stop=2 * half, step=2)
        b = slice(wide, axis=2, start=1, stop=2 * half, step=2)
    else:
        a, b = slice(wide, axis=2, start=0, stop=half), slice(wide, axis=2, start=half, stop=2 * half)
    turned = [sub(mul(a, cos), mul(b, sin)), add(mul(b, cos), mul(a, sin))]
    if interleaved:
        pairs = [reshape(t, shape=(*x.shape[:2], half, 1)) for t in turned]
        turned = [reshape(concat(*pairs, axis=3), shape=(*x.shape[:2], 2 * half))]
    rest = [slice(wide, axis=2, start=2 * half, stop=width)] if 2 * half < width else []
    parts = [*turned, *rest]
    return narrowed(concat(*parts, axis=2), x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020), computed in at least float32 and rounded once.

    silu(gate) may be rounded before it meets up.
    """
    return numeric.point(gate * numeric.sigmoid(gate), "activated") * up


@silu_and_mul.decompose
def _(gate: Tensor, up: Tensor) -> Tensor:
    return narrowed(mul(silu(widened(gate)), widened(up)), gate)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def gelu_and_mul(gate: Tensor, up: Tensor, *, approximate: str = "none") -> Tensor:
    """gelu(gate) * up (Shazeer 2020), computed in at least float32 and rounded once; `approximate` as in gelu.

    gelu(gate) may be rounded before it meets up.
    """
    if approximate == "tanh":
        y = 0.5 * gate * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * (gate * gate * gate))))
    else:
        y = 0.5 * gate * (1.0 + numeric.erf(gate * math.sqrt(0.5)))
    return numeric.point(y, "activated") * up


@gelu_and_mul.decompose
def _(gate: Tensor, up: Tensor, *, approximate: str) -> Tensor:
    return narrowed(mul(gelu(widened(gate), approximate=approximate), widened(up)), gate)


@silu_and_mul.infer
def _(gate: TensorType, up: TensorType) -> TensorType:
    return joined(floating(gate), up)


@gelu_and_mul.infer
def _(gate: TensorType, up: TensorType, *, approximate: str) -> TensorType:
    require(approximate in ("none", "tanh"), f"approximate must be 'none' or 'tanh', not {approximate!r}")
    return joined(floating(gate), up)
