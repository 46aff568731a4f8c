"""Unsigned integers of 16 bits and more on the CPU: torch moves them, numpy computes with them, and both wrap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.backends._torch.kernels.unsigned import OPS
from xinheng.backends.cpu import CPUBackend
from xinheng.core import Builder, Device, TensorType, compile, ops
from xinheng.core.hal import DeviceSpec
from xinheng.core.ir.dtype import DType, from_numpy, int32, uint16, uint32, uint64

KINDS = [uint16, uint32, uint64]


@pytest.fixture(scope="module")
def cpu() -> Device:
    return CPUBackend().open(DeviceSpec.parse("cpu:0"))


def ran(device: Device, op: Any, *arrays: Any, **attributes: Any) -> tuple[list[Any], str]:
    """The results of one op, and the kernel that made them."""
    b = Builder()
    operands = [b.input(f"x{i}", _type(x)) if isinstance(x, np.ndarray) else x for i, x in enumerate(arrays)]
    made = op(*operands, **attributes)
    graph = b.build(*(made if isinstance(made, tuple) else (made,)))
    executable = compile(graph, device)
    bound = executable.bind({})
    bound.run({f"x{i}": x for i, x in enumerate(arrays) if isinstance(x, np.ndarray)}).wait()
    return [device.download(x) for x in bound.outputs.values()], executable.receipt.lines[0].kernel


def _type(x: Any) -> TensorType:
    return TensorType(from_numpy(x.dtype), x.shape)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_kernel_computes_what_its_op_says(cpu: Device, op: Any) -> None:
    rng = np.random.default_rng(0)
    for kind in KINDS:
        a, b = (rng.integers(1, np.iinfo(kind.numpy).max, (3, 5), kind.numpy, endpoint=True) for _ in range(2))
        arrays = {"where": (a < b, a, b), "topk": (a,)}.get(op.name, (a, b))
        attributes = {"k": 2} if op.name == "topk" else {}
        made, kernel = ran(cpu, op, *arrays, **attributes)
        assert kernel == f"numpy_{op.name}"
        want = op.reference(*arrays, **attributes)
        for got, expected in zip(made, want if isinstance(want, tuple) else (want,), strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_sums_and_products_wrap(cpu: Device, kind: DType) -> None:
    largest = np.iinfo(kind.numpy).max
    a, b = (np.array(x, kind.numpy) for x in ([[largest], [3]], [2, largest - 1]))
    for op, function in ((ops.add, np.add), (ops.sub, np.subtract), (ops.mul, np.multiply)):
        (got,), kernel = ran(cpu, op, a, b)
        assert kernel == f"numpy_{op.name}" and got.dtype == kind.numpy
        np.testing.assert_array_equal(got, function(a, b))
    (got,), _ = ran(cpu, ops.add, a, 1)
    np.testing.assert_array_equal(got, [[0], [4]])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_largest_is_not_negative(cpu: Device, kind: DType) -> None:
    largest = np.iinfo(kind.numpy).max
    a, b = np.array([largest, 7, 0], kind.numpy), np.array([1, 7, largest], kind.numpy)
    assert ran(cpu, ops.lt, a, b)[0][0].tolist() == [False, False, True]
    assert ran(cpu, ops.eq, a, b)[0][0].tolist() == [False, True, False]
    assert ran(cpu, ops.maximum, a, b)[0][0].tolist() == [largest, 7, largest]
    assert ran(cpu, ops.trunc_div, a, np.array([2], kind.numpy))[0][0].tolist() == [largest // 2, 3, 0]
    assert ran(cpu, ops.where, a == b, a, b)[0][0].tolist() == [1, 7, largest]
    values, indices = ran(cpu, ops.topk, a, k=2)[0]
    assert (values.tolist(), indices.tolist()) == ([largest, 7], [0, 1])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_they_are_selected(cpu: Device, kind: DType) -> None:
    x = np.arange(12, dtype=kind.numpy).reshape(3, 4)
    (got,), kernel = ran(cpu, ops.index_select, x, np.array([2, 0], int32.numpy), axis=0)
    assert kernel == "torch_index_select" and got.dtype == kind.numpy
    np.testing.assert_array_equal(got, x[[2, 0]])


def test_torch_computes_with_all_others(cpu: Device) -> None:
    x = np.array([True, False])
    assert ran(cpu, ops.eq, x, x)[1] == "torch_eq"
    assert ran(cpu, ops.add, *(np.array([1, 2], np.uint8),) * 2)[1] == "torch_add"
