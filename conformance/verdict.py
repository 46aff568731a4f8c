"""Whether the output of a device lies within the bound of a declared program, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xinheng.core.errors import GraphError
from xinheng.core.ir.dtype import DType

from .bounded import Array, Bounded

USELESS = 0.1


@dataclass(frozen=True)
class Check:
    """Verdict on one output.

    Attributes:
        ok: every element is admitted.
        count: number of elements.
        failed_count: elements outside their limits.
        worst_ratio: largest error in units of the bound e + u|v| + eta, at most 1 where admitted, above 1 where not.
        worst_index: where that is; None for an empty output.
        useless_share: share of elements whose bound exceeds a tenth of their magnitude (or of the median magnitude,
            if that is larger): they prove nothing, and a case with many of them fails as a case, not the device.
    """

    ok: bool
    count: int
    failed_count: int
    worst_ratio: float
    worst_index: tuple[int, ...] | None
    useless_share: float


def limits(bounded: Bounded | NDArray[Any], dtype: DType) -> tuple[Array, Array]:
    """Smallest and largest output a correct kernel may store in `dtype`; overflow to infinity is part of the rounding.

    A plain array is what is expected exactly. Certain NaN has NaN limits.
    """
    return _bounded(bounded).limits(dtype)


def admits(bounded: Bounded | NDArray[Any], out: ArrayLike, dtype: DType) -> NDArray[np.bool_]:
    """Which elements of the output `out`, stored in `dtype`, are those of a correct kernel.

    NaN is admitted where the reference is NaN, and anything where nothing is known. The sign of zero is not seen.

    Raises:
        GraphError: `out` has another shape than the reference.
    """
    b, given = _bounded(bounded), _output(bounded, out)
    lo, hi = b.limits(dtype)
    unknown = np.isinf(b.e) | ((lo == -np.inf) & (hi == np.inf))
    return np.asarray(((lo <= given) & (given <= hi)) | (np.isnan(b.v) & np.isnan(given)) | unknown)


def check(bounded: Bounded | NDArray[Any], out: ArrayLike, dtype: DType) -> Check:
    """The verdict of `admits` with what a report needs: counts, the worst element, and how useful the bound was."""
    b, given, good = _bounded(bounded), _output(bounded, out), admits(bounded, out, dtype)
    ratio = _ratio(b, given, good, dtype)
    worst = int(np.argmax(ratio)) if ratio.size else None
    return Check(
        ok=bool(good.all()),
        count=good.size,
        failed_count=int(good.size - np.count_nonzero(good)),
        worst_ratio=0.0 if worst is None else float(ratio.flat[worst]),
        worst_index=None if worst is None else tuple(int(i) for i in np.unravel_index(worst, ratio.shape)),
        useless_share=float(np.mean(_useless(b, dtype))) if ratio.size else 0.0,
    )


def _bounded(x: Bounded | NDArray[Any]) -> Bounded:
    return x if isinstance(x, Bounded) else Bounded(x)


def _output(bounded: Bounded | NDArray[Any], out: ArrayLike) -> Array:
    given = np.asarray(out, np.float64)
    if given.shape != bounded.shape:
        raise GraphError(f"output has shape {given.shape}, its reference {bounded.shape}; compare like with like")
    return given


def _ratio(b: Bounded, out: Array, good: NDArray[np.bool_], dtype: DType) -> Array:
    lo, hi = b.limits(dtype)
    with np.errstate(all="ignore"):
        unit = b.e
        if dtype.is_float:
            unit = unit + dtype.unit_roundoff * np.abs(b.v) + (dtype.smallest_normal if b.rules.flush else dtype.eta)
        inside = np.where(out == b.v, 0.0, np.minimum(np.abs(out - b.v) / unit, 1.0))
        outside = 1 + np.maximum(lo - out, out - hi) / np.where(np.isfinite(unit) & (unit > 0), unit, 1.0)
    return np.where(good, np.nan_to_num(inside), np.where(np.isnan(outside), np.inf, outside))


def _useless(b: Bounded, dtype: DType) -> NDArray[np.bool_]:
    finite = np.abs(b.v[np.isfinite(b.v)])
    typical = float(np.median(finite)) if finite.size else 0.0
    lo, hi = b.limits(dtype)
    with np.errstate(invalid="ignore"):
        wide = b.e > USELESS * np.maximum(np.abs(b.v), typical)
    return np.isinf(b.e) | (wide & (lo < hi))
