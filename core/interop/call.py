"""One ONNX node being imported: its inputs, its attributes, and the vocabulary that import rules are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import ops
from ..errors import GraphError
from ..ir.dim import Dim, Expr
from ..ir.dtype import DType, float32, int64
from ..ir.graph import Builder, Value
from .item import Item, Maybe, Series, Thing, of_array, of_value, sizes

Rule = Callable[["Call"], Any]
"""Puts one node into the graph and returns its results: values, items, arrays, or a tuple of these."""

RULES: dict[tuple[str, str], Rule] = {}
"""Import rules by domain (empty for the standard one) and op."""

INLINE = 16
"""Arrays of more elements become parameters instead of constants."""


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register an import rule for ops of a domain."""

    def register(function: Rule) -> Rule:
        for name in names:
            if (domain, name) in RULES:
                raise GraphError(f"two import rules for {name!r}")
            RULES[domain, name] = function
        return function

    return register


class Bodies(Protocol):
    """What control flow needs of the importer."""

    def run(self, graph: Any, arguments: Sequence[Thing], call: Call) -> list[Thing]:
        """Import the body of a node with the given arguments and return its outputs."""
        ...


@dataclass(slots=True)
class Target:
    """Where an import puts its graph: a builder, and the arrays of its parameters (None: everything is a constant)."""

    builder: Builder
    parameters: dict[str, NDArray[Any]] | None = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def value(self, item: Item) -> Value:
        """The value of an item in this graph, made when it is first asked for."""
        key = id(self.builder)
        if item.value is not None and item.value.builder is self.builder:
            return item.value
        if key not in item.views:
            item.views[key] = self._made(item)
        return item.views[key]

    def _made(self, item: Item) -> Value:
        assert item.known is not None
        if item.symbolic:
            return self._sizes(item.known, item.dtype)
        if item.known.ndim == 0:
            number = item.known.astype(np.float64).item() if item.dtype.is_float else item.known.item()
            if item.dtype.kind != "bool":
                return self.builder.constant(number, item.dtype)
        if self.parameters is None or item.known.size <= INLINE:
            return self.builder.constant(item.known, item.dtype)
        from ..ir.types import TensorType

        name = self.name(item.name or "weight")
        self.parameters[name] = item.known
        return self.builder.parameter(name, TensorType(item.dtype, tuple(item.known.shape)))

    def _sizes(self, known: NDArray[Any], dtype: DType) -> Value:
        shape = () if known.ndim == 0 else (1,)
        cells = [
            self.builder.call(ops.full, (), {"shape": shape, "value": d, "dtype": dtype}) for d in known.reshape(-1)
        ]
        if known.ndim == 0:
            value: Value = cells[0]
            return value
        joined = ops.concat(*cells, axis=0) if len(cells) > 1 else cells[0]
        made: Value = joined if known.ndim == 1 else ops.reshape(joined, shape=tuple(known.shape))
        return made

    def name(self, wanted: str) -> str:
        """A name that the text form of graphs can hold and that nothing else has."""
        plain = "".join("_" if c in " \t\n%,=(){}" else c for c in wanted) or "value"
        label, index = plain, 0
        while label in self.taken:
            index += 1
            label = f"{plain}_{index}"
        self.taken.add(label)
        return label


