"""Simulated kernels: op references run on float32 arrays whose sums add up in a chosen order, rounded once at the end.

They are correct kernels as devices have them, so none of their results may be rejected; with something wrong in them
they are the mutants that must be. Products are rounded before they are added, except in `FUSED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import GraphError
from xinheng.core.ir import DType, StateType, TensorType, WeightType, numeric
from xinheng.core.ir.dtype import cast_to, round_to
from xinheng.core.ops import OPSET, STATES
from xinheng.core.schemes import scheme

from ..call import Call, results
from ..draw import stream
from ..mirror import mirrored

Array = NDArray[Any]
BLOCK = 64


@dataclass(frozen=True)
class Order:
    """How sums are taken: of float32 [..., n] over the last axis, and the running sums along it.

    Attributes:
        fused: matrix products add one product at a time, which is not rounded before.
    """

    name: str
    add_up: Callable[[Array], Array]
    running: Callable[[Array], Array]
    fused: bool = False


def _sequential(t: Array) -> Array:
    if not t.shape[-1]:
        return np.zeros(t.shape[:-1], np.float32)
    return np.asarray(np.add.accumulate(t, axis=-1, dtype=np.float32)[..., -1])


def _accumulated(t: Array) -> Array:
    return np.asarray(np.add.accumulate(t, axis=-1, dtype=np.float32)) if t.shape[-1] else t


def _blocks(t: Array) -> Array:
    """[..., n] as [..., blocks, BLOCK] with zeros behind."""
    count = -(-t.shape[-1] // BLOCK)
    pad = np.zeros((*t.shape[:-1], count * BLOCK - t.shape[-1]), np.float32)
    return np.reshape(np.concatenate([t, pad], -1), (*t.shape[:-1], count, BLOCK))


def _blocked(t: Array) -> Array:
    return _sequential(_sequential(_blocks(t)))


def _blocked_running(t: Array) -> Array:
    inner = _accumulated(_blocks(t))
    if inner.shape[-2] > 1:
        ends = _accumulated(inner[..., -1])[..., :-1, None]
        inner = np.concatenate([inner[..., :1, :], inner[..., 1:, :] + ends], -2)
    return np.asarray(np.reshape(inner, (*t.shape[:-1], inner.shape[-2] * BLOCK))[..., : t.shape[-1]])


def _pairwise(t: Array) -> Array:
    if not t.shape[-1]:
        return np.zeros(t.shape[:-1], np.float32)
    while t.shape[-1] > 1:
        odd = t[..., -1:] if t.shape[-1] % 2 else t[..., :0]
        t = np.concatenate([t[..., :-1:2] + t[..., 1::2], odd], -1)
    return np.asarray(t[..., 0])


def _doubled(t: Array) -> Array:
    """Running sums in log2 n steps, each adding what stands twice as far back (Hillis and Steele 1986)."""
    step = 1
    while step < t.shape[-1]:
        t = np.concatenate([t[..., :step], t[..., step:] + t[..., :-step]], -1)
        step *= 2
    return t


def _reordered(t: Array) -> Array:
    return _sequential(t[..., stream("order", t.shape[-1]).permutation(t.shape[-1])])


def narrow(partial: DType, chunk: int = BLOCK) -> Order:
    """Partial sums that are kept in `partial` once every `chunk` terms."""

    def kept(x: Array) -> Array:
        return round_to(x, partial).astype(np.float32)

    def add_up(t: Array) -> Array:
        total = np.zeros(t.shape[:-1], np.float32)
        for i in range(0, t.shape[-1], chunk):
            total = kept(total + _sequential(t[..., i : i + chunk]))
        return total

    def running(t: Array) -> Array:
        return np.stack([add_up(t[..., : i + 1]) for i in range(t.shape[-1])], -1) if t.shape[-1] else t

    return Order(f"partial sums in {partial} every {chunk}", add_up, running)


SEQUENTIAL = Order("sequential", _sequential, _accumulated)
BLOCKED = Order("blocked", _blocked, _blocked_running)
PAIRWISE = Order("pairwise", _pairwise, _doubled)
REORDERED = Order("reordered", _reordered, _accumulated)
FUSED = Order("fused", _sequential, _accumulated, fused=True)
ORDERS = (SEQUENTIAL, BLOCKED, PAIRWISE, REORDERED, FUSED)
"""The orders of correct kernels."""


class Kernel(np.ndarray[Any, Any]):
    """A float32 array; what floats meet it become float32, and sums take the order of its class."""

    order: ClassVar[Order] = SEQUENTIAL

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        plain = [_narrowed(a) for a in args]
        if ufunc is np.matmul:
            return self._made(self._matmul(*plain))
        return self._made(getattr(ufunc, method)(*plain, **kwargs))

    def __array_function__(self, func: Any, types: Iterable[type], args: Any, kwargs: Any) -> Any:
        rule = _SUMS.get(func)
        made = super().__array_function__(func, types, args, kwargs) if rule is None else rule(self, *args, **kwargs)
        return [self._made(x) for x in made] if isinstance(made, list) else self._made(made)

    def _made(self, x: Any) -> Any:
        """Floats as such a kernel's array, anything else as a plain one."""
        if not isinstance(x, np.ndarray | np.generic) or x.dtype.kind != "f":
            return np.asarray(x) if isinstance(x, Kernel) else x
        return np.asarray(x, np.float32).view(type(self))

    def _matmul(self, a: Array, b: Array) -> Array:
        if a.ndim == 1:
            return np.asarray(self._matmul(a[None], b)[..., 0, :])
        b = np.swapaxes(b, -1, -2)
        if not self.order.fused:
            return self.order.add_up(a[..., :, None, :] * b[..., None, :, :])
        total = np.zeros((), np.float32)
        for k in range(a.shape[-1]):
            total = (total + a[..., :, None, k].astype(np.float64) * b[..., None, :, k]).astype(np.float32)
        return total if a.shape[-1] else SEQUENTIAL.add_up(a[..., :, None, :] * b[..., None, :, :])

    def _sum(self, x: Any, axis: int, keepdims: bool = False) -> Array:
        total = self.order.add_up(np.asarray(np.moveaxis(x, axis, -1), np.float32))
        return np.expand_dims(total, axis) if keepdims else total

    def _mean(self, x: Any, axis: int, keepdims: bool = False) -> Array:
        return np.asarray(self._sum(x, axis, keepdims) / np.float32(np.shape(x)[axis]))

    def _cumsum(self, x: Any, axis: int) -> Array:
        made = self.order.running(np.asarray(np.moveaxis(x, axis, -1), np.float32))
        return np.moveaxis(made, -1, axis)


