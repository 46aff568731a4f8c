"""Export of graphs to ONNX: ops that ONNX has by name, all others as functions whose bodies ONNX Runtime can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..ir.dim import Dim
from ..ir.dtype import cast_to
from ..ir.graph import Builder, Graph, Node, Value
from ..ir.op import results
from ..ir.substitution import learn_sizes, resized
from ..ir.types import StateType, TensorType, Type, WeightType
from ..ir.verify import verify
from .bodies import BODIES, state_tensors
from .emitter import Emitter, number_of, tensor
from .export_table import REDUCED, SAME, WRITERS, weight_type, write_reduced
from .functions import demand_onnx

DOMAIN = "xinheng"
OPSET = 23
IR_VERSION = 11

Names = list[str]
"""The ONNX names of a value: one, or one per tensor of a state; none if it is absent."""


def export_onnx(graph: Graph, parameters: Mapping[str, Any] | None = None) -> Any:
    """A graph as an `onnx.ModelProto` of opset 23.

    Inputs and outputs keep their names. A state becomes inputs `past.<state>.<tensor>` and outputs
    `present.<state>.<tensor>`. Parameters in `parameters` (arrays, or anything with `unpack(dtype)`, such as a
    `WeightSource`) become initializers, others inputs. Weights are exported as values: in their own dtype if they are
    dense floats, else dequantised to float32. An op without an ONNX equivalent becomes a call of a function in the
    domain "xinheng" whose body is its decomposition; symbolic sizes that it needs are further inputs of that function.

    Raises:
        GraphError: an op has neither an ONNX form nor a decomposition; or a size follows from no input.
    """
    demand_onnx()
    from onnx import helper

    export = _Export()
    emitter = export.main
    body = _root_inputs(graph, parameters or {}, emitter)
    for value in graph.constants:
        body.names[id(value)] = [emitter.constant(np.asarray(value.data), value.dtype)]
    export.nodes(graph.nodes, emitter, body.names)
    outputs = []
    for name, value in graph.outputs.items():
        label = emitter.name(name)
        emitter.node("Identity", body.names[id(value)], [label])
        outputs.append(_info(label, value.tensor))
    for state, final in graph.states:
        assert isinstance(state.type, StateType)
        for (part, kind), held in zip(state_tensors(state.name, state.type), body.names[id(final)], strict=True):
            label = emitter.name(f"present.{state.name}.{part}")
            emitter.node("Identity", [held], [label])
            outputs.append(_info(label, kind))
    made = helper.make_graph(emitter.nodes, graph.name, body.inputs, outputs, body.initializers)
    domains = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(
        made, opset_imports=domains, functions=export.functions, ir_version=IR_VERSION, producer_name="xinheng"
    )


@dataclass(slots=True)
class _Roots:
    names: dict[int, Names] = field(default_factory=dict)
    inputs: list[Any] = field(default_factory=list)
    initializers: list[Any] = field(default_factory=list)


def _root_inputs(graph: Graph, parameters: Mapping[str, Any], emitter: Emitter) -> _Roots:
    """Inputs, parameters and states of a graph, and the sizes that follow from them."""
    roots, sized = _Roots(), []
    for value in graph.inputs:
        roots.names[id(value)] = [emitter.name(value.name)]
        roots.inputs.append(_info(value.name, value.tensor))
        sized.append((value.name, value.tensor))
    for value in graph.parameters:
        kind = _plain_type(value.type)
        name = emitter.name(value.name)
        roots.names[id(value)] = [name]
        if value.name in parameters:
            roots.initializers.append(tensor(_elements(value.name, parameters[value.name], kind), kind.dtype, name))
        else:
            roots.inputs.append(_info(name, kind))
    for state, _ in graph.states:
        assert isinstance(state.type, StateType)
        held = []
        for part, kind in state_tensors(state.name, state.type):
            held.append(emitter.name(f"past.{state.name}.{part}"))
            roots.inputs.append(_info(held[-1], kind))
            sized.append((held[-1], kind))
        roots.names[id(state)] = held
    for name, kind in sized:
        emitter.learn_sizes(name, kind.shape)
    return roots


def _elements(name: str, given: Any, kind: TensorType) -> NDArray[Any]:
    """The elements of a parameter as an array of its exported type."""
    array = given.unpack(np.float64 if kind.dtype.bits > 32 else np.float32) if hasattr(given, "unpack") else given
    array = np.asarray(array)
    if tuple(array.shape) != kind.shape:
        raise GraphError(f"parameter {name!r} is {kind}, the array given for it has shape {list(array.shape)}")
    return array if array.dtype == kind.dtype.numpy else cast_to(array, kind.dtype)


def _plain_type(kind: Type) -> TensorType:
    """The type of the tensor that a parameter is exported as."""
    if isinstance(kind, WeightType):
        return TensorType(weight_type(kind), kind.shape)
    assert isinstance(kind, TensorType)
    return kind


def _info(name: str, kind: TensorType) -> Any:
    from onnx import helper

    dims: list[int | str] = [d if isinstance(d, int) else str(d) for d in kind.shape]
    return helper.make_tensor_value_info(name, number_of(kind.dtype), dims)


class _Export:
    """The functions that an export has made so far, and the emitter of its main graph."""

    def __init__(self) -> None:
        self.main = Emitter()
        self.functions: list[Any] = []
        self._known: dict[str, tuple[str, list[str]]] = {}
        self._labels: set[str] = set()

    def nodes(self, nodes: Sequence[Node], emitter: Emitter, names: dict[int, Names]) -> None:
        """Write nodes in order; `names` gains those of their results."""
        for node in nodes:
            operands = [[] if v is None else names[id(v)] for v in node.operands]
            flat = [part for operand in operands for part in operand or [""]]
            while flat and not flat[-1]:
                flat.pop()
            made = self._written(node, emitter, flat)
            at = 0
            for value in node.results:
                width = len(state_tensors("", value.type)) if isinstance(value.type, StateType) else 1
                names[id(value)] = made[at : at + width]
                at += width
                if isinstance(value.type, TensorType):
                    emitter.learn_sizes(names[id(value)][0], value.type.shape)

    def _written(self, node: Node, emitter: Emitter, operands: Sequence[str]) -> list[str]:
        op = node.op.name
        if op in SAME:
            return [emitter.one(SAME[op], *operands)]
        if op in REDUCED:
            return [write_reduced(emitter, node, operands)]
        made = WRITERS[op](emitter, node, operands) if op in WRITERS else None
        if made is not None:
            return [made] if isinstance(made, str) else list(made)
        return self._called(node, emitter, operands)

    def _called(self, node: Node, emitter: Emitter, operands: Sequence[str]) -> list[str]:
        """A call of the function of a node, which is made when it is first needed."""
        key = (
            f"{node.op.name}({', '.join(str(None if v is None else v.type) for v in node.operands)}) {node.attributes}"
        )
        if key not in self._known:
            self._known[key] = self._function(node)
        label, sizes = self._known[key]
        arity = sum(len(_parts("", v.type)) if v is not None else 1 for v in node.operands)
        padded = [*operands, *[""] * (arity - len(operands))]
        count = sum(len(_parts("", r.type)) for r in node.results)
        for size in sizes:
            emitter.used.add(size)
            if size not in emitter.sizes:
                raise GraphError(f"{node.op.name}: size {size!r} is not the size of any input")
        return emitter.node(label, [*padded, *(emitter.sizes[s] for s in sizes)], count, DOMAIN)

    def _function(self, node: Node) -> tuple[str, list[str]]:
        """The name of a new function for a node, and the symbols that it takes after its operands."""
        from onnx import helper

        body, arguments, made = _body_of(node)
        inner = Emitter()
        names: dict[int, Names] = {}
        for value in (*body.inputs, *body.parameters):
            names[id(value)] = [inner.name(value.name)]
        own = {
            s
            for i, v in enumerate(node.operands)
            if v is not None and isinstance(v.type, StateType)
            for s in _symbols_of([x for x in body.inputs if x.name.startswith(f"{node.op.operands[i].name}_")])
        }
        symbols = [
            s.name
            for s in body.symbols().values()
            if s.name not in own and (not s.unbacked or s.name in _symbols_of(body.inputs))
        ]
        inner.sizes = {s: inner.name(f"size_{s}") for s in symbols}
        for value in body.inputs:
            if own & _symbols_of([value]):
                inner.learn_sizes(names[id(value)][0], value.shape)
        for value in body.constants:
            names[id(value)] = [inner.constant(np.asarray(value.data), value.dtype)]
        self.nodes(body.nodes, inner, names)
        outputs = []
        for i, value in enumerate(made):
            label = inner.name(f"result_{i}")
            inner.node("Identity", names[id(value)], [label])
            outputs.append(label)
        label, index = node.op.name, 0
        while label in self._labels:
            index += 1
            label = f"{node.op.name}_{index}"
        self._labels.add(label)
        sizes = [s for s in symbols if s in inner.used]
        domains = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
        inputs = [*arguments, *(inner.sizes[s] for s in sizes)]
        self.functions.append(helper.make_function(DOMAIN, label, inputs, outputs, inner.nodes, domains))
        return label, sizes


def _symbols_of(values: Sequence[Value]) -> set[str]:
    from ..ir.graph import sizes_of

    return set(sizes_of([v.type for v in values]))


def _parts(name: str, kind: Type) -> list[tuple[str, TensorType]]:
    """The tensors that a value is exported as."""
    if isinstance(kind, StateType):
        return [(f"{name}_{part}", t) for part, t in state_tensors(name, kind)]
    return [(name, _plain_type(kind))]


def _body_of(node: Node) -> tuple[Graph, list[str], list[Value]]:
    """The graph that a node stands for, the names of its arguments, and its results in order."""
    builder = Builder(node.op.name)
    arguments: list[str] = []
    operands: list[Any] = []
    for i, value in enumerate(node.operands):
        name = node.op.operands[min(i, len(node.op.operands) - 1)].name + ("" if i < len(node.op.operands) else str(i))
        if value is None:
            arguments.append(name)
            operands.append(None)
            continue
        parts = _parts(name, value.type)
        arguments.extend(part for part, _ in parts)
        if isinstance(value.type, WeightType) and node.op.name not in BODIES:
            operands.append(builder.parameter(name, value.type))
        else:
            made = [builder.input(part, kind) for part, kind in parts]
            operands.append(tuple(made) if isinstance(value.type, StateType) else made[0])
    if node.op.name in BODIES:
        produced = BODIES[node.op.name](*operands, **node.attributes)
    elif node.op.composite:
        produced = _expanded(node, builder, operands)
    else:
        raise GraphError(f"op {node.op.name!r} has no ONNX form: no equivalent, no decomposition and no body")
    flat = [v for r in results(produced) for v in results(r)]
    graph = verify(builder.build(*flat))
    return graph, arguments, flat


def _expanded(node: Node, builder: Builder, operands: Sequence[Any]) -> Any:
    """The decomposition of a node; ops on states in it are put in by their bodies."""
    if not any(isinstance(v.type, StateType) for v in node.operands if v is not None):
        return node.op.expand(*operands, **node.attributes)
    return _without_states(node, builder, operands)


def _without_states(node: Node, builder: Builder, operands: Sequence[Any]) -> Any:
    """The decomposition in a builder of its own, from there node by node with states as tuples of tensors."""
    own = Builder(node.op.name)
    formal: list[Any] = []
    image: dict[int, Any] = {}
    for i, (value, operand) in enumerate(zip(node.operands, operands, strict=True)):
        if value is None:
            formal.append(None)
            continue
        name = f"x{i}"
        formal.append(
            own.state(name, value.type) if isinstance(value.type, StateType) else own.input(name, value.tensor)
        )
        image[id(formal[-1])] = operand
    made = results(node.op.expand(*formal, **node.attributes))
    built = own.build(*made)
    for value in built.constants:
        assert value.data is not None
        image[id(value)] = builder.constant(value.data, value.dtype)
    sizes: dict[str, Dim] = {}
    for inner in (resized(n, sizes) for n in built.nodes):
        given = [None if v is None else image[id(v)] for v in inner.operands]
        stateful = any(isinstance(v.type, StateType) for v in inner.operands if v is not None)
        if stateful and inner.op.name not in BODIES:
            raise GraphError(f"op {inner.op.name!r} reads a state and has no body in ONNX")
        produced: Any = (
            BODIES[inner.op.name](*given, **inner.attributes)
            if stateful
            else builder.call(inner.op, given, inner.attributes)
        )
        parts, at = results(produced), 0
        for old in inner.results:
            if isinstance(old.type, StateType):
                width = len(state_tensors("", old.type))
                image[id(old)] = parts[at : at + width]
            else:
                width = 1
                image[id(old)] = parts[at]
                learn_sizes(old, parts[at], sizes)
            at += width
    return tuple(image[id(v)] for v in made)