@dataclass(slots=True)
class Call:
    """One node: `op` of `domain` in an opset `version`, its inputs and attributes."""

    op: str
    domain: str
    name: str
    version: int
    inputs: Sequence[Thing]
    attributes: Mapping[str, Any]
    outputs: Sequence[str]
    target: Target
    bodies: Bodies

    # ----------------------------------------------------------------------------------------------------- inputs
    def refuse(self, reason: str) -> GraphError:
        """The error that this node cannot be imported, for the caller to raise."""
        return GraphError(f"{self.title}: {reason}")

    @property
    def title(self) -> str:
        """How messages call the node."""
        where = f"{self.domain}." if self.domain else ""
        return f"ONNX node {self.name!r} ({where}{self.op}, opset {self.version})"

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def item(self, index: int) -> Item:
        """An input that must be a tensor."""
        thing = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(thing, Maybe):
            thing = thing.content
        if isinstance(thing, Series):
            raise self.refuse(f"input {index} is a sequence; only tensors are supported there")
        if thing is None:
            raise self.refuse(f"input {index} is missing")
        return thing

    def x(self, index: int) -> Value:
        """An input as a value of the graph."""
        return self.target.value(self.item(index))

    def maybe(self, index: int) -> Value | None:
        """An optional input as a value of the graph."""
        return self.x(index) if self.has(index) else None

    def all(self) -> list[Value]:
        """All inputs as values of the graph."""
        return [self.x(i) for i in range(len(self.inputs))]

    def known(self, index: int, what: str) -> NDArray[Any]:
        """The elements of an input that decides about shapes; they may be sizes (an object array)."""
        item = self.item(index)
        if item.known is None:
            raise self.refuse(f"input {index} ({what}) must be known at import; give it in `specialise`")
        return item.known

    def numbers(self, index: int, what: str) -> NDArray[Any]:
        """As `known`, but numbers only."""
        known = self.known(index, what)
        if known.dtype == object:
            raise self.refuse(f"input {index} ({what}) must not depend on symbolic sizes: {known.tolist()}")
        return known

    def dims(self, index: int, what: str) -> list[Dim]:
        """The elements of a one-dimensional input of sizes."""
        return [d if isinstance(d, Expr) else int(d) for d in self.known(index, what).reshape(-1)]

    def axes(self, index: int | None, rank: int, attribute: str = "axes") -> list[int] | None:
        """Axes from an input (or an attribute, where older opsets have one), from the front; None if not given."""
        given = self.attributes.get(attribute)
        if given is None and index is not None and self.has(index):
            given = self.numbers(index, attribute).reshape(-1).tolist()
        if given is None:
            return None
        wrong = [a for a in given if not -rank <= a < rank]
        if wrong:
            raise self.refuse(f"axis {wrong[0]} is out of range for {rank} axes")
        return [int(a) % rank for a in given]

    # ------------------------------------------------------------------------------------------------- attributes
    def attr(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def choice(self, name: str, default: Any, *supported: Any) -> Any:
        """An attribute that must be one of some values."""
        value = self.attributes.get(name, default)
        if value not in supported:
            raise self.refuse(f"attribute {name} is {value!r}; supported: {', '.join(map(repr, supported))}")
        return value

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        axis = int(self.attributes.get(name, default))
        if not -rank <= axis < max(rank, 1):
            raise self.refuse(f"attribute {name} is {axis}, out of range for {rank} axes")
        return axis % rank if rank else 0

    def wants(self, index: int) -> bool:
        """Whether an optional output is used."""
        return index < len(self.outputs) and self.outputs[index] != ""

    # ------------------------------------------------------------------------------------------------- vocabulary
    def full(self, shape: Sequence[Dim], value: Any, dtype: DType) -> Value:
        made: Value = self.target.builder.call(ops.full, (), {"shape": tuple(shape), "value": value, "dtype": dtype})
        return made

    def arange(self, size: Dim, dtype: DType = int64) -> Value:
        made: Value = self.target.builder.call(ops.arange, (), {"size": size, "dtype": dtype})
        return made

    def constant(self, data: Any, dtype: DType | None = None) -> Value:
        """An array that the rule has made."""
        return self.target.value(of_array(np.asarray(data), dtype, name=f"{self.name or self.op}.table"))

    def scalar(self, size: Dim, dtype: DType) -> Value:
        """A number or a size as a tensor without axes."""
        return self.target.value(of_array(np.array(size, object if isinstance(size, Expr) else None), dtype))

    def sizes(self, dims: Sequence[Dim]) -> Item:
        return sizes(dims, int64)


def wide(x: Value) -> Value:
    """x in float32 if it is a narrower float."""
    made: Value = ops.cast(x, dtype=float32) if x.dtype.is_float and x.dtype.bits < 32 else x
    return made


def like(y: Value, x: Value | DType) -> Value:
    """y in the dtype of x."""
    dtype = x.dtype if isinstance(x, Value) else x
    made: Value = y if y.dtype is dtype else ops.cast(y, dtype=dtype)
    return made


def results(made: Any) -> list[Thing]:
    """What a rule returned, as things."""
    parts = made if isinstance(made, tuple) else (made,)
    return [of_value(p) if isinstance(p, Value) else of_array(p) if isinstance(p, np.ndarray) else p for p in parts]
