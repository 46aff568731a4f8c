"""Convolutions and pools of PyTorch as calls of our ops; see `torch_calls`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..operands import T
from .torch_calls import Convert, Given, covered


def _each(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * axes if len(given) == 1 else given


def _batched(x: T, axes: int) -> None:
    covered(x.data.ndim == axes + 2, "has no batch axis")


def conv(
    x: T,
    weight: T,
    bias: T | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Given:
    n = weight.data.ndim - 2
    _batched(x, n)
    dilations = _each(dilation, n)
    ends = _each(0 if padding == "valid" else padding, n) if padding != "same" else None
    begins = ends
    if begins is None or ends is None:
        reach = [d * (k - 1) for d, k in zip(dilations, weight.data.shape[2:], strict=True)]
        begins, ends = tuple(r // 2 for r in reach), tuple(r - r // 2 for r in reach)
    pads = (*begins, *ends)
    attributes = {"strides": _each(stride, n), "pads": pads, "dilations": dilations, "groups": groups}
    return Given((x, weight, bias), attributes)


def conv_transpose(
    x: T,
    weight: T,
    bias: T | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Given:
    n = weight.data.ndim - 2
    _batched(x, n)
    attributes = {"strides": _each(stride, n), "pads": _each(padding, n) * 2, "dilations": _each(dilation, n)}
    return Given((x, weight, bias), {**attributes, "output_padding": _each(output_padding, n), "groups": groups})


def pool(axes: int, average: bool) -> Convert:
    def windows(x: T, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> dict[str, Any]:
        _batched(x, axes)
        kernel, pads, dilations = _each(kernel, axes), _each(padding, axes), _each(dilation, axes)
        strides = kernel if stride is None or stride == () else _each(stride, axes)
        left = [
            (size + 2 * p - d * (k - 1) - 1) % s
            for size, p, d, k, s in zip(x.data.shape[2:], pads, dilations, kernel, strides, strict=True)
        ]
        covered(not ceil_mode or not any(left), "the last window reaches beyond the border")
        return {"kernel": kernel, "strides": strides, "pads": pads * 2, "dilations": dilations}

    def largest(
        x: T,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Given:
        given = windows(x, kernel_size, stride, padding, dilation, ceil_mode)
        return Given((x,), given, (lambda out: out[0]) if return_indices else (lambda out: out))

    def mean(
        x: T,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Given:
        covered(divisor_override is None, "divides by another number")
        given = windows(x, kernel_size, stride, padding, 1, ceil_mode)
        return Given((x,), {**given, "count_pads": count_include_pad})

    return mean if average else largest
