"""Sample calls of ops: what a case is, and how it becomes operands of a reference, of an error analysis, or a graph."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xinheng.conformance.bounds import Bounded, Rules, operand
from xinheng.core.hal import Device, Numerics, StateSpace, WeightPart, WeightSource
from xinheng.core.ir import (
    Builder,
    DType,
    Graph,
    Node,
    TensorType,
    WeightType,
    evaluate,
    paged_kv,
    paged_latent,
    sequence_state,
)
from xinheng.core.ir.dtype import DTYPES, bool_, float32, float64, int32, round_to
from xinheng.core.ir.numeric import store
from xinheng.core.ir.types import StateType, Type
from xinheng.core.ops import OPSET, KVPages, LatentPages, SequenceSlots
from xinheng.core.schemes import scheme


@dataclass(frozen=True)
class F:
    """A float tensor, of whatever float dtype the case runs in."""

    data: NDArray[Any]


@dataclass(frozen=True)
class T:
    """A tensor of a fixed dtype."""

    data: NDArray[Any]
    dtype: DType


@dataclass(frozen=True)
class W:
    """A weight [rows, columns] or [groups, rows, columns] whose rows are coded in `parts` (scheme, rows)."""

    data: NDArray[Any]
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class KV:
    """A paged cache; it is kept in the dtype the case runs in."""

    k: NDArray[Any]
    v: NDArray[Any]


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


STEPWISE = frozenset({"add_rms_norm", "fused_moe"})
"""Composites whose intermediate results may be rounded to the dtype of their operands."""

STATES = (KVPages, LatentPages, SequenceSlots)
"""What references see of states."""


class Float:
    """Stands in an attribute for the dtype the case runs in."""


FLOAT: Any = Float()


@dataclass(frozen=True)
class Call:
    """A case in one dtype: an op with operands whose values are representable, their types, and attributes."""

    id: str
    op: str
    kind: DType
    types: tuple[Type | None, ...]
    values: tuple[Any, ...]
    attributes: dict[str, Any]
    sources: tuple[WeightSource, ...] = ()

    def reference(self) -> tuple[Any, ...]:
        """The results in float64."""
        with np.errstate(all="ignore"):
            return results(OPSET[self.op].reference(*self.values, **self.attributes))

    def bounded(self, rules: Rules | None = None) -> tuple[Any, ...]:
        """The results with error bounds, of operands that are exact."""
        rules = rules or Rules(compute=self.kind if self.kind is float64 else float32)
        operands = [_bounded(value, kind, rules) for value, kind in zip(self.values, self.types, strict=True)]
        return results(OPSET[self.op].reference(*operands, **self.attributes))

    def stepwise(self) -> tuple[Any, ...]:
        """As `bounded`, but of the decomposition, whose steps may each be rounded to their dtype or kept wider."""
        rules = Rules(compute=self.kind if self.kind is float64 else float32, evaluate=False)
        given = {f"x{i}": _bounded(v, t, rules) for i, (v, t) in enumerate(zip(self.values, self.types, strict=True))}

        def rounded(node: Node, made: tuple[Any, ...]) -> tuple[Any, ...]:
            kinds = [r.type.dtype if isinstance(r.type, TensorType) else None for r in node.results]
            return tuple(store(x, k) if isinstance(x, Bounded) else x for x, k in zip(made, kinds, strict=True))

        return tuple(evaluate(self.graph(expanded=True), given, given, given, rounded)[0].values())

    def graph(self, expanded: bool = False) -> Graph:
        """A graph of this op alone, or of its decomposition; operands are called x0, x1, …"""
        b = Builder(self.op)
        operands: list[Any] = []
        for i, (kind, value) in enumerate(zip(self.types, self.values, strict=True)):
            if kind is None:
                operands.append(value)
            elif isinstance(kind, TensorType):
                operands.append(b.input(f"x{i}", kind))
            else:
                operands.append(b.parameter(f"x{i}", kind) if isinstance(kind, WeightType) else b.state(f"x{i}", kind))
        op = OPSET[self.op]
        if expanded:
            absent = [None] * (0 if op.operands[-1].variadic else len(op.operands) - len(operands))
            made = op.expand(*operands, *absent, **op.normalise(self.attributes))
        else:
            made = b.call(op, operands, self.attributes)
        return b.build(*(v for v in results(made) if not isinstance(v.type, StateType)))

    def feeds(self, of: type) -> dict[str, Any]:
        """The values of operands of one kind of type by name."""
        pairs = enumerate(zip(self.types, self.values, strict=True))
        return {f"x{i}": value for i, (kind, value) in pairs if isinstance(kind, of)}

    def run(self, device: Device, numerics: Numerics | None = None) -> tuple[Any, ...]:
        """The results on a device, in order, as arrays; a cache as its pages."""
        from xinheng.core.compiler import compile

        exe = compile(self.graph(), device, numerics=numerics)
        buffers = {source.name: exe.prepare(source.name, source) for source in self.sources}
        for name, (kind, pages) in self.states().items():
            state = exe.allocate_state(StateSpace(*(*pages[0].shape, 1)[:2]))[name]
            for part, given in zip(pages._fields, pages, strict=True):
                _fill(getattr(state, part), device.upload(given, kind))
            buffers[name] = state
        bound = exe.bind(buffers)
        kinds = {f"x{i}": kind for i, kind in enumerate(self.types) if isinstance(kind, TensorType)}
        with np.errstate(all="ignore"):
            arrays = {name: value.astype(kinds[name].dtype.numpy) for name, value in self.feeds(TensorType).items()}
        bound.run(arrays).wait()
        made = tuple(device.download(buffer) for buffer in bound.outputs.values())
        if not any(isinstance(r.type, StateType) for r in self.graph().nodes[0].results):
            return made
        written = [
            type(pages)(*(device.download(getattr(buffers[name], part)) for part in pages._fields))
            for name, (_, pages) in self.states().items()
        ]
        return (*made, *written)

    def states(self) -> dict[str, tuple[DType, Any]]:
        """The dtype and the contents of each state by name."""
        types = {f"x{i}": kind for i, kind in enumerate(self.types) if isinstance(kind, StateType)}
        return {name: (held_in(types[name]), pages) for name, pages in self.feeds(StateType).items()}


@dataclass(frozen=True)
class Case:
    """A sample call; `special` says that its values are extreme, so that bounds may be wide."""

    id: str
    op: str
    operands: tuple[Any, ...]
    attributes: dict[str, Any]
    special: bool = False

    @property
    def floats(self) -> bool:
        """Whether the case runs in several dtypes."""
        moving = any(isinstance(x, F | KV | Latent) for x in self.operands)
        return moving or FLOAT in self.attributes.values()

    def in_dtype(self, kind: DType) -> Call:
        """The case with its floats rounded to `kind`."""
        given = [_given(x, kind, f"x{i}") for i, x in enumerate(self.operands)]
        attributes = {name: kind if value is FLOAT else value for name, value in self.attributes.items()}
        sources = tuple(source for *_, source in given if source is not None)
        values = tuple(value for _, value, _ in given)
        return Call(self.id, self.op, kind, tuple(t for t, *_ in given), values, attributes, sources)


def held_in(kind: StateType) -> DType:
    """The dtype of what a state holds."""
    return DTYPES[kind["dtype" if kind.kind == "sequence_state" else "scheme"]]


def _fill(held: Any, new: Any) -> None:
    """Write over all elements of a tensor or array in place."""
    if hasattr(held, "copy_"):
        held.copy_(new)
    else:
        held[...] = new


def results(made: Any) -> tuple[Any, ...]:
    """What a reference, a kernel or an op call returned, as a tuple."""
    return made if isinstance(made, tuple) and not hasattr(made, "_fields") else (made,)


def _given(x: Any, kind: DType, name: str) -> tuple[Type | None, Any, WeightSource | None]:
    """Type, value and source of an operand."""
    match x:
        case F(data):
            return TensorType(kind, data.shape), round_to(data, kind), None
        case T(data, dtype):
            value = round_to(data, dtype) if dtype.is_float else data.astype(dtype.numpy)
            return TensorType(dtype, data.shape), value, None
        case W(data, parts):
            source = _source(name, data, parts)
            return source.type, source.unpack(np.float64), source
        case KV(k, v):
            state = paged_kv(k.shape[2], k.shape[3], v.shape[3], kind.name)
            return state, KVPages(round_to(k, kind), round_to(v, kind)), None
        case Latent(latent, rope):
            state = paged_latent(latent.shape[2], rope.shape[2], kind.name)
            return state, LatentPages(round_to(latent, kind), round_to(rope, kind)), None
        case Slots(data, dtype):
            kept = dtype or kind
            return sequence_state(data.shape[1:], kept), SequenceSlots(round_to(data, kept)), None
    return None, x, None


def _source(name: str, data: NDArray[Any], parts: Sequence[tuple[str, int]]) -> WeightSource:
    first, made, flat = 0, [], data.reshape(-1, data.shape[-1])
    for coding, rows in parts:
        pack = scheme(coding).pack
        assert pack is not None, f"scheme {coding} cannot be packed"
        packed = pack(flat[first : first + rows])
        made.append(WeightPart(coding, rows, partial(np.asarray, packed)))
        first += rows
    return WeightSource(name, data.shape, tuple(made))


def _bounded(value: Any, kind: Type | None, rules: Rules) -> Any:
    if isinstance(kind, TensorType):
        return operand(value, kind.dtype, rules)
    if isinstance(kind, WeightType):
        # packed values are held as float32 by most devices, also where they have more bits
        packed = any(scheme(name).dense is None for name, _ in kind.parts)
        held = round_to(value, float32 if packed else rules.compute)
        return Bounded(value, np.abs(value - held), rules)
    if isinstance(value, STATES) and isinstance(kind, StateType):
        return type(value)(*(operand(pages, rules.compute, rules) for pages in value))
    return value


CASES: list[Case] = []
"""All cases; the modules of `op_case_tables` fill it."""


def case(op: str, *operands: Any, note: str = "", special: bool = False, **attributes: Any) -> None:
    """Enter a case in the table; its id is the op, a number and the note."""
    number = sum(c.op == op for c in CASES)
    CASES.append(Case(f"{op}-{number}" + (f"-{note}" if note else ""), op, operands, attributes, special))


def rng(*seed: Any) -> np.random.Generator:
    """A generator that depends on its arguments only."""
    return np.random.default_rng(zlib.crc32(repr(seed).encode()))


def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> F:
    """Normal numbers that depend on the arguments and how many cases there are."""
    return F(rng(shape, scale, shift, len(CASES)).normal(shift, scale, shape))


def positive(*shape: int) -> F:
    """Numbers between 0.1 and 4."""
    return F(rng(shape, "positive", len(CASES)).uniform(0.1, 4.0, shape))


def floats(values: ArrayLike) -> F:
    return F(np.array(values, np.float64))


def ints(values: ArrayLike, dtype: DType = int32) -> T:
    return T(np.array(values), dtype)


def bools(values: ArrayLike) -> T:
    return T(np.array(values, bool), bool_)
