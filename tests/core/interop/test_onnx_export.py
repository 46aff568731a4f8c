"""What is exported to ONNX means the same when it is imported again, and when ONNX Runtime runs it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from xinheng.conformance.bounds import Rules
from xinheng.conformance.case import Sample
from xinheng.conformance.judge import judge
from xinheng.conformance.operands import Special
from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.interop import export_onnx, import_onnx
from xinheng.core.ir import Builder, Graph, StateType, TensorType, Value, WeightType, evaluate, sym
from xinheng.core.ir.dtype import DTYPES, float32, int32
from xinheng.core.ops import OPSET
from xinheng.engine.models import open_model

from ...engine import tiny
from ...samples import EVERY

onnxruntime: Any = import_module("onnxruntime")
WITHOUT_FORM = {"all_gather", "all_reduce", "all_to_all", "gated_delta_rule", "matmul_all_reduce", "reduce_scatter"}
"""Ops that one ONNX model cannot express: those of several devices, and a recurrence over a symbolic size."""
FOREIGN = ("float8", "bfloat16", "float4")
"""What types have in their names that numpy bindings of ONNX Runtime do not take."""
OTHER_NAN = {"amax", "argmax", "max_pool", "topk"}
"""Ops for which ONNX Runtime treats NaN in another way."""


def session(model: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def tensors_of(states: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """States as the inputs of an exported model."""
    return {f"past.{n}.{part}": getattr(s, part) for n, s in states.items() for part in s._fields}


def again(
    graph: Graph,
    feeds: Mapping[str, Any],
    parameters: Mapping[str, Any] | None = None,
    states: Mapping[str, Any] | None = None,
) -> Any:
    """Demand that a graph, exported and imported again, evaluates to the same; returns the model and what is right."""
    model = export_onnx(graph, parameters)
    onnx.checker.check_model(model)
    imported = import_onnx(model)
    given = {**feeds, **tensors_of(states or {})}
    made, _ = evaluate(imported.graph, {imported.inputs[n]: x for n, x in given.items()}, imported.parameters)
    values = {n: p.unpack(np.float64) if hasattr(p, "unpack") else p for n, p in (parameters or {}).items()}
    want, finals = evaluate(graph, feeds, values, states)
    want |= {f"present.{n}.{part}": getattr(s, part) for n, s in finals.items() for part in s._fields}
    assert set(want) == set(imported.outputs)
    for name, array in want.items():
        got, expected = (np.asarray(x).astype(np.float64) for x in (made[imported.outputs[name]], array))
        assert got.shape == expected.shape
        # numbers of a graph are kept in float64 here and in the dtype of their neighbours there
        finite = np.abs(expected[np.isfinite(expected)])
        close = 1e-6 * max(0.1, float(finite.max(initial=0.0)) if finite.max(initial=0.0) < 1e3 else 0.1)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=close, err_msg=name)
    return model, want


def run(model: Any, feeds: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The outputs of ONNX Runtime."""
    kinds = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
    opened = session(model)
    with np.errstate(all="ignore"):
        given = {name: np.asarray(array).astype(kinds[name]) for name, array in feeds.items()}
    return dict(zip([o.name for o in opened.get_outputs()], opened.run(None, given), strict=True))


def exportable() -> list[Any]:
    """Cases of ops with a form, without those at the ends of the range, where float32 and float64 differ."""
    usual = [c for c in EVERY if c.op not in WITHOUT_FORM and not any(isinstance(x, Special) for x in c.operands)]
    return [pytest.param(c, id=c.id) for c in usual]


@pytest.mark.parametrize("case", exportable())
def test_every_op_survives_the_journey(case: Sample) -> None:
    call = case.in_dtype(float32)
    graph, feeds, states = call.graph(), call.feeds(TensorType), call.feeds(StateType)
    model, want = again(graph, feeds, {source.name: source for source in call.sources}, states)
    types = [v.type for v in graph.values()]
    if any(part in str(t) for t in (*types, *graph.nodes[-1].attributes.values()) for part in FOREIGN):
        return
    if case.op in OTHER_NAN and (case.special or "nan" in case.id):
        return
    try:
        made = run(model, {**feeds, **tensors_of(states)})
    except Exception as error:  # types for which ONNX Runtime has no kernel
        assert "NOT_IMPLEMENTED" in str(error) or "INVALID_GRAPH" in str(error), error
        return
    if case.op == "top_k_top_p_sample":  # a number at the border of two tokens may choose either
        assert judge(call, tuple(made[name] for name in want), Rules()).ok
        return
    for name, array in want.items():
        with np.errstate(all="ignore"):
            expected = np.asarray(array).astype(made[name].dtype)
        np.testing.assert_allclose(made[name], expected, rtol=2e-4, atol=1e-4 if case.special else 2e-5, err_msg=name)


