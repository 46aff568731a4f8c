"""Norms, rotary embedding and gated activations, each rounded once."""

from __future__ import annotations

from typing import Any

from mindspore import ops as msops

from xinheng.core import ops

from .elementwise import gelu_double, silu_double
from .movement import piece
from .registry import FLOATS, MINDSPORE_KERNELS, double, narrow, wide

_MEAN: Any = msops.ReduceMean(True)


@MINDSPORE_KERNELS.register(ops.rms_norm, name="mindspore_rms_norm", dtypes=FLOATS)
def rms_norm(x: Any, weight: Any, *, eps: float) -> Any:
    wider = wide(x)
    return narrow(wider * msops.rsqrt(_MEAN(wider * wider, -1) + eps) * wide(weight), x)


@MINDSPORE_KERNELS.register(ops.rotary_embedding, name="mindspore_rotary_embedding", dtypes=FLOATS)
def rotary_embedding(x: Any, cos: Any, sin: Any, *, interleaved: bool = False) -> Any:
    half, width = cos.shape[-1], x.shape[-1]
    if half == 0:
        return x
    wider = wide(x)
    cos, sin = (table.reshape((x.shape[0], 1, half)) for table in (cos, sin))
    a = piece(wider, -1, 0, 2 * half, 2) if interleaved else piece(wider, -1, 0, half)
    b = piece(wider, -1, 1, 2 * half, 2) if interleaved else piece(wider, -1, half, 2 * half)
    turned = (a * cos - b * sin, b * cos + a * sin)
    joined = msops.stack(turned, -1).reshape((*x.shape[:-1], 2 * half)) if interleaved else msops.cat(turned, -1)
    joined = narrow(joined, x)
    return joined if 2 * half == width else msops.cat((joined, piece(x, -1, 2 * half, width)), -1)


@MINDSPORE_KERNELS.register(ops.silu_and_mul, name="mindspore_silu_and_mul", dtypes=FLOATS)
def silu_and_mul(gate: Any, up: Any) -> Any:
    return narrow(silu_double(double(gate)) * double(up), gate)


@MINDSPORE_KERNELS.register(ops.gelu_and_mul, name="mindspore_gelu_and_mul", dtypes=FLOATS)
def gelu_and_mul(gate: Any, up: Any, *, approximate: str = "none") -> Any:
    return narrow(gelu_double(double(gate), approximate) * double(up), gate)
