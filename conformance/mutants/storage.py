"""Mutants of how results are stored, of ops of every class: rounding, range, and places that are not written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.ir import DType, TensorType
from xinheng.core.ir.dtype import bfloat16, cast_to, float16, round_to

from ..call import Call
from ..selftests.simulated import simulate
from .mutant import HALVES, Mutant, Results, enter, spoiled

Array = NDArray[Any]
MATRICES = "matmul linear grouped_linear batched_linear conv conv_transpose quant_matmul"
ROWS = "rms_norm layer_norm add_rms_norm softmax rotary_embedding silu_and_mul paged_attention sdpa_varlen"


def truncated(x: Array, kind: DType) -> Array:
    """Cut off instead of rounded to nearest."""
    values = np.asarray(x, np.float64)
    nearest = round_to(values, kind)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(nearest)[1] - 1, kind.emin)
        below = nearest - np.copysign(np.ldexp(1.0, exponent - kind.precision + 1), nearest)
    return np.where((np.abs(nearest) > np.abs(values)) & np.isfinite(nearest), round_to(below, kind), nearest)


def saturated(x: Array, kind: DType) -> Array:
    """The largest finite number instead of infinity, as on chips without infinities."""
    return np.clip(round_to(x, kind), -kind.largest, kind.largest)


def flushed(x: Array, kind: DType) -> Array:
    """Zero instead of subnormal numbers."""
    return round_to(x, kind, flush=True)


def twice(x: Array, kind: DType) -> Array:
    """Rounded to one format on the way to another one."""
    between = bfloat16 if kind == float16 else float16
    return round_to(round_to(x, between), kind)


def _storing(name: str, text: str, rule: Any, ops: str, where: Any) -> None:
    def run(call: Call) -> Results | None:
        if not all(isinstance(kind, TensorType) for kind in call.result_types):
            return None
        made = []
        for x, kind in zip(simulate(call), call.result_types, strict=True):
            dtype = kind.dtype  # type: ignore[union-attr]
            made.append(cast_to(rule(np.asarray(x), dtype) if dtype.is_float else np.asarray(x), dtype))
        return tuple(made)

    for op in ops.split():
        enter(Mutant(op, name, text, "results", run, where))


_storing("truncated", "stores by cutting bits off", truncated, f"{MATRICES} {ROWS} gelu add mul div", HALVES)
_storing("saturated", "stores the largest number instead of infinity", saturated, "matmul mul square exp cast", HALVES)
_storing("flushed", "stores zero instead of subnormal numbers", flushed, "mul exp cast", (float16,))
_storing("rounded twice", "rounds to another 16-bit format on the way", twice, "matmul rms_norm sdpa_varlen", HALVES)


def _changed(x: Any, change: Any) -> Any:
    """A copy of a float result, changed in place if it has what it takes."""
    copy = np.array(x)
    change(copy)
    return copy


def _last_row(x: Array) -> None:
    if x.ndim >= 2 and x.shape[-2] > 1:
        x[..., -1, :] = x[..., -2, :]


def _one_element(x: Array) -> None:
    if x.size:
        x.flat[x.size // 2] *= 1.03


def _last_element(x: Array) -> None:
    if x.ndim and x.shape[-1] > 1:
        x[..., -1] = 0


def _sign(x: Array) -> None:
    if x.ndim and x.size:
        x[..., 0] = -x[..., 0]


def _on_first(change: Any) -> Any:
    return lambda call, made: (_changed(made[0], change), *made[1:])


spoiled(
    f"{MATRICES} rms_norm softmax sdpa_varlen", "row repeated", "the last row is that before it", _on_first(_last_row)
)
spoiled(f"{MATRICES} {ROWS}", "one element off", "one element of the result is off by 3 %", _on_first(_one_element))
spoiled(f"{MATRICES} {ROWS}", "tail not written", "the last column is never written", _on_first(_last_element))
spoiled("matmul rms_norm layer_norm", "sign", "the first column has the wrong sign", _on_first(_sign))


def _unwritten(call: Call, made: Results) -> Results:
    return tuple(np.full_like(np.asarray(x), np.nan) if np.asarray(x).dtype.kind == "f" else x for x in made)


spoiled("add matmul paged_attention", "not written", "the kernel returns at once", _unwritten)
