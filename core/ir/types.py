"""The three kinds of value a graph computes with: tensors, read-only weights, and linear state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import GraphError
from .dim import Dim
from .dtype import DTYPES, DType, float32, int8


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense array of one element type; sizes may be symbolic."""

    dtype: DType
    shape: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class WeightType:
    """A read-only parameter of `shape` [rows, columns] (or [groups, rows, columns]) in a weight scheme.

    The layout belongs to the device. `scheme` names how the values are coded: a dense type ("float32") or a packed
    block format ("q4_k"); rows of several schemes are written "q4_k:576+q6_k:192".
    """

    shape: tuple[int, ...]
    scheme: str

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """(scheme, rows) of each run of rows, top to bottom, counted over all groups."""
        return parse_parts(self.scheme, math.prod(self.shape[:-1]))

    def __str__(self) -> str:
        return f"weight<{self.scheme}>[{', '.join(map(str, self.shape))}]"


def parse_parts(scheme: str, rows: int) -> tuple[tuple[str, int], ...]:
    """Split a scheme such as "q4_k:576+q6_k:192" into its runs of rows; GraphError if they do not add up to `rows`."""
    if "+" not in scheme and ":" not in scheme:
        return ((scheme, rows),)
    try:
        parts = tuple((name, int(count)) for name, count in (part.split(":") for part in scheme.split("+")))
    except ValueError:
        raise GraphError(f"weight scheme {scheme!r} is malformed; write 'name' or 'name:rows+name:rows'") from None
    if sum(count for _, count in parts) != rows:
        raise GraphError(f"weight scheme {scheme!r} covers {sum(c for _, c in parts)} rows, the weight has {rows}")
    return parts


@dataclass(frozen=True, slots=True)
class StatePart:
    """One tensor of a state: [blocks, block_size, *shape] of a paged one, [slots, *shape] of one per sequence."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class StateType:
    """Memory that lives across steps. It is linear: every write consumes the state and returns it.

    Kinds: `paged_kv` (heads, k_dim, v_dim, scheme), `paged_latent` (dim, rope_dim, scheme) and `sequence_state` (shape,
    dtype). How many blocks there are, and of what size, is decided when an executable allocates the state.
    """

    kind: str
    spec: tuple[tuple[str, Any], ...]

    def __getitem__(self, key: str) -> Any:
        for name, value in self.spec:
            if name == key:
                return value
        raise GraphError(f"state {self.kind!r} has no field {key!r}; it has {', '.join(n for n, _ in self.spec)}")

    @property
    def paged(self) -> bool:
        """It has blocks of tokens; else a slot per sequence."""
        return self.kind in ("paged_kv", "paged_latent")

    @property
    def quantized(self) -> bool:
        """It holds int8 codes with a scale per token and head."""
        return self.kind == "paged_kv" and self["scheme"] == int8.name

    @property
    def parts(self) -> tuple[StatePart, ...]:
        """The tensors that it consists of, in the order and by the names of the tuple that references see.

        Raises:
            GraphError: nobody knows states of this kind, or in this scheme.
        """
        coding = self["dtype" if self.kind == "sequence_state" else "scheme"]
        kind = DTYPES.get(coding)
        if self.quantized:
            heads = self["heads"]
            codes = [StatePart(name, (heads, self[f"{name}_dim"]), int8) for name in "kv"]
            return (*codes, *(StatePart(f"{name}_scale", (heads,), float32) for name in "kv"))
        if kind is None or not kind.is_float:
            raise GraphError(f"a {self.kind} state cannot hold {coding!r}; name a float dtype, or int8 for paged_kv")
        if self.kind == "paged_kv":
            return tuple(StatePart(name, (self["heads"], self[f"{name}_dim"]), kind) for name in "kv")
        if self.kind == "paged_latent":
            return StatePart("latent", (self["dim"],), kind), StatePart("rope", (self["rope_dim"],), kind)
        if self.kind == "sequence_state":
            return (StatePart("data", tuple(self["shape"]), kind),)
        raise GraphError(f"there are no states of kind {self.kind!r}")

    def __str__(self) -> str:
        fields = "".join(f" {name}={_spell(value)}" for name, value in self.spec)
        return f"state<{self.kind}{fields}>"


def _spell(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def paged_kv(heads: int, k_dim: int, v_dim: int, scheme: str) -> StateType:
    """Keys and values per token in blocks.

    k is [blocks, block_size, heads, k_dim], v [blocks, block_size, heads, v_dim]. The scheme is a float dtype, or
    "int8": codes from -127 to 127 with a float32 scale per token and head, [blocks, block_size, heads].
    """
    return StateType("paged_kv", (("heads", heads), ("k_dim", k_dim), ("v_dim", v_dim), ("scheme", scheme)))


def paged_latent(dim: int, rope_dim: int, scheme: str) -> StateType:
    """One latent and one rotary key per token in blocks, for multi-head latent attention."""
    return StateType("paged_latent", (("dim", dim), ("rope_dim", rope_dim), ("scheme", scheme)))


def sequence_state(shape: Sequence[int], dtype: DType) -> StateType:
    """A fixed-size state per sequence, for linear attention and convolutions."""
    return StateType("sequence_state", (("shape", tuple(shape)), ("dtype", dtype.name)))


Type = TensorType | WeightType | StateType
