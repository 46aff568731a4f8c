"""Receipts group what runs alike and say what was moved, decomposed or laid out anew."""

from __future__ import annotations

import json

import numpy as np

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.hal import ReferenceDevice, WeightPart, WeightSource
from xinheng.core.ir import Builder, TensorType, WeightType, sym
from xinheng.core.ir.dtype import float32
from xinheng.core.receipt import Decomposed, Layout, Line, Receipt
from xinheng.core.schemes import scheme

from .toy import Toy


def test_lines_group_by_op_kernel_device_and_refusals() -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (sym("n"), 4)))
    graph = b.build(ops.exp(ops.neg(ops.exp(ops.neg(x)))))
    receipt = compile(graph, Toy("neg"), fallback=ReferenceDevice("sim:exact")).receipt
    assert receipt.lines == (
        Line("neg", "toy_neg", "toy:0", 2, False, ()),
        Line("exp", "reference", "sim:exact", 2, True, ()),
    )
    assert (receipt.device, receipt.nodes, receipt.moved) == ("toy:0", 4, 2)
    assert receipt.by_device() == {"toy:0": 2, "sim:exact": 2}
    assert receipt.summary() == "2 ops on toy:0, 2 ops on sim:exact (moved)"


def test_an_empty_graph() -> None:
    receipt = compile(Builder().build(), Toy()).receipt
    assert (receipt.nodes, receipt.moved, receipt.lines) == (0, 0, ())
    assert receipt.summary() == "no ops"


def test_plain_data() -> None:
    line = Line("exp", "k", "toy:0", 2, False, (("fast", "not today"),))
    receipt = Receipt("toy:0", (line,), (Decomposed("silu", 1, (("k", "no"),)),), notes=("a note",))
    data = json.loads(json.dumps(receipt.to_json()))
    assert data["lines"][0]["refused"] == [["fast", "not today"]]
    assert data["decomposed"] == [{"op": "silu", "count": 1, "refused": [["k", "no"]]}]
    assert data["notes"] == ["a note"]


def test_weights_add_up_by_scheme_and_layout() -> None:
    receipt = Receipt("toy:0", ()).with_weight("q8_0", "as stored", 10, 10).with_weight("q4_k", "expanded", 40, 5)
    again = receipt.with_weight("q8_0", "as stored", 20, 21)
    assert set(again.layouts) == {Layout("q8_0", "as stored", 2, 30, 31), Layout("q4_k", "expanded", 1, 40, 5)}
    assert len(receipt.layouts) == 2


def test_preparing_a_weight_notes_its_layout() -> None:
    b = Builder()
    w = b.parameter("w", WeightType((2, 32), "q8_0"))
    exe = compile(b.build(ops.linear(b.input("x", TensorType(float32, (1, 32))), w)), ReferenceDevice())
    pack = scheme("q8_0").pack
    assert pack is not None
    packed = pack(np.ones((2, 32)))
    exe.prepare("w", WeightSource("w", (2, 32), (WeightPart("q8_0", 2, lambda: packed),)))
    assert exe.receipt.layouts == (Layout("q8_0", "expanded to float32", 1, 256, 68),)
