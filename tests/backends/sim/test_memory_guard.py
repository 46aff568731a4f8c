"""Guarded memory of simulated devices starts as a canary, and tells of writes beside a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.hal import canary
from xinheng.core.ir import Builder, TensorType
from xinheng.core.ir.dtype import DTYPES, bool_, float32, int32

from .attention_graph import answer, bound, open_device, step


@pytest.mark.parametrize("kind", [kind for kind in DTYPES.values() if kind.is_float and kind.bits >= 8], ids=str)
def test_the_canary_of_floats_is_not_a_number(kind: Any) -> None:
    value = np.frombuffer(canary(kind), kind.numpy)
    assert value.size == 1
    assert np.isnan(value.astype(np.float64)).all()


def test_the_canary_of_integers_is_improbable() -> None:
    assert np.frombuffer(canary(int32), np.int32)[0] == np.int32(-1515870811)
    assert len(canary(bool_)) == 1


@pytest.mark.parametrize("word", ["heads-first-cache", "async", "graph-capture", "host-lengths"])
def test_what_is_right_is_left_alone(word: str) -> None:
    device, inputs = open_device(word), step(5, 3)
    want = answer(bound(device), device, inputs)
    with device.guard_memory() as guard:  # type: ignore[union-attr]
        got = answer(bound(device), device, inputs)
    assert guard.violations() == []
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("side", ["before", "behind"])
def test_a_write_beside_a_tensor_is_told(side: str) -> None:
    device = open_device("heads-first-cache")
    with device.guard_memory() as guard:  # type: ignore[union-attr]
        array = device.mine(device.upload(np.ones((2, 3), np.float32), float32)).array  # type: ignore[attr-defined]
        assert guard.violations() == []
        beyond, step = (6, 4) if side == "behind" else (1, -4)
        np.lib.stride_tricks.as_strided(array, (beyond + 1,), (step,))[beyond] = 1
    assert guard.violations() == [f"memory {side} a tensor float32 [2, 3] was written to"]


def test_what_is_never_written_shows() -> None:
    device = open_device("unwritten-tail")
    b = Builder("add")
    x = b.input("x", TensorType(float32, (2, 3)))
    exe = compile(b.build(y=ops.add(x, x)), device).bind({})
    with device.guard_memory():  # type: ignore[union-attr]
        exe.run({"x": np.ones((2, 3), np.float32)}).wait()
        made = device.download(exe.outputs["y"])
    np.testing.assert_array_equal(made, np.array([[2, 2, 2], [2, np.nan, np.nan]]))
