"""Choosing tokens as a program of its own, run on the device behind the model."""

from __future__ import annotations

from typing import Any

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.hal import Buffer, Device, Numerics
from xinheng.core.ir import Builder, Graph, TensorType, sym, verify
from xinheng.core.ir.dtype import float32, int32, uint32

from .batch import SamplingArrays


def greedy_program(vocabulary: int) -> Graph:
    """The largest logit of each row: logits float32 [rows, vocabulary] to ids int32 [rows]."""
    b = Builder("greedy")
    logits = b.input("logits", TensorType(float32, (sym("rows"), vocabulary)))
    return verify(b.build(ids=ops.argmax(logits)))


def sampling_program(vocabulary: int) -> Graph:
    """Temperature, top-k, top-p and min-p per row, with a uniform number from (seed, counter) of the row's sequence."""
    b = Builder("sample")
    rows = sym("rows")
    logits = b.input("logits", TensorType(float32, (rows, vocabulary)))
    seed, counter = b.input("seed", TensorType(uint32, (rows, 2))), b.input("counter", TensorType(uint32, (rows,)))
    temperature, top_k, top_p, min_p = (
        b.input(name, TensorType(kind, (rows,)))
        for name, kind in (("temperature", float32), ("top_k", int32), ("top_p", float32), ("min_p", float32))
    )
    uniform = ops.random_uniform(seed, counter)
    return verify(b.build(ids=ops.top_k_top_p_sample(logits, uniform, temperature, top_k, top_p, min_p)))


class Sampler:
    """Compiled sampling programs of one vocabulary on one device."""

    def __init__(self, device: Device, vocabulary: int, rows: int, fallback: Device | None, numerics: Numerics) -> None:
        options: dict[str, Any] = {"bounds": {"rows": rows}, "fallback": fallback, "numerics": numerics}
        self._greedy = compile(greedy_program(vocabulary), device, **options)
        self._sample = compile(sampling_program(vocabulary), device, **options)
        self._bound = {True: self._greedy.bind({}), False: self._sample.bind({})}

    def run(self, logits: Buffer, arrays: SamplingArrays, greedy: bool) -> Buffer:
        """One id per row of `logits`, int32 [rows] on the device; valid until the next call."""
        bound = self._bound[greedy]
        inputs: dict[str, Any] = {"logits": logits}
        if not greedy:
            inputs |= {
                name: getattr(arrays, name) for name in ("seed", "counter", "temperature", "top_k", "top_p", "min_p")
            }
        bound.run(inputs)
        return bound.outputs["ids"]
