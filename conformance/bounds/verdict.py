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
            if that is larger) and what the format can resolve: they prove nothing, and a case with many of them fails
            as a case, not the device.
        special: each element outside its limits is infinite or NaN, should be, or is a zero of the wrong sign.
    """

    ok: bool
    count: int
    failed_count: int
    worst_ratio: float
    worst_index: tuple[int, ...] | None
    useless_share: float
    special: bool = False


def limits(bounded: Bounded | NDArray[Any], dtype: DType) -> tuple[Array, Array]:
    """Smallest and largest output a correct kernel may store in `dtype`; overflow to infinity is part of the rounding.

    A plain array is what is expected exactly. Certain NaN has NaN limits.
    """
    return _bounded(bounded).limits(dtype)


def admits(
    bounded: Bounded | NDArray[Any], out: ArrayLike, dtype: DType, signed_zero: bool = False
) -> NDArray[np.bool_]:
    """Which elements of the output `out`, stored in `dtype`, are those of a correct kernel.

    NaN is admitted where the reference is NaN, and anything where nothing is known. The sign of zero is not seen,
    unless `signed_zero` says that it is defined: then the zeros of the reference have theirs.

    Raises:
        GraphError: `out` has another shape than the reference.
    """
    b, given = _bounded(bounded), _output(bounded, out)
    lo, hi = b.limits(dtype)
    unknown = np.isinf(b.e) | ((lo == -np.inf) & (hi == np.inf))
    inside = (lo <= given) & (given <= hi)
    if signed_zero:
        inside &= ~_turned(b, given, dtype)
    return np.asarray(inside | (np.isnan(b.v) & np.isnan(given)) | unknown)


def _turned(b: Bounded, out: Array, dtype: DType) -> NDArray[np.bool_]:
    """Zeros of the other sign than those of the reference, in formats with two."""
    signed = dtype.is_float and not dtype.name.endswith("fnuz")
    return np.asarray(signed & (out == 0) & (b.v == 0) & (np.signbit(out) != np.signbit(b.v)))


def check(bounded: Bounded | NDArray[Any], out: ArrayLike, dtype: DType, signed_zero: bool = False) -> Check:
    """The verdict of `admits` with what a report needs: counts, the worst element, and how useful the bound was."""
    b, given, good = _bounded(bounded), _output(bounded, out), admits(bounded, out, dtype, signed_zero)
    ratio = _ratio(b, given, good, dtype)
    worst = int(np.argmax(ratio)) if ratio.size else None
    ordinary = np.isfinite(given) & np.isfinite(b.v) & ~(_turned(b, given, dtype) if signed_zero else np.False_)
    return Check(
        ok=bool(good.all()),
        count=good.size,
        failed_count=int(good.size - np.count_nonzero(good)),
        worst_ratio=0.0 if worst is None else float(ratio.flat[worst]),
        worst_index=None if worst is None else tuple(int(i) for i in np.unravel_index(worst, ratio.shape)),
        useless_share=float(np.mean(_useless(b, dtype))) if ratio.size else 0.0,
        special=not (~good & ordinary).any() and not good.all(),
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
            unit = unit + dtype.unit_roundoff * np.abs(b.v) + _resolved(b, dtype)
        inside = np.where(out == b.v, 0.0, np.minimum(np.abs(out - b.v) / unit, 1.0))
        outside = 1 + np.maximum(lo - out, out - hi) / np.where(np.isfinite(unit) & (unit > 0), unit, 1.0)
    # a zero of the wrong sign lies inside
    return np.where(good, np.nan_to_num(inside), np.where(np.isnan(outside) | (outside <= 1), np.inf, outside))


def _resolved(b: Bounded, dtype: DType) -> float:
    """The largest error of storing a number that underflows."""
    if not dtype.is_float:
        return 0.0
    return dtype.smallest_normal if b.rules.flush else dtype.eta


def _useless(b: Bounded, dtype: DType) -> NDArray[np.bool_]:
    finite = np.abs(b.v[np.isfinite(b.v)])
    typical = float(np.median(finite)) if finite.size else 0.0
    lo, hi = b.limits(dtype)
    with np.errstate(invalid="ignore"):
        wide = b.e > np.maximum(USELESS * np.maximum(np.abs(b.v), typical), 4 * _resolved(b, dtype))
    return np.isinf(b.e) | (wide & (lo < hi))
