"""Graphs survive their text form, and malformed text names its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import (
    DTYPES,
    Builder,
    Graph,
    TensorType,
    WeightType,
    evaluate,
    paged_kv,
    parse_graph,
    print_graph,
    sequence_state,
    sym,
    verify,
)
from xinheng.core.ir.dim import maximum, minimum
from xinheng.core.ir.dtype import bfloat16, bool_, float16, float32, int32
from xinheng.core.ir.text import split_top
from xinheng.core.ops import OPSET

from ..random_graphs import feeds, graphs, weights

GOLDEN = Path(__file__).parents[2] / "golden" / "ir" / "sample.txt"


def sample() -> Graph:
    """A graph with every feature of the text form."""
    b = Builder("sample")
    n, m = sym("tokens", 64), sym("rows")
    ids = b.input("ids", TensorType(int32, (n,)))
    other = b.input("other", TensorType(float16, (m, 32)))
    table = b.parameter("model.embed:0", WeightType((10, 32), "q8_0:4+float16:6"))
    scale = b.parameter("scale", TensorType(float16, (32,)))
    cache = b.state("cache", paged_kv(2, 16, 16, "bfloat16"))
    b.state("conv", sequence_state((4,), float32))
    x = ops.rms_norm(ops.embedding(ids, table, dtype=float16), scale, eps=1e-6)
    y = ops.add(ops.mul(x, 0.1), ops.mul(other, float("-inf")))
    heads = ops.reshape(y, shape=(n, 2, 16))
    written = ops.write_cache(cache, heads, heads, ids)
    start, lens = (
        b.input("start", TensorType(int32, (sym("seqs") + 1,))),
        b.input("lens", TensorType(int32, (sym("seqs"),))),
    )
    blocks = b.input("blocks", TensorType(int32, (sym("seqs"), (n + 15) // 16)))
    out, _ = ops.paged_attention(heads, written, start, lens, blocks, scale=0.25, window=8)
    top, order = ops.topk(ops.reshape(out, shape=(n, 32)), k=minimum(5, maximum(n, 1)))
    mask = b.constant(np.array([[True, False], [False, True]]))
    b.constant(np.arange(32).reshape(4, 8) / 7, bfloat16)
    b.constant(np.array([np.inf, 1.0], np.float32))
    b.constant(np.zeros((0, 3), np.float32))
    picked = ops.where(mask, b.constant(np.array([[1, 2], [3, 4]], np.int32)), 7)
    return verify(b.build(order, best=ops.slice(top, axis=1, start=0, stop=n % 3 + 1), picked=picked))


def test_golden() -> None:
    assert str(sample()) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_golden_parses_to_the_same() -> None:
    graph = verify(parse_graph(GOLDEN.read_text(encoding="utf-8"), OPSET))
    assert str(graph) == str(sample())
    assert [c.reason for c in graph.checks] == [c.reason for c in sample().checks]
    for a, b in zip(graph.constants, sample().constants, strict=True):
        assert a.type == b.type
        assert type(a.data) is type(b.data)
        np.testing.assert_array_equal(np.asarray(a.data), np.asarray(b.data))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_random_graphs_survive(graph: Graph) -> None:
    text = print_graph(graph)
    again = verify(parse_graph(text, OPSET))
    assert print_graph(again) == text
    inputs = feeds(graph, 5)
    want, _ = evaluate(graph, inputs, weights(graph))
    got, _ = evaluate(again, inputs, weights(again))
    assert list(got) == list(want)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)


@pytest.mark.parametrize("kind", DTYPES.values(), ids=str)
@pytest.mark.parametrize("size", [0, 1, 3, 40])
def test_constants_of_every_dtype_survive(kind: Any, size: int) -> None:
    b = Builder()
    given = np.resize([1, 0, 1, 1, 0], (1, size)) if kind.name != "float8_e8m0fnu" else np.ones((1, size))
    value = b.constant(given, kind)
    scalar = b.constant(1, kind)
    again = parse_graph(str(b.build(value, scalar)), OPSET)
    array, number = again.constants
    assert isinstance(array.data, np.ndarray)
    assert (array.type, array.data.dtype) == (value.type, kind.numpy)
    np.testing.assert_array_equal(array.data, np.asarray(value.data))
    assert (number.type, repr(number.data)) == (scalar.type, repr(scalar.data))


@pytest.mark.parametrize("number", [0.1, -0.0, float("inf"), float("nan"), 1e-320, 123456789.123456789])
def test_numbers_survive_exactly(number: float) -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (2,)))
    filled = b.call(ops.full, (), {"shape": (2,), "value": number, "dtype": float32})
    arrays = b.constant(np.array([number, 1.0]), DTYPES["float64"])
    graph = parse_graph(str(b.build(ops.add(x, number), filled, arrays)), OPSET)
    assert repr(graph.constants[1].data) == repr(float(number))
    assert repr(graph.nodes[0].attributes["value"]) == repr(number)
    np.testing.assert_array_equal(np.asarray(graph.constants[0].data), np.array([number, 1.0]))


def test_a_graph_without_outputs() -> None:
    b = Builder("nothing")
    b.state("cache", paged_kv(1, 2, 2, "float32"))
    b.input("flag", TensorType(bool_, ()))
    assert str(parse_graph(str(b.build()), OPSET)) == str(b.build())


def test_unbacked_and_bounded_symbols() -> None:
    b = Builder("sizes")
    b.input("x", TensorType(float32, (sym("n", 8), sym("u", unbacked=True), sym("v", 3, unbacked=True))))
    text = str(b.build())
    assert text.startswith("graph sizes(n<=8, u?, v?<=3) {")
    found = parse_graph(text, OPSET).symbols()
    assert {(s.name, s.maximum, s.unbacked) for s in found.values()} == {
        ("n", 8, False),
        ("u", None, True),
        ("v", 3, True),
    }


def test_text_of_an_older_op_set_may_lack_new_optional_parts() -> None:
    graph = parse_graph(
        """
        graph old(n) {
          input %x : float32[n, 4]
          parameter %w : weight<float32>[2, 4]
          %0 = linear(%x, %w) : float32[n, 2]
          %1 = softmax(%0) : float32[n, 2]
          return y=%1
        }
        """,
        OPSET,
    )
    assert graph.nodes[0].operands[2] is None
    assert graph.nodes[1].attributes == {"axis": -1}


GOOD = """graph g(n<=4, m) {
  input %x : float32[n, 4]
  input %y : float32[m, 4]
  constant %c0 : float32[] = 2.0

  %0 = mul(%x, %c0) : float32[n, 4]
  %1 = softmax(%0) {axis=-1} : float32[n, 4]
  %2 = add(%1, %y) : float32[n, 4]
  check n == m : 'shapes [n, 4], [m, 4] do not broadcast'
  return out0=%2
}"""


def test_the_good_text_is_good() -> None:
    assert len(verify(parse_graph(GOOD, OPSET)).nodes) == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("graph g(n<=4, m) {", "graph g n {", "line 1: this is not a line of a graph"),
        ("graph g(n<=4, m) {", "graph g(n<4, m) {", "line 1: size declaration 'n<4' is not 'name'"),
        ("graph g(n<=4, m) {", "graph g(n<=4) {", "line 3: unknown size 'm'; declared: n"),
        ("input %x : float32[n, 4]", "input x : float32[n, 4]", "line 2: this is not a line of a graph"),
        (
            "input %x : float32[n, 4]",
            "input %x : flot32[n, 4]",
            "line 2: unknown dtype 'flot32', did you mean 'float32'",
        ),
        ("input %x : float32[n, 4]", "input %x : float32[n, 4", "line 2: this is not a line of a graph"),
        ("input %x : float32[n, 4]", "input %x : float32[n/2, 4]", "line 2: size expression 'n / 2' uses something"),
        ("input %y", "input %x", "line 3: graph 'g' has two values called 'x'"),
        ("= 2.0", "= two", "line 4: could not convert string to float"),
        ("= 2.0", "= dense [1, 2]", "line 4: cannot reshape array"),
        ("= 2.0", "= dense [1", "line 4: "),
        ("= 2.0", "= base64 AAA", "line 4: Incorrect padding"),
        ("constant %c0 : float32[]", "constant %c0 : float32[n]", "line 4: "),
        ("constant %c0 : float32[]", "constant %c0 : weight<float32>[2, 2]", "line 4: constant %c0 must be a tensor"),
        (
            "mul(%x",
            "mull(%x",
            "line 6: op set xinheng 1 has no op 'mull'|line 6: unknown op 'mull', did you mean 'mul'",
        ),
        ("mul(%x", "mul(%z", "line 6: %z is used before it is defined"),
        ("mul(%x, %c0)", "mul(%x)", "line 6: mul: takes 2 operands, got 1"),
        ("mul(%x, %c0)", "mul(%x, none)", "line 6: mul: operand 'b' is required"),
        ("{axis=-1}", "{axes=-1}", "line 7: softmax: unknown attribute 'axes', did you mean 'axis'"),
        ("{axis=-1}", "{axis=-3}", "line 7: softmax: axis -3 is out of range"),
        ("{axis=-1}", "{axis=k}", "line 7: unknown size 'k'"),
        ("{axis=-1}", "{axis='a'}", "line 7: softmax: attribute 'axis' must be int, not 'a'"),
        (
            "{axis=-1} : float32[n, 4]",
            "{axis=-1} : float32[n, 5]",
            r"line 7: softmax gives float32\[n, 4\], the text says",
        ),
        ("%1 = softmax", "%1, %5 = softmax", "line 7: softmax has 1 results, 2 names are given"),
        ("%1 = softmax", "softmax", "line 7: this is not a line of a graph"),
        ("  check n == m : 'shapes [n, 4], [m, 4] do not broadcast'\n", "", "check lines of the text are not those"),
        ("check n == m", "check n = m", "line 9: this is not a line of a graph"),
        ("check n == m : 'shapes", "check n == m : shapes", "line 9: "),
        ("return out0=%2", "return out0=%9", "line 10: %9 is used before it is defined"),
        ("return out0=%2", "return %2", "line 10: "),
        ("  return out0=%2\n", "", "the graph has no return line"),
        ("\n}", "", "a graph starts with 'graph name\\(sizes\\) {' and ends with '}'"),
        (GOOD, "", "a graph starts with"),
        (GOOD, "}", "a graph starts with"),
    ],
)
def test_malformed_text_names_its_line(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(GraphError, match=message):
        parse_graph(GOOD.replace(old, new, 1), OPSET)


def test_line_numbers_count_leading_lines() -> None:
    with pytest.raises(GraphError, match="line 5: unknown dtype 'flot32'"):
        parse_graph("\n\n\n" + GOOD.replace("float32", "flot32", 1), OPSET)


def test_splitting_respects_brackets_and_quotes() -> None:
    assert split_top('a, f(b, c), [d, e], \'x, y\', "q\\", r"') == ["a", "f(b, c)", "[d, e]", "'x, y'", '"q\\", r"']
    assert split_top("") == []
