"""The float64 oracle: run a graph by the references of its ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import GraphError
from .dim import Check, Dim, Expr, Symbol, symbols
from .dim import evaluate as evaluate_dim
from .dtype import DTYPES
from .graph import Graph, Node, Value
from .types import TensorType

Visitor = Callable[[Node, tuple[Any, ...]], tuple[Any, ...]]


def bind_sizes(
    graph: Graph,
    inputs: Mapping[str, Any],
    known: Mapping[str, int] | None = None,
    shape: Callable[[Any], tuple[int, ...]] = np.shape,
) -> dict[str, int]:
    """The size of each symbol from the shapes of the inputs; `known` are sizes that the caller knows already.

    Raises:
        GraphError: an input is missing, has another rank, two inputs disagree on a size, or one exceeds its maximum.
    """
    sizes: dict[str, int] = dict(known or {})
    deferred: list[tuple[Dim, int, str]] = []
    for value in graph.inputs:
        if value.name not in inputs:
            raise GraphError(f"graph {graph.name!r}: input {value.name!r} is missing")
        actual = shape(inputs[value.name])
        if len(actual) != len(value.shape):
            raise GraphError(f"input {value.name!r} has shape {list(actual)}, the graph wants {value.type}")
        for dim, size in zip(value.shape, actual, strict=True):
            if isinstance(dim, Expr) and dim.is_atom and isinstance(symbol := dim.terms[0][0][0], Symbol):
                if symbol.maximum is not None and size > symbol.maximum:
                    raise GraphError(f"input {value.name!r}: {symbol.name} is {size}, its maximum is {symbol.maximum}")
                if sizes.setdefault(symbol.name, size) != size:
                    raise GraphError(
                        f"input {value.name!r}: {symbol.name} is {size} here and {sizes[symbol.name]} elsewhere"
                    )
            else:
                deferred.append((dim, size, value.name))
    for dim, size, name in deferred:
        _solve(dim, size, sizes)
        if evaluate_dim(dim, sizes) != size:
            raise GraphError(f"input {name!r}: size {dim} should be {evaluate_dim(dim, sizes)}, but is {size}")
    return sizes


def _solve(dim: Dim, size: int, sizes: dict[str, int]) -> None:
    """Learn a symbol that only occurs in a size such as `seqs + 1`, where that is c * symbol + d."""
    if not isinstance(dim, Expr) or len({*symbols(dim)}) != 1:
        return
    atoms = [(m[0], c) for m, c in dim.terms if len(m) == 1]
    if len(atoms) != 1 or len(dim.terms) > 2 or not isinstance(symbol := atoms[0][0], Symbol) or symbol.name in sizes:
        return
    offset = sum(c for m, c in dim.terms if not m)
    value, rest = divmod(size - offset, atoms[0][1])
    if not rest and value >= 0:
        sizes[symbol.name] = value


def check_sizes(checks: Iterable[Check], sizes: Mapping[str, int]) -> tuple[Check, ...]:
    """Test equalities of sizes that were left to run time; returns those on sizes that are not known yet.

    Raises:
        GraphError: two sizes differ; the message has the reason why they must not.
    """
    waiting = []
    for check in checks:
        if any(s.name not in sizes for dim in (check.left, check.right) for s in symbols(dim)):
            waiting.append(check)
            continue
        left, right = evaluate_dim(check.left, sizes), evaluate_dim(check.right, sizes)
        if left != right:
            raise GraphError(f"{check.reason}: {check.left} is {left}, {check.right} is {right}")
    return tuple(waiting)


def resolve(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute with its symbolic sizes replaced by numbers."""
    if isinstance(value, Expr):
        return evaluate_dim(value, sizes)
    if isinstance(value, tuple):
        return tuple(resolve(v, sizes) for v in value)
    return value


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Any],
    parameters: Mapping[str, Any] | None = None,
    states: Mapping[str, Any] | None = None,
    visit: Visitor | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run `graph` in float64; returns its outputs and its final states by name.

    Inputs and tensor parameters are arrays (or operands that carry error bounds); weights are arrays of their values;
    states are the named tuples of their kind. `visit` sees and may replace the results of each node.

    Raises:
        GraphError: a value is missing or a size does not fit.
    """
    sizes = bind_sizes(graph, inputs)
    waiting = check_sizes(graph.checks, sizes)
    live: dict[int, Any] = {}
    for values, given, what in (
        (graph.inputs, inputs, "input"),
        (graph.parameters, parameters or {}, "parameter"),
        (tuple(s for s, _ in graph.states), states or {}, "state"),
    ):
        for value in values:
            if value.name not in given:
                raise GraphError(f"graph {graph.name!r}: {what} {value.name!r} is missing")
            live[id(value)] = widen(given[value.name])
    for value in graph.constants:
        live[id(value)] = widen(value.data)
    for node in graph.nodes:
        operands = tuple(None if v is None else live[id(v)] for v in node.operands)
        attributes = {k: resolve(v, sizes) for k, v in node.attributes.items()}
        with np.errstate(all="ignore"):
            raw = node.op.reference(*operands, **attributes)
        produced = raw if isinstance(raw, tuple) and not hasattr(raw, "_fields") else (raw,)
        if visit is not None:
            produced = visit(node, produced)
        for value, result in zip(node.results, produced, strict=True):
            bind_unbacked(value, np.shape(result) if isinstance(value.type, TensorType) else (), sizes)
            live[id(value)] = result
        waiting = waiting and check_sizes(waiting, sizes)
    if waiting:
        raise GraphError(f"{waiting[0].reason}: no input and no op tells {waiting[0].left} or {waiting[0].right}")
    return (
        {name: live[id(value)] for name, value in graph.outputs.items()},
        {state.name: live[id(final)] for state, final in graph.states},
    )


def bind_unbacked(value: Value, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Learn the sizes that only the op that made `value` knew; GraphError if they contradict what is known."""
    if not isinstance(value.type, TensorType):
        return
    for dim, size in zip(value.shape, shape, strict=True):
        for symbol in symbols(dim) if isinstance(dim, Expr) and dim.is_atom else ():
            if symbol.unbacked and symbol.maximum is not None and size > symbol.maximum:
                raise GraphError(f"%{value.name}: {symbol.name} is {size}, its maximum is {symbol.maximum}")
            if symbol.unbacked and sizes.setdefault(symbol.name, size) != size:
                raise GraphError(f"%{value.name}: {symbol.name} is {size} here and {sizes[symbol.name]} elsewhere")


def widen(data: Any) -> Any:
    """Float arrays, those of a state too, as float64; everything else as it is. A scalar stays a Python number."""
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(widen, data))
    if isinstance(data, np.ndarray) and data.dtype.name in DTYPES and DTYPES[data.dtype.name].is_float:
        return data.astype(np.float64)
    return data
