"""How fast a case runs, as a share of what the machine was measured to be able to, beside how exact it is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import XinhengError
from xinheng.core.hal import Device, Numerics
from xinheng.core.ir import Builder, StateType, TensorType, Value, WeightType
from xinheng.core.ir.dtype import float32
from xinheng.core.schemes import scheme

from .call import Call
from .trial import Trial

RUNS = 9
"""Timed runs of a case; the median counts. The first run before them does not."""
COPIED = 1 << 24
"""Elements of float32 that the limit of the memory is measured with, read once and written once."""
SQUARE = 1024
"""Rows and columns of the float32 product that the limit of the arithmetic is measured with."""


@dataclass
class Stopwatch:
    """Takes the times of one device, and measures what it can do at most when it is first asked.

    Limits are bytes and operations per second; None where the device cannot run what they are measured with.
    """

    device: Device
    numerics: Numerics
    _limits: dict[str, float | None] = field(default_factory=dict)

    def measures(self, trial: Trial) -> dict[str, float]:
        """Numbers for `Outcome.measures` of a call that was made ready."""
        seconds = self._median(trial)
        rates = {"gbps": traffic(trial.call) / seconds / 1e9, "gflops": operations(trial.call) / seconds / 1e9}
        made = {"microseconds": seconds * 1e6, **rates}
        for share, rate, limit in (
            ("bandwidth_share", "gbps", self.bandwidth),
            ("arithmetic_share", "gflops", self.arithmetic),
        ):
            if limit:
                made[share] = rates[rate] * 1e9 / limit
        return made

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second of a unary op on a tensor too large for caches."""
        return self._limit("bandwidth", 8 * COPIED, ops.neg, (COPIED,))

    @property
    def arithmetic(self) -> float | None:
        """Operations per second of a large float32 product."""
        return self._limit("arithmetic", 2 * SQUARE**3, ops.matmul, (SQUARE, SQUARE), (SQUARE, SQUARE))

    def _median(self, trial: Trial) -> float:
        inputs, host = trial.upload(), trial.arrays()
        trial.start(inputs).wait()
        times = []
        for _ in range(RUNS):
            self.device.synchronize()
            began = time.perf_counter()
            trial.bound.run(inputs, host=host).wait()
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def _limit(self, name: str, work: float, build: Callable[..., Value], *shapes: tuple[int, ...]) -> float | None:
        if name not in self._limits:
            try:
                self._limits[name] = work / self._best(build, shapes)
            except XinhengError:
                self._limits[name] = None
        return self._limits[name]

    def _best(self, build: Callable[..., Value], shapes: tuple[tuple[int, ...], ...]) -> float:
        b = Builder("limit")
        values = [b.input(f"x{i}", TensorType(float32, shape)) for i, shape in enumerate(shapes)]
        bound = compile(b.build(build(*values)), self.device, numerics=self.numerics).bind({})
        inputs = {f"x{i}": self.device.upload(np.ones(shape, np.float32), float32) for i, shape in enumerate(shapes)}
        times = []
        for _ in range(RUNS):
            began = time.perf_counter()
            bound.run(inputs).wait()
            times.append(time.perf_counter() - began)
        return min(times)


def traffic(call: Call) -> int:
    """Bytes of all operands and results, each counted once; of states, all that they hold."""
    parts = ((part, source.shape[-1]) for source in call.sources for part in source.parts)
    total = sum(part.rows * scheme(part.scheme).row_bytes(columns) for part, columns in parts)
    for kind, value in zip(call.types, call.values, strict=True):
        if isinstance(kind, StateType):
            total += sum(_size(pages) * part.dtype.bits // 8 for part, pages in zip(kind.parts, value, strict=True))
    tensors = (kind for kind in (*call.types, *call.result_types) if isinstance(kind, TensorType))
    return total + sum(_elements(kind) * kind.dtype.bits // 8 for kind in tensors)


def operations(call: Call) -> int:
    """Multiplications and additions of products and attention; of other ops, one per element read or made."""
    if call.op in _PRODUCTS:
        return _PRODUCTS[call.op](call)
    tensors = (kind for kind in (*call.types, *call.result_types) if isinstance(kind, TensorType))
    return max(map(_elements, tensors), default=0)


def _elements(kind: TensorType) -> int:
    """The elements of a tensor; none of one whose sizes only a run tells."""
    return prod(size if isinstance(size, int) else 0 for size in kind.shape)


def _size(x: Any) -> int:
    return prod(np.shape(x))


def _by_result(inner: Callable[[Call], int]) -> Callable[[Call], int]:
    def rule(call: Call) -> int:
        result = call.result_types[0]
        assert isinstance(result, TensorType)
        return 2 * _elements(result) * inner(call)

    return rule


def _columns(call: Call) -> int:
    """Terms of the product of a tensor and a weight."""
    kind = call.types[1]
    assert isinstance(kind, WeightType)
    return kind.shape[-2 if call.attributes.get("transposed") else -1]


def _attended(call: Call) -> int:
    """Queries times keys of each sequence, times heads, times the widths of keys and values, twice."""
    given = dict(zip([operand.name for operand in ops.OPSET[call.op].operands], call.values, strict=False))
    queries = np.diff(given["query_start"])
    keys = np.diff(given["key_start"]) if "key_start" in given else np.asarray(given["seq_lens"])
    _, heads, width = np.shape(given["q"] if "q" in given else given["q_latent"])
    if "q_rope" in given:
        width += np.shape(given["q_rope"])[-1]
    return 4 * int(np.sum(queries * keys)) * heads * width


_PRODUCTS: dict[str, Callable[[Call], int]] = {
    "batched_linear": _by_result(_columns),
    "conv": _by_result(lambda c: prod(np.shape(c.values[1])[1:])),
    "conv_transpose": lambda c: 2 * _size(c.values[0]) * prod(np.shape(c.values[1])[1:]),
    "fused_moe": lambda c: 6 * _size(c.values[2]) * prod(np.shape(c.values[3])[1:]),
    "grouped_linear": _by_result(_columns),
    "int_matmul": _by_result(lambda c: int(np.shape(c.values[0])[-1])),
    "linear": _by_result(_columns),
    "matmul": _by_result(lambda c: int(np.shape(c.values[0])[-1])),
    "matmul_all_reduce": _by_result(_columns),
    "mla_attention": _attended,
    "paged_attention": _attended,
    "quant_matmul": _by_result(lambda c: int(np.shape(c.values[0])[-1])),
    "sdpa_varlen": _attended,
}
