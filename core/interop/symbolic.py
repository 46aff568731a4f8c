"""Arithmetic on arrays of sizes, so that the shape computations of a model happen while it is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.dim import Dim, Expr, interval, maximum, minimum
from .call import Call
from .item import Item, of_array, of_value

LARGEST = 256
"""Arrays of sizes with more elements are made when the graph runs."""

Fold = Callable[[Call], Any]
FOLDS: dict[str, Fold] = {}


def fold(*names: str) -> Callable[[Fold], Fold]:
    """Register how ops compute with sizes; NotImplemented leaves them to the graph."""

    def register(function: Fold) -> Fold:
        FOLDS.update(dict.fromkeys(names, function))
        return function

    return register


def folded(call: Call) -> list[Item] | None:
    """The results of a node whose known inputs hold sizes, or None if they have to be computed by the graph."""
    items = [x for x in call.inputs if isinstance(x, Item)]
    if call.domain or call.op not in FOLDS or not any(x.symbolic for x in items):
        return None
    if any(x.known is not None and x.known.size > LARGEST for x in items):
        return None
    made = FOLDS[call.op](call)
    if made is NotImplemented:
        return None
    parts = made if isinstance(made, tuple) else (made,)
    kept = [of_value(p) if hasattr(p, "builder") else p for p in parts]
    first = call.item(0).dtype
    return [p if isinstance(p, Item) else of_array(p, first) for p in kept]


def _objects(function: Callable[..., Dim], *operands: NDArray[Any]) -> NDArray[Any]:
    """An elementwise function of arrays of sizes."""
    arrays = np.broadcast_arrays(*operands)
    made = np.empty(arrays[0].shape, object)
    for place in np.ndindex(made.shape):
        made[place] = function(*(a[place] if isinstance(a[place], Expr) else int(a[place]) for a in arrays))
    return made


def _known(call: Call) -> list[NDArray[Any]] | None:
    """All inputs, if all of them are known integers."""
    items = [x for x in call.inputs if isinstance(x, Item)]
    if any(x.known is None or x.dtype.is_float for x in items) or len(items) != len(call.inputs):
        return None
    return [x.known for x in items if x.known is not None]


def _towards_zero(a: Dim, b: Dim) -> Dim:
    """a // b, rounded towards zero; of sizes that are not negative that is the same."""
    if isinstance(a, int) and isinstance(b, int):
        return int(np.trunc(a / b)) if a * b < 0 else a // b
    return a // b


_ARITHMETIC: dict[str, Callable[..., Dim]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _towards_zero,
    "Mod": lambda a, b: a % b,
    "Max": maximum,
    "Min": minimum,
    "Neg": lambda a: 0 - a,
    "Identity": lambda a: a,
}


@fold(*_ARITHMETIC)
def _arithmetic(call: Call) -> Any:
    arrays = _known(call)
    truncates = call.op == "Div" or (call.op == "Mod" and call.attr("fmod", 0))
    if arrays is None or (truncates and any(interval(d, {})[0] < 0 for a in arrays for d in _sizes_in(a))):
        return NotImplemented
    return _objects(_ARITHMETIC[call.op], *arrays)


def _sizes_in(array: NDArray[Any]) -> list[Expr]:
    return [d for d in array.reshape(-1) if isinstance(d, Expr)]


_COMPARE: dict[str, Callable[[float, float], bool | None]] = {
    "Equal": lambda low, high: True if low == high == 0 else False if low > 0 or high < 0 else None,
    "Less": lambda low, high: True if high < 0 else False if low >= 0 else None,
    "LessOrEqual": lambda low, high: True if high <= 0 else False if low > 0 else None,
    "Greater": lambda low, high: True if low > 0 else False if high <= 0 else None,
    "GreaterOrEqual": lambda low, high: True if low >= 0 else False if high < 0 else None,
}


@fold(*_COMPARE)
def _compare(call: Call) -> Any:
    """Decided where the interval of the difference decides it for all sizes."""
    arrays = _known(call)
    if arrays is None:
        return NotImplemented
    a, b = np.broadcast_arrays(*arrays)
    made = np.empty(a.shape, bool)
    for place in np.ndindex(a.shape):
        verdict = _COMPARE[call.op](*interval(a[place] - b[place], {}))
        if verdict is None:
            return NotImplemented
        made[place] = verdict
    return of_array(made)


