"""Operands of sample calls, as the tables in `cases` write them, and how they become types, values and weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xinheng.core.ir import DType, TensorType, paged_kv, paged_latent, sequence_state
from xinheng.core.ir.dtype import bool_, cast_to, float32, int8, int32, round_to
from xinheng.core.ir.types import StateType
from xinheng.core.ops import KVPages, LatentPages, QuantizedKVPages, SequenceSlots, state_of
from xinheng.core.ops.attention import quantized
from xinheng.core.ops.states import Held
from xinheng.core.schemes import scheme

from .draw import DISTRIBUTIONS, Shape, Stream, stream
from .weights import coded, packed


@dataclass(frozen=True)
class Drawn:
    """A float tensor of the case's dtype and distribution, as scale * x + shift; or always of distribution `fixed`.

    `magnitude` takes the absolute values, for functions of numbers that are not negative.
    """

    shape: Shape
    scale: float = 1.0
    shift: float = 0.0
    fixed: str | None = None
    magnitude: bool = False

    def values(self, key: tuple[object, ...], data: str) -> NDArray[np.float64]:
        """The numbers of this operand; `key` tells the streams of operands and cases apart."""
        chosen = DISTRIBUTIONS[self.fixed or data] if (self.fixed or data) in DISTRIBUTIONS else DISTRIBUTIONS["normal"]
        x = self.scale * chosen.draw(stream(*key), self.shape) + self.shift
        return np.abs(x) if self.magnitude else x


@dataclass(frozen=True)
class Special:
    """The special values of the dtype the case runs in, as `layout` arranges the vector of them."""

    layout: Callable[[NDArray[np.float64]], NDArray[np.float64]]

    @property
    def shape(self) -> Shape:
        return self.layout(special_values(float32)).shape


@dataclass(frozen=True)
class Patterns:
    """Numbers [count] of the dtype the case runs in by their bits: one of each of `count` equal parts of all codes.

    A `count` of as many as there are takes each of them; it is a power of two.
    """

    count: int

    @property
    def shape(self) -> Shape:
        return (self.count,)

    def values(self, kind: DType, key: tuple[object, ...]) -> NDArray[np.float64]:
        """The numbers of this operand; `key` tells the streams of operands and cases apart."""
        codes = 1 << kind.bits
        parts, random = min(self.count, codes), stream(*key)
        within = random.integers(0, codes // parts, self.count).astype(np.uint64)
        first = np.arange(self.count, dtype=np.uint64) % np.uint64(parts) * np.uint64(codes // parts)
        chosen = random.permutation(first + within).astype(f"uint{kind.bits}")
        with np.errstate(invalid="ignore"):
            return chosen.view(kind.numpy).astype(np.float64)


@dataclass(frozen=True)
class F:
    """A float tensor of given numbers, of whatever float dtype the case runs in."""

    data: NDArray[Any]


@dataclass(frozen=True)
class T:
    """A tensor of a fixed dtype."""

    data: NDArray[Any]
    dtype: DType


@dataclass(frozen=True)
class Normal:
    """Normal numbers that are drawn when a case is run: those of large weights would slow down every import."""

    shape: Shape
    seed: tuple[object, ...]

    def values(self) -> NDArray[np.float64]:
        return rng(*self.seed).normal(0, 1, self.shape)


@dataclass(frozen=True)
class W:
    """A weight [rows, columns] or [groups, rows, columns] whose rows are coded in `parts` (scheme, rows)."""

    data: NDArray[Any] | Normal
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Coded:
    """A weight [rows, columns] or [groups, rows, columns] of random codes, of which every one occurs."""

    shape: Shape
    scheme: str


@dataclass(frozen=True)
class KV:
    """A paged cache; it is kept in the dtype the case runs in, or as `quantized` int8."""

    k: NDArray[Any]
    v: NDArray[Any]
    quantized: bool = False


@dataclass(frozen=True)
class Latent:
    """A paged latent cache; it is kept in the dtype the case runs in."""

    latent: NDArray[Any]
    rope: NDArray[Any]


@dataclass(frozen=True)
class Slots:
    """A state per sequence, [slots, ...]; it is kept in `dtype`, or in the dtype the case runs in."""

    data: NDArray[Any]
    dtype: DType | None = None


MOVING = (Drawn, Special, Patterns, F, KV, Latent)
"""Operands whose numbers follow the dtype of the case."""


class Float:
    """Stands in an attribute for the dtype the case runs in."""


FLOAT: Any = Float()


def rng(*seed: object) -> Stream:
    """Random numbers that depend on the arguments only."""
    return stream("given", *seed)


def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Drawn:
    """Numbers of the case's distribution, by default normal."""
    return Drawn(shape, scale, shift)


def gain(*shape: int, scale: float = 1.0, shift: float = 1.0) -> Drawn:
    """Normal numbers around one in every distribution: weights of norms and the like."""
    return Drawn(shape, scale, shift, "normal")


def positive(*shape: int) -> Drawn:
    """Numbers between 0.1 and 4 in every distribution."""
    return Drawn(shape, 0.39, 2.05, "uniform")


