"""Pieces, concatenations and transposes in programs: views where rows stay whole, copies elsewhere, the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xinheng.backends.cpu.device import CPUDevice
from xinheng.backends.cpu.executable import CPUExecutable
from xinheng.backends.cpu.program import Command, PythonStep
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.hal import DeviceOptions, Numerics
from xinheng.core.ir import Builder, DType, TensorType, Value, sym
from xinheng.core.ir.dtype import bfloat16, bool_, float32, int32
from xinheng.core.ir.evaluate import evaluate

TOKENS, BOUND = sym("tokens"), {"tokens": 6}


@pytest.fixture(scope="module")
def cpu() -> CPUDevice:
    opened = CPUDevice(DeviceOptions(numerics=Numerics("strict")))
    if opened.notes():
        pytest.skip("no C++ compiler on this machine: there are no native programs")
    return opened


def halves(x: Value, axis: int) -> list[Value]:
    size = x.shape[axis]
    assert isinstance(size, int)
    return list(ops.split(x, sizes=(size // 2, size - size // 2), axis=axis))


GRAPHS: dict[str, Callable[[Value], list[Value]]] = {
    "split of the last axis": lambda x: halves(x, 2),
    "split of an axis between": lambda x: halves(x, 1),
    "slice of the last axis": lambda x: [ops.slice(x, axis=2, start=3, stop=7)],
    "slice of an axis between": lambda x: [ops.slice(x, axis=1, start=1, stop=9)],
    "slice of a slice": lambda x: [ops.slice(ops.slice(x, axis=2, start=2, stop=8), axis=2, start=1, stop=4)],
    "first tokens": lambda x: [ops.slice(x, axis=0, start=0, stop=TOKENS)],
    "pieces in rows of their own": lambda x: [ops.reshape(y, shape=(TOKENS * 4, y.shape[2])) for y in halves(x, 2)],
    "pieces as one row": lambda x: [ops.reshape(y, shape=(TOKENS, 4 * y.shape[2])) for y in halves(x, 2)],
    "pieces of pieces": lambda x: [z for y in halves(x, 1) for z in halves(y, 2)],
    "transpose": lambda x: [ops.permute(x, axes=axes) for axes in ((1, 0, 2), (2, 1, 0), (0, 2, 1))],
    "transpose of a piece": lambda x: [ops.permute(halves(x, 2)[1], axes=(2, 0, 1))],
    "concatenation": lambda x: [ops.concat(x, x, axis=2), ops.concat(x, *halves(x, 1), axis=1)],
    "pieces put together": lambda x: [ops.concat(*halves(x, 2)[::-1], axis=2)],
    "tokens behind tokens": lambda x: [ops.concat(x, x, axis=0)],
}  # fmt: skip
FROM_PYTHON = {"tokens behind tokens": ["concat"]}
"""What sizes known only while it runs keep out of a program."""


@pytest.mark.parametrize("kind", [float32, bfloat16, int32, bool_], ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_values_are_those_of_the_reference(cpu: CPUDevice, name: str, kind: DType) -> None:
    b = Builder()
    x = b.input("x", TensorType(kind, (TOKENS, 4, 11)))
    made = GRAPHS[name](x)
    graph = b.build(**{f"y{i}": y for i, y in enumerate(made)}, w=ops.neg(x) if kind is float32 else made[0])
    exe = compile(graph, cpu, bounds=BOUND)
    assert isinstance(exe, CPUExecutable)
    if exe.program is not None:
        steps = [step.node.op.name for step in exe.program.steps if isinstance(step, PythonStep)]
        assert steps == FROM_PYTHON.get(name, [])
    else:
        assert "concat" not in name
        assert "transpose" not in name
    bound, rng = exe.bind({}), np.random.default_rng(1)
    for tokens in (5, 1, 6):
        array = rng.integers(0, 2 if kind is bool_ else 100, (tokens, 4, 11)).astype(kind.numpy)
        bound.run({"x": array}).wait()
        for key, wanted in evaluate(graph, {"x": array})[0].items():
            np.testing.assert_array_equal(cpu.download(bound.outputs[key]), wanted, err_msg=key)


def test_kernels_read_views_of_the_arena(cpu: CPUDevice) -> None:
    """Native and Python kernels behind each other, on pieces that are no tensors of their own."""
    b = Builder()
    x = b.input("x", TensorType(float32, (TOKENS, 24)))
    weight = b.parameter("w", TensorType(float32, (10,)))
    left, right = ops.split(ops.mul(x, 2.0), sizes=(14, 10), axis=1)
    summed = ops.cumsum(left, axis=1)  # no native kernel
    first, _ = ops.split(summed, sizes=(10, 4), axis=1)
    normed = ops.rms_norm(right, weight, eps=1e-5)
    graph = b.build(normed=normed, summed=summed, first=ops.rms_norm(first, weight, eps=1e-5), right=right)
    exe = compile(graph, cpu, bounds=BOUND)
    assert isinstance(exe, CPUExecutable)
    assert exe.program is not None
    kinds = [type(step) for step in exe.program.steps]
    assert kinds.count(PythonStep) == 1
    assert kinds.count(Command) == 3
    assert exe.receipt.notes == ("cumsum (torch_cumsum) x1 runs from Python: its kernel has no command",)
    array, scale = np.random.default_rng(2).normal(size=(5, 24)).astype(np.float32), np.ones(10, np.float32)
    bound = exe.bind({"w": exe.prepare("w", scale)})
    bound.run({"x": array}).wait()
    for key, wanted in evaluate(graph, {"x": array}, {"w": scale})[0].items():
        np.testing.assert_allclose(cpu.download(bound.outputs[key]), wanted, rtol=1e-5, atol=1e-5, err_msg=key)


def test_a_graph_without_bounds_says_why_it_is_no_program(cpu: CPUDevice) -> None:
    b = Builder()
    x: Any = b.input("x", TensorType(float32, (sym("any"), 4)))
    exe = compile(b.build(y=ops.neg(x)), cpu)
    assert isinstance(exe, CPUExecutable)
    assert exe.program is None
    assert exe.receipt.notes == ("kernels run one by one: size any has no bound",)
