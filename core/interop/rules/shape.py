"""Import rules of ops that ask for sizes, and of those that make tensors from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...ir.dim import Dim, Expr, maximum, product
from ...ir.dtype import DTYPES, bool_, float32, int64
from ..call import Call, like, rule
from ..item import element_type, of_array


@rule("Shape")
def _shape(c: Call) -> Any:
    return c.sizes(c.item(0).shape[slice(c.attr("start", 0), c.attr("end"))])


@rule("Size")
def _size(c: Call) -> Any:
    return of_array(np.array(product(c.item(0).shape), object), int64)


@rule("Constant")
def _constant(c: Call) -> Any:
    from onnx import numpy_helper

    if c.attr("value") is not None:
        tensor = c.attr("value")
        return of_array(numpy_helper.to_array(tensor), element_type(tensor.data_type))
    for name, dtype in (
        ("value_float", float32),
        ("value_floats", float32),
        ("value_int", int64),
        ("value_ints", int64),
    ):
        if c.attr(name) is not None:
            return of_array(np.array(c.attr(name)), dtype)
    raise c.refuse(
        f"attributes {', '.join(c.attributes)} are not supported; supported: value, value_float(s), value_int(s)"
    )


@rule("ConstantOfShape")
def _constant_of_shape(c: Call) -> Any:
    from onnx import numpy_helper

    tensor = c.attr("value")
    array = np.zeros(1, np.float32) if tensor is None else numpy_helper.to_array(tensor)
    dtype = float32 if tensor is None else element_type(tensor.data_type)
    number = array.reshape(-1)[0]
    value = bool(number) if dtype is bool_ else float(number) if dtype.is_float else int(number)
    return c.full(c.dims(0, "shape"), value, dtype)


@rule("EyeLike")
def _eye_like(c: Call) -> Any:
    x = c.item(0)
    dtype = element_type(c.attr("dtype")) if c.attr("dtype") is not None else x.dtype
    rows, columns = x.shape
    left = ops.reshape(ops.add(c.arange(rows), int(c.attr("k", 0))), shape=(rows, 1))
    return like(ops.eq(left, ops.reshape(c.arange(columns), shape=(1, columns))), dtype)


def _ceiling(a: Any, b: Any) -> Any:
    return 0 - (0 - a) // b


@rule("Range")
def _range(c: Call) -> Any:
    """The length follows from the three numbers, of which sizes may be symbolic."""
    dtype = c.item(0).dtype
    start, limit, delta = (c.known(i, what).reshape(-1)[0] for i, what in enumerate(("start", "limit", "delta")))
    size: Dim
    if dtype.is_float:
        low, high, step = (float(v) for v in (start, limit, delta))
        size = max(int(np.ceil((high - low) / step)), 0)
        wide = DTYPES["float64"] if dtype.name == "float64" else float32
        return like(ops.add(ops.mul(c.arange(size, wide), step), low), dtype)
    start, limit, delta = (d if isinstance(d, Expr) else int(d) for d in (start, limit, delta))
    if isinstance(delta, Expr):
        raise c.refuse("input 2 (delta) must not depend on symbolic sizes")
    size = maximum(_ceiling(limit - start, delta), 0)
    steps = c.arange(size, dtype)
    steps = steps if delta == 1 else ops.mul(steps, c.scalar(delta, dtype))
    return steps if start == 0 else ops.add(steps, c.scalar(start, dtype))


@rule("OneHot")
def _one_hot(c: Call) -> Any:
    indices, values = ops.cast(c.x(0), dtype=int64), c.x(2)
    depth = c.known(1, "depth").reshape(-1)[0]
    depth = depth if isinstance(depth, Expr) else int(depth)
    axis = c.axis(-1, indices.tensor.rank + 1)
    count = c.scalar(depth, int64)
    positive = ops.where(ops.lt(indices, 0), ops.add(indices, count), indices)
    shape = (*indices.shape[:axis], 1, *indices.shape[axis:])
    steps = ops.reshape(c.arange(depth), shape=(depth, *(1,) * (indices.tensor.rank - axis)))
    hit = ops.eq(ops.reshape(positive, shape=shape), steps)
    off, on = ops.split(values, sizes=(1, 1), axis=0)
    return ops.where(hit, ops.reshape(on, shape=()), ops.reshape(off, shape=()))
