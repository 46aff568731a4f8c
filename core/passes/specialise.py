"""Give sizes their values: a graph for any number of tokens becomes one for exactly so many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ir.dim import Dim, Expr
from ..ir.graph import Builder, Graph, Value
from ..ir.op import results
from ..ir.substitution import substitute
from ..ir.types import TensorType


def specialise(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The same program with numbers in place of the sizes that `sizes` names.

    Raises:
        GraphError: two sizes that must be equal are not with these numbers.
    """
    builder = Builder(graph.name)
    image: dict[int, Value] = {}
    for value in graph.inputs:
        image[id(value)] = builder.input(value.name, _fixed_type(value.tensor, sizes))
    for value in graph.parameters:
        kind = _fixed_type(value.type, sizes) if isinstance(value.type, TensorType) else value.type
        image[id(value)] = builder.parameter(value.name, kind)  # type: ignore[arg-type]
    for state, _ in graph.states:
        image[id(state)] = builder.state(state.name, state.type)  # type: ignore[arg-type]
    for value in graph.constants:
        assert value.data is not None
        image[id(value)] = builder.constant(value.data, value.dtype, value.name)
    for node in graph.nodes:
        operands = [None if v is None else image[id(v)] for v in node.operands]
        attributes = {name: _fixed(value, sizes) for name, value in node.attributes.items()}
        made: Any = builder.call(node.op, operands, attributes)
        image.update(zip(map(id, node.results), results(made), strict=True))
    return builder.build(**{name: image[id(value)] for name, value in graph.outputs.items()})


def _fixed_type(kind: TensorType, sizes: Mapping[str, int]) -> TensorType:
    return TensorType(kind.dtype, tuple(substitute(dim, _dims(sizes)) for dim in kind.shape))


def _fixed(attribute: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(attribute, tuple):
        return tuple(_fixed(part, sizes) for part in attribute)
    return substitute(attribute, _dims(sizes)) if isinstance(attribute, Expr) else attribute


def _dims(sizes: Mapping[str, int]) -> dict[str, Dim]:
    return dict(sizes)
