"""Import of ONNX models: symbolic sizes, what is computed at once, control flow, and what is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xinheng.core.errors import FormatError, GraphError
from xinheng.core.interop import ImportedModel, import_onnx, supported_ops
from xinheng.core.ir import evaluate, verify

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
Port = tuple[str, int, Any]


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Port],
    outputs: Sequence[str],
    constants: dict[str, Any] | None = None,
    functions: Sequence[Any] = (),
    opset: int = 22,
) -> Any:
    """A model of some nodes; outputs may be anything."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    domains = [helper.make_opsetid("", opset), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    return helper.make_model(graph, opset_imports=domains, functions=list(functions))


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, name=f"a_{op}", **attributes)


def outputs(found: ImportedModel, **feeds: Any) -> list[Any]:
    verify(found.graph)
    made, _ = evaluate(found.graph, {found.inputs[n]: np.asarray(x) for n, x in feeds.items()}, found.parameters)
    return [np.asarray(x) for x in made.values()]


def ops_of(found: ImportedModel) -> list[str]:
    return [n.op.name for n in found.graph.nodes]


# -------------------------------------------------------------------------------------------------------- shape values
def test_shape_computations_leave_no_trace() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=2),
        node("Concat", ["s", "heads"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    found = import_onnx(model(nodes, [("x", FLOAT, ["batch", "seq", 12])], ["y"], {"heads": np.array([3, -1])}))
    assert ops_of(found) == ["reshape"]
    assert str(found.graph.outputs["y"].type) == "float32[batch, seq, 3, 4]"
    assert outputs(found, x=np.zeros((2, 5, 12)))[0].shape == (2, 5, 3, 4)


def test_sizes_are_computed_with_symbolically() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Mul", ["n", "two"], ["double"]),
        node("Div", ["double", "three"], ["third"]),
        node("Range", ["n", "double", "one"], ["steps"]),
        node("Unsqueeze", ["third", "axes"], ["vector"]),
        node("ConstantOfShape", ["vector"], ["zeros"]),
    ]
    constants = {"zero": 0, "one": 1, "two": 2, "three": 3, "axes": [0]}
    found = import_onnx(
        model(nodes, [("x", FLOAT, ["n"])], ["steps", "zeros"], {k: np.array(v) for k, v in constants.items()})
    )
    assert [str(v.type) for v in found.graph.outputs.values()] == ["int64[n]", "float32[((-n) // 3) + n]"]
    steps, zeros = outputs(found, x=np.zeros(4))
    assert steps.tolist() == [4, 5, 6, 7] and zeros.shape == (2,)


def test_a_size_enters_arithmetic_as_a_tensor() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["f"], to=FLOAT), node("Div", ["x", "f"], ["y"])]
    found = import_onnx(model(nodes, [("x", FLOAT, ["n"])], ["y"]))
    np.testing.assert_allclose(outputs(found, x=np.array([2.0, 4.0]))[0], [1.0, 2.0])


def test_sizes_that_cannot_be_proven_equal_are_checked_at_run_time() -> None:
    found = import_onnx(model([node("Add", ["x", "y"], ["z"])], [("x", FLOAT, ["n"]), ("y", FLOAT, ["m"])], ["z"]))
    assert len(found.graph.checks) == 1
    assert outputs(found, x=np.ones(3), y=np.ones(3))[0].tolist() == [2, 2, 2]
    with pytest.raises(GraphError, match=r"n is 3, m is 2|m is 2, n is 3"):
        outputs(found, x=np.ones(3), y=np.ones(2))


def test_expressions_and_strange_names_of_sizes() -> None:
    ports = [("x", FLOAT, ["past + new", "a.b"]), ("y", FLOAT, [None, "class"])]
    found = import_onnx(model([node("Identity", [n], [f"o{n}"]) for n in "xy"], ports, ["ox", "oy"]))
    shown = [str(v.type) for v in found.graph.inputs]
    assert shown == ["float32[new + past, a_b]", "float32[y_0, size_class]"]


def test_weights_become_parameters_and_what_follows_from_them_is_computed() -> None:
    weight = np.arange(20, dtype=np.float32).reshape(4, 5)
    nodes = [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])]
    found = import_onnx(model(nodes, [("x", FLOAT, ["n", 5])], ["y"], {"w": weight}))
    assert ops_of(found) == ["matmul"]
    (parameter,) = found.parameters.values()
    np.testing.assert_array_equal(parameter, weight.T)
    np.testing.assert_allclose(outputs(found, x=np.ones((2, 5)))[0], np.ones((2, 5)) @ weight.T)