def test_ops_without_a_form_are_refused_by_name() -> None:
    assert set(OPSET) >= WITHOUT_FORM
    for op in WITHOUT_FORM:
        case = next(c for c in EVERY if c.op == op)
        with pytest.raises(GraphError, match=r"op '\w+' has no ONNX form"):
            export_onnx(case.in_dtype(float32).graph())


# ------------------------------------------------------------------------------------------------------ random graphs
def random_graph(seed: int) -> tuple[Graph, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """A random program over [rows, 6] matrices, with inputs and a parameter for it."""
    rng = np.random.default_rng(seed)
    b = Builder(f"random_{seed}")
    rows = sym("rows")
    kind = TensorType(float32, (rows, 6))
    values: list[Value] = [b.input("a", kind), b.input("b", kind)]
    weight = b.parameter("w", WeightType((6, 6), "float32"))
    norm = b.parameter("n", TensorType(float32, (6,)))

    def parts(x: Value) -> Value:
        left, right = ops.split(x, sizes=(2, 4), axis=1)
        made: Value = ops.concat(right, left, axis=1)
        return made

    unary: list[Any] = [
        ops.tanh,
        ops.silu,
        ops.square,
        parts,
        lambda x: ops.softmax(x, axis=-1),
        lambda x: ops.linear(x, weight),
        lambda x: ops.rms_norm(x, norm, eps=1e-5),
        lambda x: ops.gelu(x, approximate="tanh"),
        lambda x: ops.reshape(ops.permute(ops.reshape(x, shape=(rows, 2, 3)), axes=(0, 2, 1)), shape=(rows, 6)),
        lambda x: ops.sub(x, ops.mean(x, axis=1, keepdims=True)),
        lambda x: ops.cumsum(x, axis=0),
        lambda x: ops.clamp(x, low=-2.0, high=2.0),
        lambda x: ops.topk(x, k=6)[0],
    ]
    binary: list[Any] = [ops.add, ops.mul, ops.maximum, ops.silu_and_mul, lambda x, y: ops.where(ops.lt(x, y), x, y)]
    for _ in range(12):
        if rng.random() < 0.6:
            values.append(unary[rng.integers(len(unary))](values[rng.integers(len(values))]))
        else:
            pair = rng.integers(len(values), size=2)
            values.append(binary[rng.integers(len(binary))](values[pair[0]], values[pair[1]]))
    feeds = {name: rng.normal(size=(4, 6)).astype(np.float32) for name in "ab"}
    parameters = {"w": rng.normal(size=(6, 6)).astype(np.float32), "n": rng.normal(size=6).astype(np.float32)}
    return b.build(*values[-3:]), feeds, parameters


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_survive_the_journey(seed: int) -> None:
    graph, feeds, parameters = random_graph(seed)
    model, want = again(graph, feeds, parameters)
    made = run(model, feeds)
    for name, array in want.items():
        np.testing.assert_allclose(made[name], array, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(array).max())))


# ------------------------------------------------------------------------------------------------------------- models
STEP = {
    "token_ids": [5, 6, 7, 8, 9, 3],
    "positions": [0, 1, 2, 3, 4, 2],
    "query_start": [0, 5, 6],
    "seq_lens": [5, 3],
    "logit_rows": [4, 5],
}
"""A sequence of five new tokens in blocks 2 and 1, and one of which two tokens lie in block 0 already."""
PLACES = {"slots": [8, 9, 10, 11, 4, 2], "block_table": [[2, 1], [0, -1]]}


