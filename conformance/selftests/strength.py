"""How small a fault the cases of an op see: faults of growing size in a kernel that is correct otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from xinheng.core.ir import TensorType
from xinheng.core.ir.op import Tolerance
from xinheng.core.ops import OPSET

from ..call import Call
from .simulated import SEQUENTIAL, Order, flat, simulate, stored
from .standard import Standard

SIZES = tuple(2.0**i for i in range(-8, 13))
"""Relative errors in units of the unit roundoff of the result."""
SHARES = tuple(2.0**-i for i in range(20, -1, -1))
"""How much of the last term of a sum is lost."""
LONG = 64
"""Terms of the shortest sum that loses any."""
SUMMED = frozenset({Tolerance.REDUCTION, Tolerance.CONTRACTION, Tolerance.ATTENTION})
CASES = 48
"""At most so many cases of an op and dtype are asked, those with most numbers left out only if there are more."""
Fault = Callable[[Call, float], tuple[Any, ...] | None]


def _everywhere(call: Call, size: float) -> tuple[Any, ...] | None:
    """All elements of the first result too large by a factor."""
    return _scaled(call, lambda x, unit: x * (1 + size * unit))


def _one_element(call: Call, size: float) -> tuple[Any, ...] | None:
    """The largest element of the first result too large by a factor."""

    def change(x: Any, unit: float) -> Any:
        largest = np.argmax(np.where(np.isfinite(x), np.abs(x), 0))
        return np.where(np.reshape(np.arange(x.size) == largest, x.shape), x * (1 + size * unit), x)

    return _scaled(call, change)


def _scaled(call: Call, change: Callable[[Any, float], Any]) -> tuple[Any, ...] | None:
    kind, made = call.result_types[0], simulate(call)
    if not isinstance(kind, TensorType) or not kind.dtype.is_float or not np.size(made[0]):
        return None
    with np.errstate(all="ignore"):
        return stored(call, (change(np.asarray(made[0], np.float64), kind.dtype.unit_roundoff), *made[1:]))


@cache
def _losing(share: float) -> Order:
    """Sums one after another, long ones without a share of their last term."""

    def add_up(t: Any) -> Any:
        if t.shape[-1] < LONG:
            return SEQUENTIAL.add_up(t)
        kept = np.where(np.arange(t.shape[-1]) == t.shape[-1] - 1, np.float32(1 - share), np.float32(1))
        return SEQUENTIAL.add_up(t * kept)

    return Order(f"sequential without {share} of the last term", add_up, SEQUENTIAL.running)


def _last_term(call: Call, share: float) -> tuple[Any, ...] | None:
    """A share of the last term of every long sum lost; None if there is none to lose."""
    if OPSET[call.op].tolerance not in SUMMED:
        return None
    whole, made = simulate(call), simulate(call, _losing(share))
    if all(a.tobytes() == b.tobytes() for a, b in zip(flat(whole), flat(made), strict=True)):
        return None
    return stored(call, made)


FAULTS: dict[str, tuple[Fault, Sequence[float]]] = {
    "everywhere": (_everywhere, SIZES),
    "one element": (_one_element, SIZES),
    "last term": (_last_term, SHARES),
}


def least(op: str, standards: Sequence[Standard]) -> dict[tuple[str, str], float | None]:
    """The smallest fault of each kind that some case sees, by dtype and kind; None for one that is never seen.

    A kind is left out where the op cannot have it.
    """
    found: dict[tuple[str, str], float | None] = {}
    for dtype in dict.fromkeys(s.call.kind.name for s in standards if s.call.kind.is_float):
        ordinary = [s for s in standards if s.call.kind.name == dtype and not s.special]
        asked = ordinary[:: -(-len(ordinary) // CASES) or 1]
        for name, (fault, sizes) in FAULTS.items():
            able = [s for s in asked if fault(s.call, sizes[-1]) is not None]
            if able:
                found[dtype, name] = next((size for size in sizes if _seen(able, fault, size)), None)
    return found


def _seen(standards: Sequence[Standard], fault: Fault, size: float) -> bool:
    for standard in reversed(standards):
        made = fault(standard.call, size)
        if made is not None and not standard.judge(made).ok:
            return True
    return False
