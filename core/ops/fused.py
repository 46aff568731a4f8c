"""Compositions for which chips have one kernel: norms and activations that quantise, cache writes, sharded products."""

from __future__ import annotations

import numpy as np

from ..ir.dim import require_equal
from ..ir.dtype import DType, int8
from ..ir.op import State, Tensor, Tolerance, Weight, op, require
from ..ir.types import StateType, TensorType, WeightType
from .collective import all_reduce
from .contraction import linear
from .elementwise import add, floating, joined, mul, narrowed, silu, widened
from .latent import write_latent_cache
from .movement import reshape, slice
from .nn import rms_norm, rotary_embedding, silu_and_mul
from .quantization import dynamic_quant


def _quantised(x: TensorType, dtype: DType) -> tuple[TensorType, TensorType]:
    codes, scale = dynamic_quant.result_types((x,), {"dtype": dtype})
    assert isinstance(codes, TensorType) and isinstance(scale, TensorType)
    return codes, scale


@op(tolerance=Tolerance.QUANTISE)
def add_rms_norm_quant(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, dtype: DType = int8) -> Tensor:
    """`add_rms_norm`, the normed rows as `dynamic_quant` codes: codes like x in `dtype`, float32 [..., 1], and the sum.

    The codes are those of the norm in at least float32; only the sum is rounded to the dtype of x. A scale that is
    known before the run is `add_rms_norm` and `quantize`.
    """
    total = x + residual
    codes, scale = dynamic_quant.reference(rms_norm.reference(total, weight, eps=eps), dtype=dtype)
    return codes, scale, total


@add_rms_norm_quant.infer
def _(
    x: TensorType, residual: TensorType, weight: TensorType, *, eps: float, dtype: DType
) -> tuple[TensorType, TensorType, TensorType]:
    require(x.dtype == residual.dtype and x.rank == residual.rank, f"x {x} and residual {residual} differ")
    for a, b in zip(x.shape, residual.shape, strict=True):
        require_equal(a, b, f"x {x} and residual {residual} differ in shape")
    require(
        x.rank > 0 and weight == TensorType(x.dtype, x.shape[-1:]), f"weight {weight} must match the last axis of {x}"
    )
    return *_quantised(floating(x), dtype), x


@add_rms_norm_quant.decompose
def _(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, dtype: DType) -> Tensor:
    total = add(widened(x), widened(residual))
    codes, scale = dynamic_quant(rms_norm(total, widened(weight), eps=eps), dtype=dtype)
    return codes, scale, narrowed(total, x)


@op(tolerance=Tolerance.QUANTISE)
def silu_and_mul_quant(gate: Tensor, up: Tensor, *, dtype: DType = int8) -> Tensor:
    """`silu_and_mul` in at least float32 as `dynamic_quant` codes: codes like gate in `dtype`, and float32 [..., 1]."""
    return dynamic_quant.reference(silu_and_mul.reference(gate, up), dtype=dtype)


@silu_and_mul_quant.infer
def _(gate: TensorType, up: TensorType, *, dtype: DType) -> tuple[TensorType, TensorType]:
    return _quantised(joined(floating(gate), up), dtype)


@silu_and_mul_quant.decompose
def _(gate: Tensor, up: Tensor, *, dtype: DType) -> Tensor:
    return dynamic_quant(mul(silu(widened(gate)), widened(up)), dtype=dtype)


@op(tolerance=Tolerance.REDUCTION)
def kv_norm_rope_cache(
    kv: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: State,
    slots: Tensor,
    *,
    eps: float,
    interleaved: bool = False,
) -> State:
    """The cache write of latent attention: kv is [tokens, dim + rope_dim], a latent and a rotary key side by side.

    The latent is normed by `rms_norm` with weight [dim], the rotary key turned by `rotary_embedding` as one head, with
    cos and sin float32 [tokens, r / 2], and both are stored by `write_latent_cache`. The cache has the dtype of kv, to
    which both are rounded once.
    """
    dim = weight.shape[0]
    latent = rms_norm.reference(kv[:, :dim], weight, eps=eps)
    rope = rotary_embedding.reference(np.expand_dims(kv[:, dim:], 1), cos, sin, interleaved=interleaved)
    return write_latent_cache.reference(cache, latent, np.reshape(rope, (kv.shape[0], kv.shape[1] - dim)), slots)


@kv_norm_rope_cache.infer
def _(
    kv: TensorType,
    weight: TensorType,
    cos: TensorType,
    sin: TensorType,
    cache: StateType,
    slots: TensorType,
    *,
    eps: float,
    interleaved: bool,
) -> StateType:
    require(cache.kind == "paged_latent", f"the cache must be paged_latent, not {cache}")
    dim, rope = cache["dim"], cache["rope_dim"]
    require(kv.rank == 2 and kv.shape[1] == dim + rope, f"kv must be [tokens, {dim} + {rope}], not {kv}")
    require(cache["scheme"] == kv.dtype.name, f"kv {kv} does not have the dtype of {cache}")
    require(weight == TensorType(kv.dtype, (dim,)), f"weight must be {kv.dtype} [{dim}], not {weight}")
    head = TensorType(kv.dtype, (kv.shape[0], 1, rope))
    rotary_embedding.result_types((head, cos, sin), {"interleaved": interleaved})
    rows = [TensorType(kv.dtype, (kv.shape[0], width)) for width in (dim, rope)]
    write_latent_cache.result_types((cache, *rows, slots), {})
    return cache


@kv_norm_rope_cache.decompose
def _(
    kv: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: State,
    slots: Tensor,
    *,
    eps: float,
    interleaved: bool,
) -> State:
    tokens, dim, width = kv.shape[0], weight.shape[0], kv.shape[1]
    latent = rms_norm(slice(kv, axis=1, start=0, stop=dim), weight, eps=eps)
    head = reshape(slice(kv, axis=1, start=dim, stop=width), shape=(tokens, 1, width - dim))
    rope = reshape(rotary_embedding(head, cos, sin, interleaved=interleaved), shape=(tokens, width - dim))
    return write_latent_cache(cache, latent, rope, slots)


@op(tolerance=Tolerance.CONTRACTION)
def matmul_all_reduce(x: Tensor, weight: Weight, bias: Tensor | None = None, *, group: str, size: int) -> Tensor:
    """`linear` whose columns are spread over the ranks of a group: x [..., columns here] to [..., rows] on all ranks.

    The partial products are summed as by `all_reduce`, in at least float32; the bias, which all ranks hold, is added
    once, after the sum.
    """
    total = all_reduce.reference(linear.reference(x, weight), group=group, size=size)
    return total if bias is None else total + bias


@matmul_all_reduce.infer
def _(x: TensorType, weight: WeightType, bias: TensorType | None, *, group: str, size: int) -> TensorType:
    (kind,) = linear.result_types((x, weight, bias), {})
    all_reduce.result_types((kind,), {"group": group, "size": size, "reduction": "sum"})
    assert isinstance(kind, TensorType)
    return kind


@matmul_all_reduce.decompose
def _(x: Tensor, weight: Weight, bias: Tensor | None, *, group: str, size: int) -> Tensor:
    total = all_reduce(linear(widened(x), weight), group=group, size=size)
    return narrowed(total if bias is None else add(total, widened(bias)), x)