@pytest.mark.parametrize(
    "config", [tiny.LLAMA, tiny.GEMMA3_CAPPED, tiny.QWEN3_MOE, tiny.DEEPSEEK_V3], ids=lambda c: c["model_type"]
)
def test_decoders_survive_the_journey(config: tiny.Config, tmp_path: Path) -> None:
    opened = open_model(tiny.write_model(tmp_path / "model", config))
    program = opened.build(float32, "float32")
    parameters = {value.name: opened.parameter(program, value) for value in program.graph.parameters}
    arrays = {**STEP, **{f"{name}.{g.name}": rows for name, rows in PLACES.items() for g in program.groups}}
    feeds = {value.name: np.array(arrays[value.name], np.int32) for value in program.graph.inputs}
    rng = np.random.default_rng(1)
    states = {s.name: filled(s.type, rng) for s, _ in program.graph.states if isinstance(s.type, StateType)}
    model, want = again(program.graph, feeds, parameters, states)
    assert {f.domain for f in model.functions} == {"xinheng"}
    made = run(model, {**feeds, **tensors_of(states)})
    for name, array in want.items():
        np.testing.assert_allclose(made[name], array, atol=1e-4 * float(np.abs(array).max()), rtol=1e-4, err_msg=name)


def filled(kind: StateType, rng: np.random.Generator) -> Any:
    """A state of three blocks of four tokens with random contents."""
    from xinheng.core.ops import KVPages, LatentPages

    if kind.kind == "paged_kv":
        widths = [(kind["heads"], kind["k_dim"]), (kind["heads"], kind["v_dim"])]
        return KVPages(*(rng.normal(size=(3, 4, *w)).astype(np.float32) for w in widths))
    return LatentPages(*(rng.normal(size=(3, 4, kind[d])).astype(np.float32) for d in ("dim", "rope_dim")))


# -------------------------------------------------------------------------------------------------------------- form
def test_sizes_follow_from_the_inputs() -> None:
    b = Builder("sizes")
    n, m = sym("n"), sym("m")
    x = b.input("x", TensorType(float32, (n + 1, 2 * m)))
    model = export_onnx(
        b.build(ops.reshape(x, shape=((n + 1) * m, 2)), ops.expand(b.constant(1.0, float32), shape=(n,)))
    )
    made = run(model, {"x": np.zeros((4, 6), np.float32)})
    assert [array.shape for array in made.values()] == [(12, 2), (3,)]
    shape = [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    assert shape == ["n + 1", "2 * m"]


def test_a_size_that_no_input_has_is_refused() -> None:
    b = Builder("lost")
    x = b.input("x", TensorType(float32, (sym("n") * sym("m"),)))
    with pytest.raises(GraphError, match="size 'n' is not the size of any input"):
        export_onnx(b.build(ops.reshape(x, shape=(sym("n"), sym("m")))))


def test_parameters_that_are_not_given_become_inputs() -> None:
    graph, feeds, parameters = random_graph(0)
    model = export_onnx(graph)
    assert [i.name for i in model.graph.input] == ["a", "b", "w", "n"]
    made, given = run(model, {**feeds, **parameters}), run(export_onnx(graph, parameters), feeds)
    for name, array in made.items():
        np.testing.assert_array_equal(array, given[name])


def test_a_parameter_of_another_shape_is_refused() -> None:
    graph, _, parameters = random_graph(0)
    with pytest.raises(GraphError, match=r"parameter 'n' is float32\[6\], the array given for it has shape \[5\]"):
        export_onnx(graph, parameters | {"n": np.zeros(5)})


def test_equal_calls_share_a_function() -> None:
    b = Builder("twice")
    x = b.input("x", TensorType(float32, (sym("n"), 4)))
    y = ops.silu(ops.silu(x))
    other = ops.silu(ops.reshape(x, shape=(4, sym("n"))))
    model = export_onnx(b.build(y, other))
    assert [f.name for f in model.functions] == ["silu", "silu_1"]
    assert [n.op_type for n in model.graph.node if n.domain == "xinheng"] == ["silu", "silu", "silu_1"]


def test_every_type_can_be_a_constant() -> None:
    for kind in DTYPES.values():
        b = Builder("constant")
        x = b.input("x", TensorType(int32, ()))
        elements = [1, 1, 1] if kind.kind == "bool" else [1, 2, 4]
        c = b.constant(np.array(elements, np.float32).astype(kind.numpy))
        graph = b.build(x, c)
        imported = import_onnx(export_onnx(graph))
        value = imported.graph.outputs["out1"]
        assert value.dtype is kind
        made, _ = evaluate(imported.graph, {"x": np.array(1, np.int32)})
        np.testing.assert_array_equal(np.asarray(made["out1"]).astype(np.float64), elements)
