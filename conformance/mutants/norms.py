"""Mutants of norms and of softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ir.numeric import rsqrt, store

from ..selftests.simulated import narrow
from .mutant import faulty, summed

NORMS = "rms_norm add_rms_norm layer_norm softmax"
SINGLE = (float32, float16)

summed(NORMS, "bf16 sums", "keeps partial sums in bfloat16", narrow(bfloat16), SINGLE)
summed("softmax", "bf16 sums at once", "adds every term to a sum in bfloat16", narrow(bfloat16, 1), SINGLE)


def low(x: Any) -> Any:
    """A kernel's array kept in bfloat16."""
    return np.asarray(store(x, bfloat16), np.float32).view(type(x))


def _rms(x: Any, weight: Any, *, eps: float, fault: str = "") -> Any:
    n = x.shape[-1]
    if fault == "weight first":
        x = x * weight
    squares = low(x * x) if fault == "squares in bf16" else x * x
    total = np.sum(squares[..., 1:] if fault == "first of K" else squares, axis=-1, keepdims=True)
    terms = {"mean over K - 1": max(n - 1, 1), "sum for mean": 1}.get(fault, n)
    mean = total / terms
    eps = {"eps missing": 0.0, "eps * 10": 10 * eps}.get(fault, eps)
    root = 1 / (np.sqrt(mean) + eps) if fault == "eps outside" else rsqrt(mean + eps)
    gains = {"weight + 1": weight + 1, "weight first": np.float32(1), "weight ignored": np.float32(1)}
    return x * root * gains.get(fault, weight)


_ROOTS = {
    "eps outside": "adds eps to the root instead of under it",
    "eps missing": "adds no eps",
    "eps * 10": "takes 1e-5 for 1e-6",
    "mean over K - 1": "divides by one less than the number of terms",
    "first of K": "starts the sum at the second element",
    "sum for mean": "never divides by the number of terms",
    "squares in bf16": "keeps squares in bfloat16",
}
_WEIGHTS = {
    "weight + 1": "adds the one of an offset weight a second time",
    "weight first": "multiplies by the weight before the norm",
    "weight ignored": "never multiplies by the weight",
}
_SQUARES = {"squares in bf16": SINGLE}
faulty("rms_norm", _rms, _ROOTS | _WEIGHTS, only=_SQUARES)


def _added(x: Any, residual: Any, weight: Any, *, eps: float, fault: str) -> Any:
    total = x + residual
    if fault in _ROOTS:
        return _rms(total, weight, eps=eps, fault=fault), total
    if fault == "added after":
        return _rms(x, weight, eps=eps) + residual, total
    if fault == "results exchanged":
        return total, _rms(total, weight, eps=eps)
    normed = {"norm of x": x, "sum in bf16": low(total)}.get(fault, total)
    returned = {"residual stale": residual, "x for sum": x, "sum in bf16": low(total)}.get(fault, total)
    return _rms(normed, weight, eps=eps), returned


_SUMS = {
    "residual stale": "returns the residual as it came",
    "x for sum": "returns x for the sum",
    "norm of x": "norms x instead of the sum",
    "added after": "adds the residual after the norm",
    "results exchanged": "returns the sum first",
    "sum in bf16": "keeps the sum in bfloat16 on its way",
}
faulty("add_rms_norm", _added, _ROOTS | _SUMS, only={**_SQUARES, "sum in bf16": SINGLE})


def _layer(x: Any, weight: Any = None, bias: Any = None, *, eps: float, fault: str) -> Any:
    n = x.shape[-1]
    mean = np.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    variance = np.sum(centred * centred, axis=-1, keepdims=True) / (max(n - 1, 1) if fault == "ddof 1" else n)
    if fault == "one pass":
        variance = np.mean(x * x, axis=-1, keepdims=True) - mean * mean
    root = 1 / (np.sqrt(variance) + eps) if fault == "eps outside" else rsqrt(variance + eps)
    y = (x if fault == "not centred" else centred) * root
    if fault == "bias first" and bias is not None:
        return (y + bias) * (np.float32(1) if weight is None else weight)
    y = y if weight is None or fault == "weight ignored" else y * weight
    return y if bias is None or fault == "bias ignored" else y + bias


_LAYER = {
    "one pass": "takes the mean of squares less the square of the mean for the variance",
    "ddof 1": "divides the variance by n - 1",
    "eps outside": "adds eps to the root instead of under it",
    "not centred": "does not subtract the mean",
    "bias first": "adds the bias before it multiplies by the weight",
    "bias ignored": "never adds the bias",
    "weight ignored": "never multiplies by the weight",
}
faulty("layer_norm", _layer, _LAYER, only={"one pass": (float32,)})


def _softmax(x: Any, *, axis: int = -1, fault: str) -> Any:
    axis = -1 if fault == "last axis" else axis
    top = np.max(x, axis=axis, keepdims=True)
    if fault == "one maximum" and x.size:
        top = np.max(x)
    z = np.exp2(x - top) if fault == "exp2" else np.exp(x if fault == "no maximum" else x - top)
    z = low(z) if fault == "exp in bf16" else z
    terms = np.moveaxis(z, axis, -1)
    total = np.expand_dims(np.sum(terms[..., :-1] if fault == "total short" else terms, axis=-1), axis)
    total = total + 1e-3 if fault == "total + eps" else total
    if fault == "log":
        return x - top - np.log(total)
    return np.nan_to_num(z / total, nan=0.0) if fault == "nan hidden" else z / total


_SOFTMAX = {
    "no maximum": "does not subtract the maximum",
    "one maximum": "subtracts the maximum of the whole tensor",
    "total short": "leaves the last element out of the total",
    "total + eps": "adds 1e-3 to the total",
    "exp2": "takes powers of two for those of e",
    "exp in bf16": "keeps exponentials in bfloat16",
    "last axis": "goes along the last axis whatever it is told",
    "log": "returns the logarithm",
    "nan hidden": "returns 0 where all is masked",
}
faulty("softmax", _softmax, _SOFTMAX, only={"exp in bf16": SINGLE})