_SUMS: dict[Any, Callable[..., Array]] = {np.sum: Kernel._sum, np.mean: Kernel._mean, np.cumsum: Kernel._cumsum}


def _narrowed(x: Any) -> Any:
    """An operand of float32 arithmetic; integers stay what they are until they meet a float."""
    if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "fiu":
        return np.asarray(x, np.float32)
    return np.asarray(x) if isinstance(x, np.ndarray) else x


KERNELS: dict[Any, type[Kernel]] = {}
"""The array classes in use."""


def kernel(order: Order, points: frozenset[str] = frozenset(), storage: DType | None = None) -> type[Kernel]:
    """The class of arrays that add up in an order, and that are rounded to `storage` at some points of references."""
    key = order, points, storage
    if key not in KERNELS:
        members: dict[str, Any] = {"order": order}
        if points:

            def word(x: Any, word: str, name: str = "", **_: Any) -> Any:
                if word != "point":
                    return NotImplemented
                return x._made(round_to(x, storage)) if name in points and storage else x

            members["__word__"] = word
        KERNELS[key] = type(order.name.title().replace(" ", ""), (Kernel,), members)
    return KERNELS[key]


def held(x: Any, made: type[Kernel]) -> Any:
    """A float array, or the pages of a state, as a kernel holds it; anything else as it is."""
    if isinstance(x, STATES):
        return type(x)(*(held(part, made) for part in x))
    if isinstance(x, np.ndarray) and x.dtype.kind == "f":
        with np.errstate(all="ignore"):
            return np.asarray(x, np.float32).view(made)
    return x


def simulate(
    call: Call,
    order: Order = SEQUENTIAL,
    program: Callable[..., Any] | None = None,
    points: frozenset[str] = frozenset(),
) -> tuple[Any, ...]:
    """What a kernel computes that adds up in `order`: the op's reference, or another `program` with its signature.

    At the `points` of the reference it keeps what it has in the dtype of the call. The results are float32 and not yet
    rounded to what the op promises; `stored` does that.
    """
    made = kernel(order, points, call.kind if points else None)
    operands = [held(value, made) for value in call.values]
    for i, kind in enumerate(call.types):
        if isinstance(kind, WeightType) and any(scheme(name).dense is None for name, _ in kind.parts):
            operands[i] = numeric.point(operands[i], "weights")
    with np.errstate(all="ignore"), mirrored(call.attributes):
        return results((program or OPSET[call.op].reference)(*operands, **call.attributes))


def stored(call: Call, made: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results in the dtypes that the op promises, rounded once: what a device gives back."""

    def each(x: Any, kind: DType) -> Array:
        with np.errstate(all="ignore"):
            return cast_to(np.asarray(x, np.float64 if kind.is_float else None), kind)

    return tuple(
        type(x)(*(each(y, part.dtype) for part, y in zip(kind.parts, x, strict=True)))
        if isinstance(kind, StateType)
        else each(x, kind.dtype)
        for x, kind in zip(made, call.result_types, strict=True)
        if isinstance(kind, StateType | TensorType)
    )


def correct(
    call: Call,
    order: Order = SEQUENTIAL,
    program: Callable[..., Any] | None = None,
    points: frozenset[str] = frozenset(),
) -> tuple[Any, ...]:
    """The stored results of a correct kernel."""
    return stored(call, simulate(call, order, program, points))


def flat(made: tuple[Any, ...]) -> tuple[Array, ...]:
    """Results with the pages of states one by one."""
    return tuple(np.asarray(page) for x in made for page in (x if isinstance(x, tuple) else (x,)))


def rebuilt(function: Callable[..., Any], **parts: Any) -> Callable[..., Any]:
    """A function with other things behind some names of its module: a reference with one part replaced.

    Raises:
        GraphError: its module has no such name.
    """
    if not isinstance(function, FunctionType) or any(name not in function.__globals__ for name in parts):
        raise GraphError(f"{function} has no {', '.join(parts)} to replace")
    code, names = function.__code__, {**function.__globals__, **parts}
    made = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made
