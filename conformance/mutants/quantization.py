"""Mutants of codes and scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir import DType
from xinheng.core.ir.dtype import float16, int8, round_to
from xinheng.core.ir.numeric import sigmoid, store
from xinheng.core.ops import OPSET

from ..call import Call
from .mutant import faulty, given, having, operand, wrong
from .norms import low


def _range(dtype: DType, fault: str = "") -> tuple[float, float]:
    if dtype.is_float:
        return -dtype.largest, dtype.largest
    if dtype.kind == "uint":
        return 0, 2**dtype.bits - 1
    half = 2 ** (dtype.bits - 1)
    return {"-128 written": (-half, half - 1), "clipped at 126": (2 - half, half - 2)}.get(fault, (1 - half, half - 1))


def _codes(x: Any, zero: Any, dtype: DType, fault: str) -> Any:
    """Codes of numbers that are divided by their scale."""
    least, most = _range(dtype, fault)
    if dtype.is_float:
        return store(np.minimum(np.maximum(x, least), most), dtype)
    offset = 0 if zero is None or fault == "zero point ignored" else zero
    offset = offset + {"zero + 1": 1, "zero - 1": -1}.get(fault, 0) if zero is not None else offset
    if fault == "truncated":
        whole = np.trunc(x) + offset
    elif fault == "negated zero point":
        whole = np.rint(x) - offset
    else:
        whole = np.rint(x) + offset
    if fault == "wraps":
        return np.asarray(whole).astype(np.int64).astype(dtype.numpy)
    whole = np.asarray(np.minimum(np.maximum(whole, int(least)), int(most)))
    return np.where(np.isfinite(whole), whole, 0).astype(np.int64)


def _along(scale: Any, x: Any, axis: int | None) -> Any:
    if axis is None:
        return np.reshape(scale, ())
    shape = [1] * x.ndim
    shape[axis] = -1
    return np.reshape(scale, tuple(shape))


def _quantize(x: Any, scale: Any, zero_point: Any = None, *, dtype: DType, axis: int | None = None, fault: str) -> Any:
    step = _along(scale, x, axis)
    step = np.roll(step, 1, axis=axis) if fault == "scales shifted" and axis is not None else step
    step = step * step if fault == "scale twice" else step
    scaled = x * step if fault == "multiplied" else x / (low(step) if fault == "scale in bf16" else step)
    return _codes(scaled, None if zero_point is None else _along(zero_point, x, axis), dtype, fault)


faulty(
    "quantize",
    _quantize,
    {
        "multiplied": "multiplies by the scale",
        "scale twice": "applies the scale twice",
        "scale in bf16": "keeps the scale in bfloat16",
        "scales shifted": "takes the scale of the element before along the axis",
        "truncated": "cuts the fraction off",
        "zero + 1": "is one off in the zero point",
        "zero - 1": "is one off in the zero point, the other way",
        "zero point ignored": "never adds the zero point",
        "negated zero point": "subtracts the zero point",
        "wraps": "wraps codes out of range",
        "-128 written": "writes the code below the symmetric range",
        "clipped at 126": "gives up a code at each end",
    },
)


def _dynamic(x: Any, *, dtype: DType = int8, fault: str) -> Any:
    _, high = _range(dtype)
    size = x if fault == "without magnitude" else np.abs(x)
    top = np.max(size, axis=-1, keepdims=True)
    if fault == "scale per tensor" and x.size:
        top = np.broadcast_to(np.max(top), top.shape)
    if fault == "last of K" and x.shape[-1] > 1:
        top = np.max(size[..., :-1], axis=-1, keepdims=True)
    scale = top / float(high + 1 if fault == "over 128" else high)
    scale = scale if fault == "zero row" else np.where(top > 0, scale, np.float32(1))
    scale = np.asarray(round_to(scale, float16), np.float32) if fault == "scale in f16" else scale
    returned = 1 / scale if fault == "reciprocal returned" else scale
    return _codes(x / scale, None, dtype, fault), returned


_DYNAMIC = {
    "over 128": "divides the largest magnitude by 128",
    "scale per tensor": "takes one scale for all rows",
    "without magnitude": "takes the largest number for the largest magnitude",
    "last of K": "leaves the last element out of the largest",
    "zero row": "divides a row of zeros by zero",
    "scale in f16": "keeps the scale in float16",
    "truncated": "cuts the fraction off",
    "reciprocal returned": "returns what it multiplied by",
    "clipped at 126": "gives up a code at each end",
}
faulty("dynamic_quant", _dynamic, _DYNAMIC)


def _norm_quant(x: Any, residual: Any, weight: Any, *, eps: float, dtype: DType = int8, fault: str) -> Any:
    total = x + residual
    normed = OPSET["rms_norm"].reference(low(total) if fault == "sum in bf16" else total, weight, eps=eps)
    return (*_dynamic(normed, dtype=dtype, fault=fault), residual if fault == "residual stale" else total)


_SOME = {name: _DYNAMIC[name] for name in ("over 128", "scale per tensor", "last of K", "truncated")}
faulty("add_rms_norm_quant", _norm_quant, _SOME | {"residual stale": "returns the residual as it came"})


def _silu_quant(gate: Any, up: Any, *, dtype: DType = int8, fault: str) -> Any:
    if fault == "exchanged":
        gate, up = up, gate
    return _dynamic(gate * sigmoid(gate) * up, dtype=dtype, fault=fault)


faulty("silu_and_mul_quant", _silu_quant, _SOME | {"exchanged": "takes the gate for the value"})


# ---------------------------------------------------------------------------------------------------- codes to numbers
def _dequantize(
    codes: Any, scale: Any, zero_point: Any = None, *, dtype: DType, axis: int | None = None, fault: str
) -> Any:
    step = _along(scale, codes, axis)
    if fault == "scales shifted" and axis is not None:
        step = np.roll(step, 1, axis=axis)
    whole = np.asarray(codes)
    if fault == "sign lost" and whole.dtype.kind == "i":
        whole = whole.view(np.dtype(f"u{whole.dtype.itemsize}"))
    if fault == "signed" and whole.dtype.kind == "u":
        whole = whole.view(np.dtype(f"i{whole.dtype.itemsize}"))
    if zero_point is not None and fault != "zero point ignored":
        zero = _along(zero_point, codes, axis)
        if fault == "wraps":
            whole = whole - np.asarray(zero).astype(whole.dtype)
        else:
            whole = whole.astype(np.int32) - zero + {"zero + 1": -1, "zero - 1": 1}.get(fault, 0)
    whole = whole if whole.dtype.kind != "f" else codes
    made = whole / step if fault == "divided" else whole * step
    return made * step if fault == "scale twice" else made


faulty(
    "dequantize_linear",
    _dequantize,
    {
        "divided": "divides by the scale",
        "scale twice": "applies the scale twice",
        "scales shifted": "takes the scale of the element before along the axis",
        "zero + 1": "is one off in the zero point",
        "zero - 1": "is one off in the zero point, the other way",
        "zero point ignored": "never subtracts the zero point",
        "wraps": "subtracts the zero point in eight bits",
        "sign lost": "reads signed codes as unsigned ones",
        "signed": "reads unsigned codes as signed ones",
    },
)


# --------------------------------------------------------------------------------------------------- products of codes
def _int_matmul(a: Any, b: Any, *, fault: str) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    if fault == "unsigned as signed":
        a, b = a.view(np.int8), b.view(np.int8)
    if fault == "16-bit sums":
        products = a.astype(np.int64)[..., :, :, None] * b.astype(np.int64)[..., None, :, :]
        return np.clip(np.sum(products, axis=-2), -(2**15), 2**15 - 1).astype(np.int32)
    if fault == "float32 sums":
        return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.float64).astype(np.int32)
    if fault == "-128 as -127" and a.dtype == np.int8:
        a = np.maximum(a, -127)
    if fault == "last of K":
        a, b = a[..., :-1], b[..., :-1, :]
    if fault == "tail of K" and a.shape[-1] > 32:
        kept = a.shape[-1] - a.shape[-1] % 32
        a, b = a[..., :kept], b[..., :kept, :]
    if fault == "pairs saturate":
        return _saturating_pairs(a.astype(np.int64), b.astype(np.int64))
    return np.matmul(a.astype(np.int32), b.astype(np.int32))


def _saturating_pairs(a: Any, b: Any) -> Any:
    """Pairs of products added in 16 bits that saturate, as one instruction of old processors does."""
    products = a[..., :, :, None] * b[..., None, :, :]
    odd = products.shape[-2] % 2
    pad = np.zeros((*products.shape[:-2], odd, products.shape[-1]), np.int64)
    whole = np.concatenate([products, pad], axis=-2)
    pairs = np.clip(whole[..., ::2, :] + whole[..., 1::2, :], -(2**15), 2**15 - 1)
    return np.sum(pairs, axis=-2).astype(np.int32)


faulty(
    "int_matmul",
    _int_matmul,
    {
        "unsigned as signed": "reads unsigned codes as signed ones",
        "16-bit sums": "adds up in 16 bits",
        "float32 sums": "adds up in float32",
        "-128 as -127": "takes the lowest code for the one above",
        "pairs saturate": "adds pairs of products in 16 bits",
        "last of K": "leaves the last term out",
        "tail of K": "leaves out what follows the last whole block of 32 terms",
    },
)


def _changed(**changes: Any) -> Any:
    """A product of codes with something else for some operands."""

    def changed(call: Call) -> Call | None:
        others = {name: change(operand(call, name)) for name, change in changes.items()}
        return having(call, **others)

    return changed


given(
    "quant_matmul",
    "weight scales shifted",
    "takes the scale of the column before",
    _changed(weight_scale=lambda s: np.roll(s, 1)),
)
given(
    "quant_matmul",
    "row scale of the first",
    "takes the scale of the first row for all",
    _changed(x_scale=lambda s: np.broadcast_to(s[:1], s.shape)),
)
given("quant_matmul", "bias ignored", "never adds the bias", _changed(bias=lambda b: None))
given("quant_matmul", "row scale twice", "applies the scale of rows twice", _changed(x_scale=lambda s: s * s))
given(
    "quant_matmul",
    "scales in f16",
    "keeps the product of scales in float16",
    _changed(x_scale=lambda s: round_to(s, float16)),
)


def _bias_first(x: Any, weight: Any, x_scale: Any, weight_scale: Any, bias: Any = None, *, dtype: DType) -> Any:
    """The bias added before the scales, as for integer biases."""
    made = OPSET["quant_matmul"].reference(x, weight, x_scale, weight_scale, dtype=dtype)
    return made if bias is None else made + bias * x_scale * weight_scale


wrong("quant_matmul", "bias scaled", "scales the bias too", _bias_first)
