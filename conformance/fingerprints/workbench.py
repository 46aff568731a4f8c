"""A workbench: single ops, and pairs of them, run on a device with operands made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError, XinhengError
from xinheng.core.hal import Bound, Device, Numerics, WeightPart, WeightSource
from xinheng.core.ir import Builder, DType, TensorType, Value, WeightType
from xinheng.core.ir.dtype import cast_to, dtype
from xinheng.core.schemes import scheme

Array = NDArray[np.float64]
Build = Callable[..., Value]
"""From the values of the operands to that of the result."""

TILE = 64
"""Rows and columns of the smallest product; smaller ones may bypass the matrix unit of a device."""


class Workbench:
    """Runs small graphs as any graph is run, and keeps what it has compiled.

    Numbers go in and come out in float64; going in they must be representable in the dtype they are meant to have.
    """

    def __init__(self, device: Device, numerics: Numerics | None = None) -> None:
        self.device, self.numerics = device, numerics
        self._bound: dict[tuple[object, ...], Bound] = {}

    def run(self, build: Build, kind: DType, *arrays: Any) -> Array:
        """The result of a graph of some tensors of one dtype; `build` is also what the graph is remembered by.

        Raises:
            XinhengError: the device cannot run it, or fails to.
        """
        operands = [np.asarray(x, np.float64) for x in arrays]
        key = (build, kind, *(x.shape for x in operands))
        try:
            with np.errstate(all="ignore"):
                given = {f"x{i}": cast_to(x, kind) for i, x in enumerate(operands)}
            if key not in self._bound:
                self._bound[key] = self._compiled(build, {name: TensorType(kind, x.shape) for name, x in given.items()})
            bound = self._bound[key]
            bound.run(given).wait()
            return self.device.download(bound.outputs["out0"]).astype(np.float64)
        except XinhengError:
            raise
        except Exception as error:
            raise DeviceError(f"{self.device.spec} failed in an experiment: {error}") from error

    def _compiled(self, build: Build, types: Mapping[str, TensorType]) -> Bound:
        b = Builder("experiment")
        made = build(*(b.input(name, kind) for name, kind in types.items()))
        graph = b.build(made)
        executable = compile(graph, self.device, numerics=self.numerics)
        ones = {p.name: _ones(p.name, p.type) for p in graph.parameters if isinstance(p.type, WeightType)}
        return executable.bind({name: executable.prepare(name, source) for name, source in ones.items()})

    def matmul(self, kind: DType, rows: Any, column: Any) -> Array:
        """Each of the rows [R, K] times one column [K], in a product of full tiles."""
        a, b = np.asarray(rows, np.float64), np.asarray(column, np.float64)
        padded = np.zeros((-(-a.shape[0] // TILE) * TILE, max(a.shape[1], TILE)))
        padded[: a.shape[0], : a.shape[1]] = a
        right = np.zeros((padded.shape[1], TILE))
        right[: a.shape[1]] = b[:, None]
        result: Array = self.run(ops.matmul, kind, padded, right)[: a.shape[0], 0]
        return result

    def sums(self, op: str, kind: DType, rows: Any) -> Array:
        """The sums of the rows [R, K] by one op of `ADDING`."""
        if op == "matmul":
            return self.matmul(kind, rows, np.ones(np.shape(rows)[1]))
        made = self.run(_sum if op == "sum" else _linear, kind, rows)
        result: Array = made if op == "sum" else made[:, 0]
        return result

    def cast(self, source: DType, target: DType, numbers: Any) -> Array:
        """The numbers in `source`, converted to `target`."""
        return self.run(_CASTS.setdefault(target.name, _Cast(target.name)), source, numbers)


class _Cast:
    """Builds the conversion to one dtype; there is one of each, so that graphs are remembered by it."""

    def __init__(self, target: str) -> None:
        self.target = dtype(target)

    def __call__(self, x: Value) -> Value:
        result: Value = ops.cast(x, dtype=self.target)
        return result


_CASTS: dict[str, _Cast] = {}


ADDING = ("matmul", "linear", "sum")
"""Ops that add: a product with a column of ones, one with a weight of ones, and the sum itself."""


def _sum(x: Value) -> Value:
    result: Value = ops.sum(x, axis=1)
    return result


def _linear(x: Value) -> Value:
    columns = x.shape[1]
    assert isinstance(columns, int)
    result: Value = ops.linear(x, x.builder.parameter("ones", WeightType((TILE, columns), x.dtype.name)))
    return result


def _ones(name: str, kind: WeightType) -> WeightSource:
    coding = scheme(kind.scheme)
    assert coding.pack is not None
    packed = coding.pack(np.ones(kind.shape))
    return WeightSource(name, kind.shape, (WeightPart(kind.scheme, kind.shape[0], lambda: packed),))


def fused(a: Value, b: Value, c: Value) -> Value:
    """a * b + c, which a device may round once or twice."""
    result: Value = ops.add(ops.mul(a, b), c)
    return result
