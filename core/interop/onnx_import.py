"""Import of ONNX models: each node becomes ops of ours, and what is known already is computed at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, GraphError, nearest
from ..ir.dim import Dim, sym
from ..ir.dim_text import parse_dim
from ..ir.dtype import cast_to
from ..ir.evaluate import evaluate
from ..ir.graph import Builder, Graph, Value
from ..ir.types import TensorType
from .call import RULES, Call, Target, results
from .functions import attribute_values, demand_onnx, has_body, plain_domain, standard_body
from .item import Item, Thing, element_type, of_array, of_value
from .symbolic import folded

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})


@dataclass(frozen=True)
class ImportedModel:
    """A model as a graph of ours, with the arrays of its parameters by name.

    `inputs` and `outputs` give the names of the graph for those of the model, where a name had to change.
    """

    graph: Graph
    parameters: Mapping[str, NDArray[Any]]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def import_onnx(model: Any, specialise: Mapping[str, NDArray[Any]] | None = None) -> ImportedModel:
    """Import an ONNX model.

    Sizes that the model leaves open become symbols. Weights become parameters; what follows from shapes, constants
    and `specialise` alone is computed now, so that shape computations leave no trace in the graph.

    Args:
        model: an `onnx.ModelProto`, or the path of a model file (external data is read from beside it).
        specialise: arrays for inputs that are thereby fixed, such as those that give a shape.

    Raises:
        FormatError: the file is not an ONNX model.
        GraphError: a node, attribute or type is not supported; the message names it and says what is.
    """
    from . import rules

    rules.load()
    proto = _load(model) if isinstance(model, str | Path) else model
    importer = Importer({(plain_domain(f.domain), f.name): f for f in proto.functions})
    return importer.model(proto, specialise or {})


def supported_ops() -> list[str]:
    """The ONNX ops that have an import rule, others than those of the standard domain with their domain."""
    from . import rules

    rules.load()
    return sorted(f"{domain}.{op}" if domain else op for domain, op in RULES)


def missing_ops(model: Any) -> dict[str, int]:
    """The ops of a model that have neither an import rule nor a body, with the number of their nodes.

    Raises:
        FormatError: the file is not an ONNX model.
    """
    from . import rules

    rules.load()
    proto = _load(model) if isinstance(model, str | Path) else model
    functions = {(plain_domain(f.domain), f.name) for f in proto.functions}
    versions = {plain_domain(o.domain): o.version for o in proto.opset_import}
    found: Counter[str] = Counter()

    def visit(nodes: Sequence[Any]) -> None:
        for node in nodes:
            key = (plain_domain(node.domain), node.op_type)
            if key not in RULES and key not in functions and not has_body(*key, versions.get(key[0], 1)):
                found[node.op_type if not key[0] else ".".join(key)] += 1
            for attribute in node.attribute:
                visit(attribute.g.node)

    visit(proto.graph.node)
    for function in proto.functions:
        visit(function.node)
    return dict(found)


def _load(path: str | Path) -> Any:
    demand_onnx()
    import onnx

    if not Path(path).is_file():
        raise FormatError(f"{path}: there is no such file")
    try:
        return onnx.load(str(path))
    except Exception as error:  # protobuf, numpy and file errors alike mean that the file is not what it claims
        raise FormatError(f"{path}: this is not an ONNX model that can be read: {error}") from error


@dataclass(slots=True)
class Scope:
    """The names that a graph or function body sees: its own, then those of the graph around it."""

    opsets: Mapping[str, int]
    outer: Scope | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    things: dict[str, Thing] = field(default_factory=dict)

    def find(self, name: str) -> Thing:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.things:
                return scope.things[name]
            scope = scope.outer
        raise GraphError(f"ONNX value {name!r} is used before it is defined")


class Importer:
    """Walks the nodes of one model."""

    def __init__(self, functions: Mapping[tuple[str, str], Any]) -> None:
        self.functions = functions
        self.target = Target(Builder("graph"))
        self._scopes: list[Scope] = []

    # ------------------------------------------------------------------------------------------------------ models
    def model(self, proto: Any, specialise: Mapping[str, NDArray[Any]]) -> ImportedModel:
        graph = proto.graph
        self.target.builder.name = self.target.name(graph.name or "graph")
        scope = Scope({plain_domain(o.domain): o.version for o in proto.opset_import})
        self._initializers(graph, scope)
        inputs: dict[str, str] = {}
        for given in graph.input:
            if given.name in scope.things:
                continue
            if given.name in specialise:
                scope.things[given.name] = of_array(np.asarray(specialise[given.name]), name=given.name)
            else:
                scope.things[given.name] = self._input(given, inputs)
        unknown = [name for name in specialise if name not in [g.name for g in graph.input]]
        if unknown:
            known = [g.name for g in graph.input]
            raise GraphError(f"the model has no input {unknown[0]!r}{nearest(unknown[0], known)}; it has {known}")
        self._nodes(graph.node, scope)
        outputs: dict[str, str] = {}
        values: dict[str, Value] = {}
        names = Target(self.target.builder)
        for declared in graph.output:
            thing = scope.find(declared.name)
            if not isinstance(thing, Item):
                raise GraphError(f"ONNX output {declared.name!r} is no tensor; only tensors can leave a graph")
            outputs[declared.name] = names.name(declared.name)
            values[outputs[declared.name]] = self.target.value(thing)
        built = self.target.builder.build(**values)
        assert self.target.parameters is not None
        return ImportedModel(built, self.target.parameters, inputs, outputs)

    def _initializers(self, graph: Any, scope: Scope) -> None:
        from onnx import numpy_helper

        for tensor in graph.initializer:
            dtype = _typed(lambda t=tensor: element_type(t.data_type), f"ONNX initializer {tensor.name!r}")
            scope.things[tensor.name] = of_array(numpy_helper.to_array(tensor), dtype, tensor.name)
        for sparse in graph.sparse_initializer:
            raise GraphError(f"ONNX initializer {sparse.values.name!r} is sparse; only dense ones are supported")

    def _input(self, given: Any, names: dict[str, str]) -> Item:
        what = f"ONNX input {given.name!r}"
        if given.type.WhichOneof("value") != "tensor_type":
            raise GraphError(f"{what} is no tensor; only tensors can enter a graph")
        kind = given.type.tensor_type
        dtype = _typed(lambda: element_type(kind.elem_type), what)
        if not kind.HasField("shape"):
            raise GraphError(f"{what} has no declared number of axes; give it in `specialise`")
        shape = tuple(_dim(d, f"{given.name}_{i}") for i, d in enumerate(kind.shape.dim))
        names[given.name] = self.target.name(given.name)
        return of_value(self.target.builder.input(names[given.name], TensorType(dtype, shape)))

    # ------------------------------------------------------------------------------------------------------- nodes
    def _nodes(self, nodes: Sequence[Any], scope: Scope) -> None:
        self._scopes.append(scope)
        try:
            for node in nodes:
                self._node(node, scope)
        finally:
            self._scopes.pop()

    def _node(self, node: Any, scope: Scope) -> None:
        domain = plain_domain(node.domain)
        inputs = [scope.find(name) if name else None for name in node.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        attributes = attribute_values(node.attribute, scope.attributes)
        label = node.name or (node.output[0] if node.output else "")
        version = scope.opsets.get(domain, 1)
        call = Call(node.op_type, domain, label, version, inputs, attributes, list(node.output), self.target, self)
        made = self._results(call, node, scope)
        for name, thing in zip(node.output, made, strict=False):
            if name:
                if isinstance(thing, Item) and not thing.name:
                    thing.name = name
                scope.things[name] = thing
        missing = [n for n in node.output[len(made) :] if n]
        if missing:
            raise call.refuse(f"output {missing[0]!r} is not supported; the first {len(made)} are")

    def _results(self, call: Call, node: Any, scope: Scope) -> list[Thing]:
        key = (call.domain, call.op)
        if key in self.functions:
            return self._function(call, self.functions[key], {a.name: a for a in node.attribute}, scope)
        try:
            if (known := folded(call)) is not None:
                return list(known)
            if key in RULES:
                return self._computed(call) if _computable(call) else results(RULES[key](call))
        except GraphError as error:
            raise _located(call, error) from error
        body = standard_body(_resolved(node, scope), call.inputs, call.version)
        if body is None:
            raise call.refuse(f"there is no import rule for it{nearest(call.op, [op for _, op in RULES])}")
        return self._function(call, *body, scope)

    def _computed(self, call: Call) -> list[Thing]:
        """The results of a node all of whose inputs are known, by the references of the ops that it becomes."""
        scratch = Target(Builder("known"), None)
        inputs = [Item(x.dtype, x.shape, None, x.known) if isinstance(x, Item) else x for x in call.inputs]
        inner = Call(
            call.op, call.domain, call.name, call.version, inputs, call.attributes, call.outputs, scratch, self
        )
        made = results(RULES[call.domain, call.op](inner))
        values = {f"r{i}": scratch.value(x) for i, x in enumerate(made) if isinstance(x, Item) and x.known is None}
        computed, _ = evaluate(scratch.builder.build(**values), {})
        for name, value in values.items():
            made[int(name[1:])] = of_array(cast_to(np.asarray(computed[name]), value.dtype), value.dtype)
        return made

    # ------------------------------------------------------------------------------------------------------ bodies
    def _function(self, call: Call, body: Any, given: Mapping[str, Any], scope: Scope) -> list[Thing]:
        attributes = {a.name: a for a in body.attribute_proto} | dict(_resolved_attributes(given, scope))
        inner = Scope({plain_domain(o.domain): o.version for o in body.opset_import} or scope.opsets)
        inner.attributes = attributes
        inner.opsets = {**scope.opsets, **inner.opsets}
        for i, name in enumerate(body.input):
            inner.things[name] = call.inputs[i] if i < len(call.inputs) else None
        try:
            self._nodes(body.node, inner)
        except GraphError as error:
            raise GraphError(f"{call.title}: {error}") from error
        return [inner.find(name) if name in inner.things else None for name in body.output]

    def run(self, graph: Any, arguments: Sequence[Thing], call: Call) -> list[Thing]:
        """Import the body of an If, Loop or Scan node with the given arguments and return its outputs."""
        outer = self._scopes[-1]
        inner = Scope(outer.opsets, outer, outer.attributes)
        self._initializers(graph, inner)
        inner.things.update((declared.name, x) for declared, x in zip(graph.input, arguments, strict=False))
        self._nodes(graph.node, inner)
        return [inner.find(declared.name) for declared in graph.output]


def _typed(make: Any, what: str) -> Any:
    try:
        return make()
    except GraphError as error:
        raise GraphError(f"{what}: {error}") from None


def _located(call: Call, error: GraphError) -> GraphError:
    """The error with the node named in front, if it is not named yet."""
    return error if str(error).startswith("ONNX ") else call.refuse(str(error))


def _computable(call: Call) -> bool:
    """Whether the results of a node with a rule are known now."""
    if call.op in CONTROL or call.op in RANDOM:
        return False
    items = [x for x in call.inputs if x is not None]
    return all(isinstance(x, Item) and x.concrete for x in items) and bool(items)


def _resolved(node: Any, scope: Scope) -> Any:
    """A node with its references to attributes of the enclosing function replaced by them."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    from onnx import NodeProto

    made = NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    made.attribute.extend(_resolved_attributes({a.name: a for a in node.attribute}, scope).values())
    return made


def _resolved_attributes(given: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    from onnx import AttributeProto

    made = {}
    for name, attribute in given.items():
        if not attribute.ref_attr_name:
            made[name] = attribute
        elif attribute.ref_attr_name in scope.attributes:
            made[name] = AttributeProto()
            made[name].CopyFrom(scope.attributes[attribute.ref_attr_name])
            made[name].name = name
    return made


def _dim(dim: Any, fallback: str) -> Dim:
    """A declared size: a number, an expression of symbols, or a symbol of its own where the model says nothing."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    text = dim.dim_param if dim.HasField("dim_param") else ""
    if text:
        try:
            return parse_dim(text)
        except GraphError:
            return sym(_identifier(text))
    return sym(_identifier(fallback))


def _identifier(text: str) -> str:
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in text)
    return plain if plain.isidentifier() and not iskeyword(plain) else f"size_{plain}"
