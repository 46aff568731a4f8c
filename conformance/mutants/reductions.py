"""Mutants of folds along an axis, and of orderings."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ops import OPSET

from ..selftests.simulated import narrow
from .mutant import faulty, summed, wrong

SINGLE = (float32, float16)

summed("sum mean cumsum", "bf16 sums", "adds every term to a sum in bfloat16", narrow(bfloat16, 1), SINGLE)
summed("sum mean", "f16 sums", "adds every term to a sum in float16", narrow(float16, 1), (float32,))


def _folded(x: Any, *, axis: int, keepdims: bool = False, op: str, fault: str) -> Any:
    size = x.shape[axis]
    if fault in ("last dropped", "first dropped") and size > 1:
        kept = np.s_[:-1] if fault == "last dropped" else np.s_[1:]
        x = np.moveaxis(np.moveaxis(x, axis, 0)[kept], 0, axis)
    if fault == "tail of 4 dropped" and size > 4:
        x = np.moveaxis(np.moveaxis(x, axis, 0)[: size - size % 4], 0, axis)
    made = OPSET[op].reference(x, axis=axis, keepdims=keepdims)
    if fault == "over n - 1" and size > 1:
        return made * (size / (size - 1))
    if fault == "garbage for nothing" and not size:
        return made + 1
    return made


_ENDS = {"last dropped": "leaves the last element out", "first dropped": "starts at the second element"}
_TAIL = {"tail of 4 dropped": "leaves out what does not fill a vector of four"}
for _op in ("sum", "mean", "amax", "prod"):
    for _fault, _text in {**_ENDS, **_TAIL}.items():
        wrong(_op, _fault, _text, lambda x, *, op=_op, fault=_fault, **how: _folded(x, op=op, fault=fault, **how))
wrong("mean", "over n - 1", "divides by one less", lambda x, **how: _folded(x, op="mean", fault="over n - 1", **how))
for _op in ("sum", "prod"):
    wrong(
        _op,
        "garbage for nothing",
        "does not write what it has no terms for",
        lambda x, *, op=_op, **how: _folded(x, op=op, fault="garbage for nothing", **how),
    )


def _amax(x: Any, *, axis: int, keepdims: bool = False, fault: str) -> Any:
    if fault == "nan lost":
        return np.fmax.reduce(x, axis=axis, keepdims=keepdims)
    if fault == "magnitude":
        return np.max(np.abs(x), axis=axis, keepdims=keepdims)
    return np.maximum(np.max(x, axis=axis, keepdims=keepdims), 0)


faulty(
    "amax",
    _amax,
    {
        "nan lost": "takes numbers for larger than NaN",
        "from zero": "starts at 0, which is above negative numbers",
        "magnitude": "compares magnitudes",
    },
)


def _running(x: Any, *, axis: int, op: str, fault: str) -> Any:
    reference = OPSET[op].reference
    if fault == "backwards":
        return np.flip(reference(np.flip(x, axis=axis), axis=axis), axis=axis)
    rows = np.moveaxis(x, axis, 0)
    start = np.zeros_like(rows[:1]) if op == "cumsum" else np.ones_like(rows[:1])
    if fault == "exclusive":
        return np.moveaxis(reference(np.concatenate([start, rows[:-1]], axis=0), axis=0), 0, axis)
    pieces = [reference(rows[i : i + 4], axis=0) for i in range(0, rows.shape[0], 4)]
    return np.moveaxis(np.concatenate(pieces, axis=0), 0, axis) if pieces else x


_RUNNING = {
    "exclusive": "leaves each element out of its own result",
    "backwards": "runs from the end",
    "restarted": "starts again every four elements",
}
for _op in ("cumsum", "cumprod"):
    for _fault, _text in _RUNNING.items():
        if (_op, _fault) != ("cumprod", "restarted"):
            wrong(
                _op, _fault, _text, lambda x, *, axis, op=_op, fault=_fault: _running(x, axis=axis, op=op, fault=fault)
            )


# ----------------------------------------------------------------------------------------------------------- orderings
def _argmax(x: Any, *, axis: int = -1, fault: str) -> Any:
    if fault == "last of ties":
        size = x.shape[axis]
        return (size - 1 - np.argmax(np.flip(x, axis=axis), axis=axis)).astype(np.int32)
    if fault == "nan ignored":
        x = np.where(np.isnan(x), np.float32(-np.inf), x) if np.asarray(x).dtype.kind == "f" else x
    if fault == "magnitude":
        x = np.abs(x)
    made = np.argmax(x, axis=axis)
    return (made + 1 if fault == "from one" else made).astype(np.int32)


_CHOICES = {
    "last of ties": "takes the last of equal elements",
    "nan ignored": "passes NaN over",
    "magnitude": "compares magnitudes",
}
faulty("argmax", _argmax, _CHOICES | {"from one": "counts from one"})


def _topk(x: Any, *, k: int, fault: str) -> Any:
    keys = {"magnitude": lambda: np.abs(x), "nan ignored": lambda: _without_nan(x)}.get(fault, lambda: x)()
    _, order = OPSET["topk"].reference(keys, k=x.shape[-1])
    if fault == "last of ties":
        ascending = np.argsort(keys, axis=-1, kind="stable")
        order = np.flip(ascending, axis=-1)
    if fault == "ascending":
        order = np.flip(order[..., :k], axis=-1)
    if fault == "first missing" and x.shape[-1] > k:
        order = order[..., 1:]
    order = order[..., :k]
    return np.take_along_axis(x, np.asarray(order), axis=-1), np.asarray(order).astype(np.int32)


def _without_nan(x: Any) -> Any:
    return np.where(np.isnan(x), np.float32(-np.inf), x) if np.asarray(x).dtype.kind == "f" else x


faulty("topk", _topk, _CHOICES | {"ascending": "sorts upwards", "first missing": "leaves the largest out"})
