"""Import rules of pools."""

from __future__ import annotations

import math
from itertools import product as places_in
from typing import Any

import numpy as np

from ... import ops
from ...ir.dim import Dim, product
from ...ir.dtype import float32
from ...ir.graph import Value
from ...ops.pooling import lowest
from ...ops.windows import graph_padded, graph_windows
from ..call import Call, like, rule, wide
from .convolution import geometry


def rounded_up(c: Call, x: Value, kernel: list[int], found: dict[str, Any]) -> dict[str, Any]:
    """The geometry with pads at the end for a last, incomplete window, which must start inside."""
    if not c.attr("ceil_mode", 0):
        return found
    n, pads = len(kernel), list(found["pads"])
    for i in range(n):
        size, stride = x.shape[2 + i], found["strides"][i]
        reach = found["dilations"][i] * (kernel[i] - 1) + 1
        span = size + pads[i] + pads[n + i] - reach
        if not isinstance(span, int) or not isinstance(size, int):
            raise c.refuse(f"ceil_mode needs sizes that are known; axis {i} is {size} long")
        count = -(-span // stride) + 1
        if (count - 1) * stride >= size + pads[i]:
            count -= 1
        pads[n + i] = max(pads[n + i], (count - 1) * stride + reach - size - pads[i])
    return {**found, "pads": tuple(pads)}


@rule("MaxPool")
def _max_pool(c: Call) -> Any:
    x = c.x(0)
    kernel = list(c.attr("kernel_shape"))
    found = rounded_up(c, x, kernel, geometry(c, x, kernel))
    y = ops.max_pool(x, kernel=tuple(kernel), **found)
    return (y, _places(c, x, kernel, found)) if c.wants(1) else y


def _places(c: Call, x: Value, kernel: list[int], found: dict[str, Any]) -> Value:
    """Where each maximum stands in the flat input: the first place of the window, in row-major order."""
    n, sizes = len(kernel), [int(d) for d in x.shape[2:]]  # type: ignore[arg-type]
    column_major = bool(c.attr("storage_order", 0))
    bottom = -np.inf if x.dtype.is_float else lowest(x.dtype.numpy)
    padded = graph_padded(x, found["pads"], bottom)
    parts = graph_windows(padded, kernel, found["strides"], found["dilations"])
    stacked = ops.concat(*(ops.reshape(p, shape=(1, *p.shape)) for p in parts), axis=0)
    best = ops.argmax(stacked, axis=0)
    counts = [int(d) for d in parts[0].shape[2:]]
    table = np.zeros((len(parts), *counts), np.int64)
    strides = [math.prod(sizes[:i]) if column_major else math.prod(sizes[i + 1 :]) for i in range(n)]
    for k, place in enumerate(places_in(*map(range, kernel))):
        for i in range(n):
            at = np.arange(counts[i]) * found["strides"][i] - found["pads"][i] + place[i] * found["dilations"][i]
            table[k] += (at * strides[i]).reshape(-1, *(1,) * (n - 1 - i))
    spread = ops.expand(
        ops.reshape(c.constant(table), shape=(len(parts), 1, 1, *counts)), shape=(len(parts), *x.shape[:2], *counts)
    )
    inner = ops.gather(spread, ops.reshape(best, shape=(1, *best.shape)), axis=0)
    inner = ops.reshape(inner, shape=best.shape)
    planes = ops.mul(c.arange(product(x.shape[:2])), math.prod(sizes))
    made: Value = ops.add(inner, ops.reshape(planes, shape=(*x.shape[:2], *(1,) * n)))
    return made


@rule("AveragePool")
def _average_pool(c: Call) -> Any:
    x = c.x(0)
    kernel = list(c.attr("kernel_shape"))
    plain = geometry(c, x, kernel)
    found = rounded_up(c, x, kernel, plain)
    count_pads = bool(c.attr("count_include_pad", 0))
    if not count_pads or found["pads"] == plain["pads"]:
        return ops.average_pool(x, kernel=tuple(kernel), **found, count_pads=count_pads)
    return _partly_counted(c, x, kernel, plain, found)


def _partly_counted(c: Call, x: Value, kernel: list[int], plain: dict[str, Any], found: dict[str, Any]) -> Value:
    """Pads that were given count, those that complete the last window do not."""
    n = len(kernel)
    total = ops.mul(ops.average_pool(wide(x), kernel=tuple(kernel), **found, count_pads=True), float(math.prod(kernel)))
    for i in range(n):
        size, count = x.shape[2 + i], total.shape[2 + i]
        assert isinstance(size, int) and isinstance(count, int)
        first = np.arange(count) * found["strides"][i] - found["pads"][i]
        at = first[:, None] + np.arange(kernel[i]) * found["dilations"][i]
        inside = np.sum(at < size + plain["pads"][n + i], axis=1).astype(np.float32)
        total = ops.div(total, like(c.constant(inside.reshape(-1, *(1,) * (n - 1 - i)), float32), total))
    return like(total, x)


@rule("LpPool")
def _lp_pool(c: Call) -> Any:
    given = c.x(0)
    kernel = list(c.attr("kernel_shape"))
    p = float(c.attr("p", 2))
    x = ops.abs(wide(given))
    found = rounded_up(c, given, kernel, geometry(c, given, kernel))
    powers = x if p == 1 else ops.square(x) if p == 2 else ops.pow(x, p)
    mean = ops.average_pool(powers, kernel=tuple(kernel), **found, count_pads=True)
    return like(_root(ops.mul(mean, float(math.prod(kernel))), p), given)


def _root(x: Value, p: float) -> Any:
    return x if p == 1 else ops.sqrt(x) if p == 2 else ops.pow(x, 1.0 / p)


def _over_space(x: Value) -> Value:
    made: Value = ops.reshape(x, shape=(*x.shape[:2], product(x.shape[2:])))
    return made


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global(c: Call) -> Any:
    given = c.x(0)
    rows, p = _over_space(wide(given)), float(c.attr("p", 2))
    if c.op == "GlobalAveragePool":
        y = ops.mean(rows, axis=2)
    elif c.op == "GlobalMaxPool":
        y = ops.amax(rows, axis=2)
    else:
        size = ops.abs(rows)
        y = _root(ops.sum(ops.pow(size, p) if p != 1 else size, axis=2), p)
    shape: tuple[Dim, ...] = (*given.shape[:2], *(1,) * (given.tensor.rank - 2))
    return ops.reshape(like(y, given), shape=shape)


@rule("MaxRoiPool")
def _max_roi_pool(c: Call) -> Any:
    raise c.refuse("regions differ in size from run to run, which is not supported")
