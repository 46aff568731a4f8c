"""Mutants of convolutions and pools: flips, borders, strides, groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ops import OPSET

from ..selftests.simulated import rebuilt
from .mutant import given, having, operand, saying, wrong

conv, transpose = OPSET["conv"].reference, OPSET["conv_transpose"].reference


def _flipped(call: Any) -> Any:
    weight = operand(call, "weight")
    return having(call, weight=np.flip(weight, axis=tuple(range(2, weight.ndim))))


given("conv", "flipped", "convolves in the mathematical sense, with the kernel flipped", _flipped)
given("conv_transpose", "not flipped", "correlates where it should convolve", _flipped)


def _pads_exchanged(call: Any) -> Any:
    pads = call.attributes["pads"]
    half = len(pads) // 2
    return saying(call, pads=(*pads[half:], *pads[:half]))


given(
    "conv conv_transpose max_pool average_pool",
    "pads exchanged",
    "takes the pads of the end for those of the begin",
    _pads_exchanged,
)


def _channels_rolled(call: Any) -> Any:
    """Each group sees the channels of the next one."""
    groups = call.attributes["groups"]
    x = operand(call, "x")
    return having(call, x=np.roll(x, -(x.shape[1] // groups), axis=1)) if groups > 1 else None


given("conv conv_transpose", "next group", "reads the channels of the next group", _channels_rolled)
given("conv conv_transpose", "bias ignored", "never adds the bias", lambda call: having(call, bias=None))


def _input_shifted(call: Any) -> Any:
    return having(call, x=np.roll(operand(call, "x"), 1, axis=-1))


given("conv conv_transpose max_pool average_pool", "shifted", "starts windows one element early", _input_shifted)


def _outer_pads(call: Any) -> Any:
    """The extra elements at the begin instead of the end."""
    extra = call.attributes["output_padding"]
    pads = call.attributes["pads"]
    n = len(extra)
    if not any(extra):
        return None
    moved = (
        *(p - e for p, e in zip(pads[:n], extra, strict=True)),
        *(p + e for p, e in zip(pads[n:], extra, strict=True)),
    )
    return saying(call, pads=moved)


given("conv_transpose", "output padding first", "puts the output padding at the begin", _outer_pads)
wrong(
    "max_pool",
    "zero pads",
    "takes pads for zeros",
    rebuilt(OPSET["max_pool"].reference, lowest=lambda dtype: 0),
)


def _larger(a: Any, b: Any) -> Any:
    return np.fmax(a, b)


def _nan_lost(x: Any, *, kernel: Any, strides: Any, pads: Any, dilations: Any) -> Any:
    parts = OPSET["max_pool"].reference.__globals__
    pieces = parts["windows"](parts["padded"](x, pads, parts["lowest"](x.dtype)), kernel, strides, dilations)
    return parts["folded"](_larger, pieces)


wrong("max_pool", "nan lost", "takes the larger number of a number and NaN", _nan_lost)
given(
    "average_pool",
    "pads counted",
    "counts pads as elements, or does not where it should",
    lambda call: saying(call, count_pads=not call.attributes.get("count_pads", False)),
)
