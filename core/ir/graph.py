"""Graphs: immutable SSA programs, and the builder that makes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from .dim import Check, Dim, Expr, Symbol, symbols
from .dtype import DType, cast_to, from_numpy
from .op import Inferred, Op
from .types import StateType, TensorType, Type, WeightType


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One value of a graph. `kind` is input, parameter, state, constant or result (of a node).

    `data` holds a constant: a Python number for a scalar, which a kernel may keep in its own compute format, or an
    array.
    """

    name: str
    type: Type
    kind: str
    builder: Builder = field(repr=False)
    data: float | int | NDArray[Any] | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def tensor(self) -> TensorType:
        """The type as a tensor type; GraphError if the value is a weight or a state."""
        if not isinstance(self.type, TensorType):
            raise GraphError(f"value %{self.name} is {self.type}, not a tensor")
        return self.type


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One application of an op."""

    op: Op[..., Any]
    operands: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    results: tuple[Value, ...]

    def operand(self, name: str) -> Value | None:
        """The operand called `name`, or None if it is absent."""
        for declared, value in zip(self.op.operands, self.operands, strict=False):
            if declared.name == name:
                return value
        raise GraphError(f"op {self.op.name!r} has no operand {name!r}")


@dataclass(frozen=True, eq=False)
class Graph:
    """A program: roots (inputs, parameters, states, constants), nodes in order, named outputs.

    `states` pairs each state with the value that holds it after the last write; `checks` are the equalities of sizes
    that have to be tested when the graph runs.
    """

    name: str
    inputs: tuple[Value, ...]
    parameters: tuple[Value, ...]
    states: tuple[tuple[Value, Value], ...]
    constants: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, Value]
    checks: tuple[Check, ...] = ()

    def __str__(self) -> str:
        from .text import print_graph

        return print_graph(self)

    def symbols(self) -> dict[str, Symbol]:
        """All symbols by name; GraphError if one name is declared in two ways."""
        found: dict[str, Symbol] = {}
        for dim in self._dims():
            for symbol in symbols(dim):
                known = found.setdefault(symbol.name, symbol)
                if (known.maximum, known.unbacked) != (symbol.maximum, symbol.unbacked):
                    raise GraphError(f"graph {self.name!r}: size {symbol.name!r} is declared in two ways")
        return found

    def _dims(self) -> Iterator[Dim]:
        for value in self.values():
            yield from value.type.shape if isinstance(value.type, TensorType) else ()
        for node in self.nodes:
            for attribute in node.attributes.values():
                for dim in attribute if isinstance(attribute, tuple) else (attribute,):
                    if isinstance(dim, Expr):
                        yield dim
        for check in self.checks:
            yield from (check.left, check.right)

    def values(self) -> Iterator[Value]:
        """Every value in order of definition."""
        yield from self.inputs
        yield from self.parameters
        yield from (state for state, _ in self.states)
        yield from self.constants
        for node in self.nodes:
            yield from node.results


def sizes_of(types: Sequence[Type]) -> Iterator[str]:
    """The names of the symbols in the shapes of tensors."""
    for kind in types:
        for dim in kind.shape if isinstance(kind, TensorType) else ():
            yield from (symbol.name for symbol in symbols(dim))


_NAME = re.compile(r"[^\s%,=(){}]+")


def _checked(name: str, what: str) -> str:
    """A name that the text form can hold."""
    if not _NAME.fullmatch(name):
        raise GraphError(f"{what} name {name!r} must not be empty or contain spaces or any of % , = ( ) {{ }}")
    return name


class Builder:
    """Collects the values and nodes of one graph."""

    def __init__(self, name: str = "graph") -> None:
        self.name = _checked(name, "graph")
        self._roots: dict[str, list[Value]] = {"input": [], "parameter": [], "state": [], "constant": []}
        self._nodes: list[Node] = []
        self._names: set[str] = set()
        self._scalars: dict[tuple[str, DType], Value] = {}
        self._latest: dict[int, Value] = {}
        self._state_root: dict[int, int] = {}
        self._checks: dict[Check, None] = {}
        self._sizes: set[str] = set()
        self._counter = 0
        self._inferred: dict[Any, Inferred] = {}

    def _unique(self, name: str | None) -> str:
        if name is not None:
            if _checked(name, "value") in self._names:
                raise GraphError(f"graph {self.name!r} has two values called {name!r}")
        else:
            name = str(self._counter)
            while name in self._names:
                self._counter += 1
                name = str(self._counter)
        self._names.add(name)
        return name

    def _root(self, kind: str, name: str | None, type: Type, data: Any = None) -> Value:
        value = Value(self._unique(name), type, kind, self, data)
        self._sizes.update(sizes_of((type,)))
        self._roots[kind].append(value)
        return value

    def input(self, name: str, type: TensorType) -> Value:
        """A tensor given at each run."""
        return self._root("input", name, type)

    def parameter(self, name: str, type: TensorType | WeightType) -> Value:
        """A tensor or weight bound once."""
        return self._root("parameter", name, type)

    def state(self, name: str, type: StateType) -> Value:
        """Memory bound once and changed by runs."""
        value = self._root("state", name, type)
        self._latest[id(value)] = value
        self._state_root[id(value)] = id(value)
        return value

    def constant(self, data: float | int | NDArray[Any], dtype: DType | None = None, name: str | None = None) -> Value:
        """A number or an array known now, which is copied; `dtype` defaults to that of the array."""
        if isinstance(data, int | float):
            if dtype is None:
                raise GraphError("a scalar constant needs a dtype")
            if dtype.is_float:
                data = float(data)
            elif not float(data).is_integer():
                raise GraphError(f"constant {data} is not an integer, but its dtype is {dtype}")
            else:
                data = int(data)
            made = self._root("constant", name or self._unique_constant(), TensorType(dtype, ()), data)
            self._scalars.setdefault((repr(data), dtype), made)
            return made
        array = np.asarray(data)
        dtype = dtype or from_numpy(array.dtype)
        if array.dtype != dtype.numpy:
            array = cast_to(array, dtype)
        if array is data and (array.flags.writeable or not array.flags.c_contiguous):
            array = np.array(data, order="C")
        array.flags.writeable = False
        kind = TensorType(dtype, tuple(array.shape))
        return self._root("constant", name or self._unique_constant(), kind, array)

    def _unique_constant(self) -> str:
        index = len(self._roots["constant"])
        while f"c{index}" in self._names:
            index += 1
        return f"c{index}"

    def call(self, op: Op[..., Any], operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Add a node; the result is a value, or a tuple of values where the op has several results.

        Numbers among the operands become constants of the dtype of the first tensor operand that is not bool.
        """
        results = self.call_named(op, operands, attributes, None)
        return results[0] if len(results) == 1 else results

    def call_named(
        self, op: Op[..., Any], operands: Sequence[Any], attributes: Mapping[str, Any], names: Sequence[str] | None
    ) -> tuple[Value, ...]:
        """Add a node whose results have the given names, or fresh ones for None."""
        if not (op.operands and op.operands[-1].variadic):
            operands = [*operands, *(None for o in op.operands[len(operands) :] if o.optional)]
        values = self._values(op, operands)
        attrs = op.normalise(attributes)
        types = tuple(None if v is None else v.type for v in values)
        op.check_operands(types)
        result_types, checks = op.inferred(types, attrs, self._namer(), self._inferred)
        self._sizes.update(sizes_of(result_types))
        self._checks.update(dict.fromkeys(checks))
        if names is not None and len(names) != len(result_types):
            raise GraphError(f"{op.name} has {len(result_types)} results, {len(names)} names are given")
        labels: Sequence[str | None] = [None] * len(result_types) if names is None else names
        results = tuple(
            Value(self._unique(label), t, "result", self) for label, t in zip(labels, result_types, strict=True)
        )
        self._thread_states(op, values, results)
        self._nodes.append(Node(op, values, MappingProxyType(attrs), results))
        return results

    def _namer(self) -> Callable[[str], str]:
        """For the infer rule of one node: sizes that only a run will tell, under names that the graph does not have."""
        made: dict[str, str] = {}

        def name(wanted: str) -> str:
            if wanted not in made:
                label, index = wanted, 0
                while label in self._sizes or label in made.values():
                    index += 1
                    label = f"{wanted}_{index}"
                made[wanted] = label
            return made[wanted]

        return name

    def _values(self, op: Op[..., Any], operands: Sequence[Any]) -> tuple[Value | None, ...]:
        kinds = [o.type.dtype for o in operands if isinstance(o, Value) and isinstance(o.type, TensorType)]
        kind = next((k for k in kinds if k.kind != "bool"), kinds[0] if kinds else None)
        values: list[Value | None] = []
        for operand in operands:
            if isinstance(operand, np.generic):
                operand = operand.item()
            if isinstance(operand, int | float) and not isinstance(operand, bool):
                operand = self._scalar(operand, kind)
            if operand is not None and not isinstance(operand, Value):
                raise GraphError(f"{op.name}: operand {operand!r} is not a value of a graph")
            if operand is not None and operand.builder is not self:
                raise GraphError(f"{op.name}: value %{operand.name} belongs to graph {operand.builder.name!r}")
            values.append(operand)
        return tuple(values)

    def _scalar(self, number: float | int, dtype: DType | None) -> Value:
        """The constant of a number; the same one as before where there is one."""
        if dtype is None:
            raise GraphError("a number among the operands needs a tensor beside it to take its dtype from")
        written = repr(float(number) if dtype.is_float else number)
        return self._scalars.get((written, dtype)) or self.constant(number, dtype)

    def _thread_states(self, op: Op[..., Any], values: Sequence[Value | None], results: Sequence[Value]) -> None:
        """State results are the new versions of the state operands, in the same order; an op writes all or none."""
        consumed = [v for v in values if v is not None and isinstance(v.type, StateType)]
        for value in consumed:
            if self._latest[self._state_root[id(value)]] is not value:
                raise GraphError(
                    f"{op.name}: state %{value.name} was already written; use the state that write returned"
                )
        written = [r for r in results if isinstance(r.type, StateType)]
        if written and [v.type for v in written] != [v.type for v in consumed]:
            raise GraphError(
                f"{op.name}: returns {len(written)} states for {len(consumed)}; it must return all it takes"
            )
        for before, after in zip(consumed, written, strict=False):
            root = self._state_root[id(before)]
            self._state_root[id(after)] = root
            self._latest[root] = after

    def build(self, *outputs: Value, **named: Value) -> Graph:
        """Finish: positional outputs are called out0, out1, …"""
        all_outputs = {f"out{i}": value for i, value in enumerate(outputs)}
        for name, value in named.items():
            if name in all_outputs:
                raise GraphError(f"graph {self.name!r} has two outputs called {name!r}")
            all_outputs[_checked(name, "output")] = value
        states = tuple((state, self._latest[id(state)]) for state in self._roots["state"])
        return Graph(
            self.name,
            tuple(self._roots["input"]),
            tuple(self._roots["parameter"]),
            states,
            tuple(self._roots["constant"]),
            tuple(self._nodes),
            MappingProxyType(all_outputs),
            tuple(self._checks),
        )
