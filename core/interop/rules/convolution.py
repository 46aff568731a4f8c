"""Import rules of convolutions."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...ir.dim import Dim, maximum
from ...ir.dtype import float64, int32
from ...ir.graph import Value
from ..call import Call, like, rule


def geometry(c: Call, x: Value, kernel: list[int]) -> dict[str, Any]:
    """strides, pads and dilations of a node over windows of known size."""
    n = len(kernel)
    strides, dilations = c.attr("strides") or [1] * n, c.attr("dilations") or [1] * n
    mode = c.choice("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    pads: list[Dim] = list(c.attr("pads") or [0] * (2 * n))
    if mode == "VALID":
        pads = [0] * (2 * n)
    elif mode != "NOTSET":
        for i in range(n):
            size, reach = x.shape[2 + i], dilations[i] * (kernel[i] - 1) + 1
            count = 0 - (0 - size) // strides[i]
            total = maximum((count - 1) * strides[i] + reach - size, 0)
            small = total // 2
            pads[i], pads[n + i] = (small, total - small) if mode == "SAME_UPPER" else (total - small, small)
    return {"strides": tuple(strides), "pads": tuple(pads), "dilations": tuple(dilations)}


def kernel_of(c: Call, weight: Value) -> list[int]:
    sizes = weight.shape[2:]
    if not all(isinstance(d, int) for d in sizes):
        raise c.refuse(f"the sizes of the kernel {weight.type} must be known")
    return [int(d) for d in sizes]  # type: ignore[arg-type]


@rule("Conv")
def _conv(c: Call) -> Any:
    x, weight = c.x(0), c.x(1)
    return ops.conv(x, weight, c.maybe(2), **geometry(c, x, kernel_of(c, weight)), groups=int(c.attr("group", 1)))


@rule("ConvTranspose")
def _conv_transpose(c: Call) -> Any:
    x, weight = c.x(0), c.x(1)
    kernel = kernel_of(c, weight)
    n = len(kernel)
    strides, dilations = c.attr("strides") or [1] * n, c.attr("dilations") or [1] * n
    extra = list(c.attr("output_padding") or [0] * n)
    pads = list(c.attr("pads") or [0] * (2 * n))
    mode = c.choice("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    wanted = c.attr("output_shape")
    if wanted is None and mode.startswith("SAME"):
        wanted = [x.shape[2 + i] * strides[i] for i in range(n)]
    if wanted is not None:
        for i, size in enumerate(wanted[-n:]):
            reach = dilations[i] * (kernel[i] - 1) + 1
            total = (x.shape[2 + i] - 1) * strides[i] + extra[i] + reach - size
            if not isinstance(total, int):
                raise c.refuse(f"the pads of axis {i} depend on symbolic sizes: {total}")
            small = total // 2
            pads[i], pads[n + i] = (total - small, small) if mode != "SAME_UPPER" else (small, total - small)
    return ops.conv_transpose(
        x,
        weight,
        c.maybe(2),
        strides=tuple(strides),
        pads=tuple(pads),
        dilations=tuple(dilations),
        output_padding=tuple(extra),
        groups=int(c.attr("group", 1)),
    )


def whole(c: Call, index: int, zero: int) -> Value:
    """Integer codes less their zero point as float64, in which sums of their products are exact."""
    x: Value = ops.cast(c.x(index), dtype=float64)
    if not c.has(zero):
        return x
    point = ops.cast(c.x(zero), dtype=float64)
    if point.shape == (1,):
        point = ops.reshape(point, shape=())
    elif point.tensor.rank == 1:
        point = ops.reshape(point, shape=(*point.shape, *(1,) * (x.tensor.rank - 1)))
    made: Value = ops.sub(x, point)
    return made


@rule("ConvInteger")
def _conv_integer(c: Call) -> Any:
    x, weight = whole(c, 0, 2), whole(c, 1, 3)
    y = ops.conv(x, weight, **geometry(c, x, kernel_of(c, weight)), groups=int(c.attr("group", 1)))
    return like(y, int32)