def test_inputs_can_be_given() -> None:
    proto = model([node("Reshape", ["x", "s"], ["y"])], [("x", FLOAT, [6]), ("s", INT, [2])], ["y"])
    with pytest.raises(
        GraphError, match=r"'a_Reshape' \(Reshape, opset 22\): input 1 \(shape\) must be known at import"
    ):
        import_onnx(proto)
    found = import_onnx(proto, {"s": np.array([2, 3])})
    assert list(found.inputs) == ["x"]
    assert outputs(found, x=np.arange(6.0))[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(GraphError, match="no input 'shape'"):
        import_onnx(proto, {"shape": np.array([2, 3])})


# -------------------------------------------------------------------------------------------------------- control flow
def branch(name: str, op: str) -> Any:
    out = helper.make_tensor_value_info(f"{name}_out", FLOAT, None)
    return helper.make_graph([node(op, ["x"], [f"{name}_out"])], name, [], [out])


def test_a_branch_is_taken_at_import() -> None:
    choice = node("If", ["c"], ["y"], then_branch=branch("then", "Neg"), else_branch=branch("else", "Exp"))
    ports = [("c", TensorProto.BOOL, []), ("x", FLOAT, ["n"])]
    assert ops_of(import_onnx(model([choice], ports, ["y"]), {"c": np.array(True)})) == ["neg"]
    assert ops_of(import_onnx(model([choice], ports, ["y"]), {"c": np.array(False)})) == ["exp"]
    with pytest.raises(GraphError, match=r"\(If, opset 22\): input 0 \(condition\) must be known"):
        import_onnx(model([choice], ports, ["y"]))


def test_loops_are_unrolled() -> None:
    declared: list[Port] = [("i", INT, []), ("go", TensorProto.BOOL, []), ("total", FLOAT, None)]
    ports = [helper.make_tensor_value_info(*port) for port in declared]
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"]),
            node("Cast", ["i"], ["f"], to=FLOAT),
            node("Add", ["total", "f"], ["next"]),
            node("Mul", ["next", "x"], ["row"]),
        ],
        "body",
        ports,
        [
            helper.make_tensor_value_info(n, t, None)
            for n, t in (("on", TensorProto.BOOL), ("next", FLOAT), ("row", FLOAT))
        ],
    )
    loop = node("Loop", ["m", "", "x"], ["end", "rows"], body=body)
    found = import_onnx(model([loop], [("x", FLOAT, ["n"])], ["end", "rows"], {"m": np.array(3)}))
    end, rows = outputs(found, x=np.array([1.0, 2.0]))
    assert end.tolist() == [4, 5]
    np.testing.assert_allclose(rows, [[1, 4], [2, 6], [4, 10]])
    with pytest.raises(GraphError, match="more than 2048 turns"):
        import_onnx(model([loop], [("x", FLOAT, ["n"])], ["end", "rows"], {"m": np.array(5000)}))


def test_functions_of_the_model_are_inlined_with_their_attributes() -> None:
    scale = helper.make_node("LeakyRelu", ["a"], ["b"])
    scale.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    function = helper.make_function("mine", "Act", ["a"], ["b"], [scale], [helper.make_opsetid("", 22)], ["slope"])
    call = helper.make_node("Act", ["x"], ["y"], domain="mine", slope=0.5)
    found = import_onnx(model([call], [("x", FLOAT, [2])], ["y"], functions=[function]))
    assert outputs(found, x=np.array([-2.0, 2.0]))[0].tolist() == [-1.0, 2.0]


# ------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("nodes", "ports", "message"),
    [
        ([node("Foo", ["x"], ["y"])], [("x", FLOAT, [2])], r"ONNX node 'a_Foo' \(Foo, opset 22\): .*no import rule"),
        (
            [node("Conv", ["x", "x"], ["y"], auto_pad="SOMEHOW")],
            [("x", FLOAT, [1, 1, 3])],
            r"attribute auto_pad is 'SOMEHOW'; supported: 'NOTSET', 'VALID', 'SAME_UPPER', 'SAME_LOWER'",
        ),
        ([node("Softmax", ["x"], ["y"], axis=5)], [("x", FLOAT, [2])], "attribute axis is 5, out of range for 1 axes"),
        ([node("Add", ["x", "z"], ["y"])], [("x", FLOAT, [2])], "value 'z' is used before it is defined"),
        ([node("Abs", ["x"], ["y"])], [("x", TensorProto.STRING, [2])], "input 'x': tensors of element type string"),
        ([node("Abs", ["x"], ["y"])], [("x", FLOAT, None)], "input 'x' has no declared number of axes"),
        ([node("MatMul", ["x", "x"], ["y"])], [("x", FLOAT, [2, 3])], r"\(MatMul, opset 22\): .*inner sizes"),
        ([node("Bernoulli", ["x"], ["y"])], [("x", FLOAT, [2])], r"\(Bernoulli, opset 22\)"),
        ([node("SequenceConstruct", ["x"], ["y"])], [("x", FLOAT, [2])], "output 'y' is no tensor"),
    ],
    ids=["op", "attribute", "axis", "name", "type", "rank", "shapes", "random", "sequence"],
)
def test_refusals(nodes: Sequence[Any], ports: Sequence[Port], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        import_onnx(model(nodes, ports, ["y"]))


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model([node("Abs", ["x"], ["y"])], [("x", FLOAT, [2])], ["y"]), str(path))
    assert ops_of(import_onnx(path)) == ["abs"]
    path.write_bytes(b"this is no model")
    with pytest.raises(FormatError, match=r"model\.onnx: this is not an ONNX model"):
        import_onnx(path)
    with pytest.raises(FormatError, match="there is no such file"):
        import_onnx(tmp_path / "nothing.onnx")


def test_the_list_of_supported_ops() -> None:
    listed = supported_ops()
    assert listed == sorted(listed) and {"Conv", "MatMul", "RMSNormalization", "Resize"} <= set(listed)
