"""What a node of a graph has to do at least: operations, and bytes of weights, cache and activations.

Everything follows from the types in the graph and the sizes of a step. A multiplication and an addition are two
operations. Of experts and looked-up rows only what is touched counts as read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from xinheng.core.errors import GraphError
from xinheng.core.ir import Graph, Node, StateType, TensorType, Value, WeightType
from xinheng.core.ir.evaluate import resolve
from xinheng.core.schemes import scheme


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations by the element type they can be done in at best, and bytes."""

    operations: float = 0.0
    kind: str = "float32"
    weights: float = 0.0
    cache: float = 0.0
    activations: float = 0.0

    @property
    def nbytes(self) -> float:
        return self.weights + self.cache + self.activations


@dataclass(frozen=True, slots=True)
class Step:
    """The sizes of a step: how many queries each sequence has, and how long it is with them."""

    queries: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.queries)

    def sizes(self, graph: Graph, block_size: int) -> dict[str, int]:
        """Values of the symbols of a graph of the engine."""
        count, blocks = len(self.queries), -(-max(self.lengths) // block_size)
        known = {"tokens": self.tokens, "seqs": count, "rows": count}
        return {name: known.get(name, blocks) for name in graph.symbols()}

    def pairs(self, window: int | None) -> float:
        """Queries times the keys that each sees, over all sequences."""
        total = 0.0
        for count, length in zip(self.queries, self.lengths, strict=True):
            seen = np.arange(length - count + 1, length + 1)
            total += float(np.minimum(seen, window or length).sum())
        return total

    def keys(self, window: int | None) -> int:
        """Keys that are read at least, over all sequences."""
        pairs = zip(self.queries, self.lengths, strict=True)
        return sum(min(length, length if window is None else window + count - 1) for count, length in pairs)


def cost(node: Node, step: Step, sizes: Mapping[str, int], fast: bool) -> Cost | None:
    """What a node costs in a step; None where a size is known only when it runs. `fast` admits int8 products."""
    try:
        rule = _RULES.get(node.op.name, _elementwise)
        return rule(node, _Sizes(step, sizes, fast))
    except (GraphError, KeyError):
        return None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What rules ask of a step."""

    step: Step
    named: Mapping[str, int]
    fast: bool

    def shape(self, value: Value) -> tuple[int, ...]:
        shape: tuple[int, ...] = resolve(value.shape, self.named)
        return shape

    def elements(self, value: Value | None) -> int:
        return prod(self.shape(value)) if value is not None and isinstance(value.type, TensorType) else 0

    def nbytes(self, values: Iterable[Value | None]) -> float:
        tensors = (value for value in values if value is not None and isinstance(value.type, TensorType))
        return sum(self.elements(value) * value.dtype.bits / 8 for value in tensors)

    def activations(self, node: Node) -> float:
        return self.nbytes((*node.operands, *node.results))

    def kind(self, weight: WeightType) -> str:
        """What products with a weight can be done in: integers if the mode admits them and its codes are such."""
        dense = [scheme(name).dense for name, _ in weight.parts]
        if not self.fast:
            return "float32"
        if all(kind is None or kind.kind == "int" for kind in dense):
            return "int8"
        return "bfloat16" if all(kind is not None and kind.name == "bfloat16" for kind in dense) else "float32"


def weight_bytes(weight: WeightType) -> int:
    """Bytes of a weight as it is stored."""
    return sum(rows * scheme(name).row_bytes(weight.shape[-1]) for name, rows in weight.parts)


def _given(node: Node, name: str) -> Value:
    value = node.operand(name)
    if value is None:
        raise GraphError(f"{node.op.name} without {name}")
    return value


def _weight(node: Node, name: str = "weight") -> WeightType:
    kind = _given(node, name).type
    if not isinstance(kind, WeightType):
        raise GraphError(f"{name} of {node.op.name} is {kind}, not a weight")
    return kind


def _elementwise(node: Node, sizes: _Sizes) -> Cost:
    """One operation per element that is read or made."""
    most = max((sizes.elements(value) for value in (*node.operands, *node.results)), default=0)
    return Cost(most, activations=sizes.activations(node))


def _view(node: Node, sizes: _Sizes) -> Cost:
    return Cost()


def _product(node: Node, sizes: _Sizes) -> Cost:
    """x times a matrix, or a matrix per head."""
    weight, x = _weight(node), _given(node, "x")
    rows = prod(sizes.shape(x)[:-1]) // (weight.shape[0] if len(weight.shape) == 3 else 1)
    done = 2.0 * rows * prod(weight.shape)
    return Cost(done, sizes.kind(weight), weight_bytes(weight), activations=sizes.activations(node))


def _grouped(node: Node, sizes: _Sizes) -> Cost:
    """Rows times the matrix of their group; no more groups are touched than there are rows."""
    weight = _weight(node)
    rows = sizes.shape(_given(node, "x"))[0]
    return _experts(node, sizes, rows, (weight,))


def _fused_moe(node: Node, sizes: _Sizes) -> Cost:
    rows = prod(sizes.shape(_given(node, "experts")))
    return _experts(node, sizes, rows, [_weight(node, name) for name in ("gate", "up", "down")])


def _experts(node: Node, sizes: _Sizes, rows: int, weights: Sequence[WeightType]) -> Cost:
    done = sum(2.0 * rows * prod(weight.shape[1:]) for weight in weights)
    read = sum(weight_bytes(weight) * min(1.0, rows / weight.shape[0]) for weight in weights)
    return Cost(done, sizes.kind(weights[0]), read, activations=sizes.activations(node))


def _embedding(node: Node, sizes: _Sizes) -> Cost:
    weight, rows = _weight(node), sizes.elements(_given(node, "indices"))
    read = weight_bytes(weight) / weight.shape[0] * rows
    return Cost(sizes.elements(node.results[0]), weights=read, activations=sizes.activations(node))


def _matmul(node: Node, sizes: _Sizes) -> Cost:
    inner = sizes.shape(node.operands[0])[-1] if node.operands[0] is not None else 0
    return Cost(2.0 * sizes.elements(node.results[0]) * inner, activations=sizes.activations(node))


def _attention(node: Node, sizes: _Sizes) -> Cost:
    """Products of queries and keys, and of what they weigh and the values."""
    state = _given(node, "cache").type
    assert isinstance(state, StateType)
    window = node.attributes.get("window")
    heads = sizes.shape(node.results[0])[1]
    latent = state.kind == "paged_latent"
    widths = (state["dim"] + state["rope_dim"], state["dim"]) if latent else (state["k_dim"], state["v_dim"])
    done = 2.0 * heads * sum(widths) * sizes.step.pairs(window)
    row = sum(math.prod(part.shape) * part.dtype.bits / 8 for part in state.parts)
    read = sizes.step.keys(window) * row
    return Cost(done, cache=read, activations=sizes.activations(node))


_RULES: dict[str, Callable[[Node, _Sizes], Cost]] = {
    "batched_linear": _product,
    "embedding": _embedding,
    "fused_moe": _fused_moe,
    "grouped_linear": _grouped,
    "linear": _product,
    "matmul": _matmul,
    "matmul_all_reduce": _product,
    "mla_attention": _attention,
    "paged_attention": _attention,
    "reshape": _view,
}