@fold("Cast")
def _cast(call: Call) -> Any:
    from .item import element_type

    target, known = element_type(call.attr("to")), call.item(0).known
    return of_array(known, target) if target.is_integer and known is not None else NotImplemented


@fold("Where")
def _where(call: Call) -> Any:
    arrays = _known(call)
    if arrays is None or arrays[0].dtype == object:
        return NotImplemented
    condition, a, b = np.broadcast_arrays(*arrays)
    return of_array(np.where(condition, a.astype(object), b.astype(object)), call.item(1).dtype)


@fold("Concat")
def _concat(call: Call) -> Any:
    arrays = _known(call)
    if arrays is None:
        return NotImplemented
    return np.concatenate([a.astype(object) for a in arrays], axis=call.attr("axis", 1))


@fold("Gather")
def _gather(call: Call) -> Any:
    arrays = _known(call)
    if arrays is None or arrays[1].dtype == object:
        return NotImplemented
    return np.asarray(np.take(arrays[0], arrays[1], axis=call.attr("axis", 0)), object)


@fold("Squeeze", "Unsqueeze", "Reshape", "Flatten")
def _shaped(call: Call) -> Any:
    known = call.item(0).known
    if known is None:
        return NotImplemented
    if call.op == "Reshape":
        return known.reshape([int(d) for d in call.numbers(1, "shape")])
    if call.op == "Flatten":
        axis = call.attr("axis", 1)
        return known.reshape(int(np.prod(known.shape[:axis])), -1)
    axes = call.axes(1, known.ndim + (len(call.known(1, "axes")) if call.op == "Unsqueeze" and call.has(1) else 0))
    if call.op == "Squeeze":
        return np.squeeze(known, None if axes is None else tuple(axes))
    return np.expand_dims(known, tuple(axes or ()))


@fold("Slice")
def _slice(call: Call) -> Any:
    known = call.item(0).known
    parts = [call.item(i).known if call.has(i) else None for i in range(1, 5)]
    starts, ends, axes, steps = parts
    if known is None or starts is None or ends is None or any(p is not None and p.dtype == object for p in parts):
        return NotImplemented
    for i, start in enumerate(starts):
        axis = int(axes[i]) if axes is not None else i
        step = int(steps[i]) if steps is not None else 1
        end: int | None = int(ends[i])
        if step < 0 and end is not None and end < -known.shape[axis]:
            end = None
        known = known[(np.s_[:],) * (axis % known.ndim) + (np.s_[int(start) : end : step],)]
    return known


@fold("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduced(call: Call) -> Any:
    known = call.item(0).known
    if known is None or known.ndim != 1:
        return NotImplemented
    functions: dict[str, Callable[[Dim, Dim], Dim]] = {
        "ReduceProd": lambda a, b: a * b,
        "ReduceSum": lambda a, b: a + b,
        "ReduceMax": maximum,
        "ReduceMin": minimum,
    }
    total = known[0]
    for each in known[1:]:
        total = functions[call.op](total, each)
    made = np.empty((1,) if call.attr("keepdims", 1) else (), object)
    made[...] = total
    return made


@fold("Split")
def _split(call: Call) -> Any:
    known = call.item(0).known
    if known is None:
        return NotImplemented
    pieces = call.attr("split") or (call.numbers(1, "split").tolist() if call.has(1) else None)
    if pieces is None:
        count = call.attr("num_outputs", len(call.outputs))
        size = -(-known.shape[0] // count)
        pieces = [size] * (count - 1) + [known.shape[0] - size * (count - 1)]
    return tuple(np.split(known, np.cumsum(pieces)[:-1]))


@fold("Expand")
def _expand(call: Call) -> Any:
    arrays = _known(call)
    if arrays is None or arrays[1].dtype == object:
        return NotImplemented
    return np.broadcast_to(arrays[0], np.broadcast_shapes(arrays[0].shape, tuple(arrays[1]))).copy()


@fold("Transpose")
def _transpose(call: Call) -> Any:
    known = call.item(0).known
    return NotImplemented if known is None else np.transpose(known, call.attr("perm"))