def magnitude(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Drawn:
    """The absolute values of numbers of the case's distribution."""
    return Drawn(shape, scale, shift, magnitude=True)


def special_values(kind: DType) -> NDArray[np.float64]:
    """Zeros, subnormals, the ends of the normal range, neighbours of one, infinities and NaN of a float type [21]."""
    step = math.ldexp(1.0, kind.emin - kind.precision + 1)
    positive = [0.0, step, kind.smallest_normal - step, kind.smallest_normal, 0.5, 1.0, 1.0 + 2 * kind.unit_roundoff]
    positive += [2.5, kind.largest, np.inf]
    return np.array([sign * x for sign in (1.0, -1.0) for x in positive] + [np.nan])


def specials() -> Special:
    """The special values of the case's dtype [21]."""
    return Special(np.copy)


def special_pair(place: int) -> Special:
    """The first or the second (`place` 0 or 1) of all pairs of special values [441]."""
    return Special(lambda s: np.repeat(s, s.size) if place == 0 else np.tile(s, s.size))


def special_rows(width: int) -> Special:
    """Rows with special values [63, width]: each one among ordinary numbers, filling a row, and with changing sign."""

    def layout(s: NDArray[np.float64]) -> NDArray[np.float64]:
        row, column = np.ogrid[: s.size, :width]
        among = np.where(column == (5 * row + 3) % width, s[:, None], ((row + 7 * column) % 11 - 5) / 4)
        return np.concatenate([among, np.tile(s[:, None], width), s[:, None] * np.where(column % 2, -1.0, 1.0)])

    return Special(layout)


def special_columns(height: int) -> Special:
    """`special_rows` lying on their sides [height, 63]."""
    rows = special_rows(height)
    return Special(lambda s: np.ascontiguousarray(rows.layout(s).T))


def floats(values: ArrayLike) -> F:
    return F(np.array(values, np.float64))


def ints(values: ArrayLike, dtype: DType = int32) -> T:
    return T(np.array(values), dtype)


def bools(values: ArrayLike) -> T:
    return T(np.array(values, bool), bool_)


def shape_of(x: Any) -> Shape | None:
    """The sizes of an operand; None for one that is no tensor, weight or state."""
    if isinstance(x, Drawn | Special | Patterns | Coded):
        return x.shape
    return x.data.shape if isinstance(x, F | T | W | Slots) else x.k.shape if isinstance(x, KV) else None


def realise(x: Any, kind: DType, name: str, key: tuple[object, ...], data: str) -> tuple[Any, Any, Any]:
    """Type, value and source of an operand: a representable value, and a source if it is a weight."""
    match x:
        case Drawn():
            return TensorType(kind, x.shape), round_to(x.values((*key, name), data), kind), None
        case Special(layout):
            return TensorType(kind, x.shape), layout(special_values(kind)), None
        case Patterns(count):
            return TensorType(kind, (count,)), x.values(kind, (*key, name)), None
        case F(values):
            return TensorType(kind, values.shape), round_to(values, kind), None
        case T(values, dtype):
            value = round_to(values, dtype) if dtype.is_float else values.astype(dtype.numpy)
            return TensorType(dtype, values.shape), value, None
        case W(values, parts):
            source = packed(name, values.values() if isinstance(values, Normal) else values, parts)
            return source.type, source.unpack(np.float64), source
        case Coded(shape, coding):
            source = coded(name, coding, shape)
            return source.type, source.unpack(np.float64), source
        case KV(k, v, True):
            state = paged_kv(k.shape[2], k.shape[3], v.shape[3], int8.name)
            return state, QuantizedKVPages(*(round_to(x, float32) for x in quantized(k, v))), None
        case KV(k, v):
            state = paged_kv(k.shape[2], k.shape[3], v.shape[3], kind.name)
            return state, KVPages(round_to(k, kind), round_to(v, kind)), None
        case Latent(latent, rope):
            state = paged_latent(latent.shape[2], rope.shape[2], kind.name)
            return state, LatentPages(round_to(latent, kind), round_to(rope, kind)), None
        case Slots(values, dtype):
            kept = dtype or kind
            return sequence_state(values.shape[1:], kept), SequenceSlots(round_to(values, kept)), None
    return None, x, None


def stored(kind: StateType, pages: Any) -> Held:
    """What a state holds, in the dtypes of its parts."""
    return state_of(kind, [cast_to(np.asarray(x), part.dtype) for part, x in zip(kind.parts, pages, strict=True)])


def own_dtype(x: Any) -> DType | None:
    """The dtype of an operand that does not follow the case; that of its first part for a dense weight."""
    match x:
        case T(_, dtype):
            return dtype
        case Slots(_, dtype):
            return dtype
        case W(_, parts):
            return scheme(parts[0][0]).dense
    return None


__all__ = [
    "FLOAT",
    "KV",
    "MOVING",
    "Coded",
    "Drawn",
    "F",
    "Float",
    "Latent",
    "Normal",
    "Patterns",
    "Slots",
    "Special",
    "T",
    "W",
    "bools",
    "floats",
    "gain",
    "ints",
    "magnitude",
    "normal",
    "own_dtype",
    "positive",
    "realise",
    "rng",
    "shape_of",
    "special_columns",
    "special_pair",
    "special_rows",
    "special_values",
    "specials",
]
