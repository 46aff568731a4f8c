"""A plugin written against the previous op set works unchanged: what it does not know only counts where it is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xinheng.core import Builder, Device, Op, PluginManager, TensorType, Tolerance, compile, ops
from xinheng.core.errors import UnsupportedOp
from xinheng.core.ir.dtype import float32
from xinheng.core.ir.op import Tensor

from .conftest import Install, on_path
from .models import by_op, greedy_ids

X = TensorType(float32, (3, 2, 4))
TABLE = TensorType(float32, (3, 2))


@pytest.fixture(scope="module")
def veteran(install: Install) -> Iterator[Device]:
    with on_path(install(Path(__file__).parent / "previous_plugin")):
        yield PluginManager().open("veteran:0")


def test_its_kernels_run_where_the_new_operands_are_absent(veteran: Device, tiny_llama: Path) -> None:
    want, _ = greedy_ids(tiny_llama, "cpu:0")
    got, receipt = greedy_ids(tiny_llama, "veteran:0", fallback="cpu")
    assert got == want
    ran = by_op(receipt)
    for op in ("linear", "rotary_embedding", "write_cache", "paged_attention"):
        assert ran[op] == (f"veteran_{op}", "veteran:0")


def test_they_step_aside_where_one_is_used(veteran: Device, biased_llama: Path) -> None:
    want, _ = greedy_ids(biased_llama, "cpu:0")
    got, receipt = greedy_ids(biased_llama, "veteran:0", fallback="cpu")
    assert got == want
    linear = {line.device: line for line in receipt.lines if line.op == "linear"}
    assert linear["veteran:0"].kernel == "veteran_linear"  # the head has no bias
    assert linear["cpu:0"].refused == (("veteran_linear", "does not know operand 'bias'"),)


def test_a_new_attribute_counts_only_where_it_is_not_at_its_default(veteran: Device) -> None:
    def rotated(interleaved: bool) -> Any:
        b = Builder()
        x, cos, sin = b.input("x", X), b.input("cos", TABLE), b.input("sin", TABLE)
        return b.build(ops.rotary_embedding(x, cos, sin, interleaved=interleaved))

    assert compile(rotated(False), veteran).receipt.lines[0].kernel == "veteran_rotary_embedding"
    with pytest.raises(UnsupportedOp):
        compile(rotated(True), veteran)


def test_an_op_may_grow_once_more(veteran: Device) -> None:
    """The next version of an op: one more operand and one more attribute, both optional."""

    def rotary_embedding(
        x: Tensor, cos: Tensor, sin: Tensor, offset: Tensor | None = None, *, interleaved: bool = False, base: int = 1
    ) -> Tensor:
        """A later version of the op."""
        return x

    later: Op[..., Any] = Op(rotary_embedding, Tolerance.ELEMENTWISE, 2)
    later.infer(lambda x, cos, sin, offset, *, interleaved, base: x)
    b = Builder()
    x, cos, sin = b.input("x", X), b.input("cos", TABLE), b.input("sin", TABLE)
    calls = (later(x, cos, sin), later(x, cos, sin, cos), later(x, cos, sin, base=2))
    graphs = [b.build(call) for call in calls]
    chosen = [veteran.select(node) for node in graphs[0].nodes]
    assert [kernel is not None for kernel, _ in chosen] == [True, False, False]
    assert [refusals[0].reason for _, refusals in chosen[1:]] == [
        "does not know operand 'offset'",
        "does not know attribute 'base'",
    ]
