"""Import rules of resampling: along each axis a weighted sum of few neighbours, whose places are known at import.

The neighbours, their weights and the rounding follow ONNX's description of Resize (opset 19).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import ops
from ...ir.dim import Dim, Expr
from ...ir.graph import Value
from ..call import Call, like, rule, wide
from .movement import along

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """How one axis is resampled: its sizes, the scale between them, and the part of it that is wanted."""

    size: int
    target: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def places(self, mode: str) -> Array:
        """Where each result lies on the axis, for a coordinate transformation of ONNX."""
        x, whole = np.arange(self.target, dtype=np.float64), self.scale * self.size
        last = self.size - 1
        if mode == "align_corners":
            return x * 0 if whole == 1 else x * last / (whole - 1)
        if mode == "asymmetric":
            return x / self.scale
        if mode == "tf_crop_and_resize":
            span = (self.end - self.start) * last
            return self.start * last + (x * 0 + span / 2 if whole == 1 else x * span / (whole - 1))
        half = (x + 0.5) / self.scale - 0.5
        if mode == "pytorch_half_pixel":
            return half * 0 - 0.5 if whole == 1 else half
        if mode == "half_pixel_symmetric":
            return self.size / 2 * (1 - self.target / whole) + half
        return half


def _cubic(x: float, a: float) -> float:
    """The cubic convolution kernel (Keys 1981)."""
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def _weights(c: Call, mode: str, scale: float) -> tuple[int, Callable[[float], list[float]]]:
    """The first neighbour relative to a place rounded down, and the weights from it on for what was rounded off."""
    a = float(c.attr("cubic_coeff_a", -0.75))
    shrink = min(scale, 1.0) if c.attr("antialias", 0) else 1.0
    reach = 1 if mode == "linear" else 2
    first = math.floor(-reach / shrink) + 1

    def weights(ratio: float) -> list[float]:
        distances = [(i - ratio) * shrink for i in range(first, 2 - first)]
        made = [max(1 - abs(d), 0.0) if mode == "linear" else _cubic(d, a) for d in distances]
        total = sum(made)
        return [w / total for w in made] if shrink < 1 else made

    return first, weights


def _nearest(c: Call, x: Array) -> NDArray[np.int64]:
    rounding = c.choice(
        "nearest_mode", "round_prefer_floor", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"
    )
    functions: dict[str, Callable[[Array], Array]] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda v: np.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: np.floor(v + 0.5),
    }
    return functions[rounding](x).astype(np.int64)


def _resampled(c: Call, x: Value, axis: int, places: Array, scale: float, mode: str) -> Value:
    """x at other places of an axis; beyond its ends the first or last element goes on."""
    size = x.shape[axis]
    assert isinstance(size, int)
    if mode == "nearest":
        picked: Value = ops.index_select(x, c.constant(np.clip(_nearest(c, places), 0, size - 1)), axis=axis)
        return picked
    first, weights = _weights(c, mode, scale)
    base = np.where(places == np.floor(places), places - 1, np.floor(places)).astype(np.int64)
    table = np.array([weights(float(p - b)) for p, b in zip(places, base, strict=True)])
    index = base[:, None] + np.arange(first, first + table.shape[1])
    if c.attr("exclude_outside", 0):
        table = np.where((index < 0) | (index >= size), 0.0, table)
        table = table / table.sum(axis=1, keepdims=True)
    index = np.clip(index, 0, size - 1)
    total: Value | None = None
    for t in range(table.shape[1]):
        if not table[:, t].any():
            continue
        part = ops.index_select(x, c.constant(index[:, t].astype(np.int64)), axis=axis)
        weight = like(along(axis, c.constant(table[:, t].astype(np.float32)), x.tensor.rank), x)
        part = ops.mul(part, weight)
        total = part if total is None else ops.add(total, part)
    assert total is not None
    return total


def _floats(c: Call, index: int, what: str) -> list[float]:
    return [float(v) for v in c.numbers(index, what).reshape(-1)] if c.has(index) else []


def _axes(c: Call, x: Value) -> dict[int, Axis] | None:
    """The axes that are resampled; None where sizes are symbolic."""
    rank = x.tensor.rank
    older = c.version < 11
    axes = c.axes(None, rank) or list(range(rank))
    scales = list(c.attr("scales") or []) or _floats(c, 1 if older else 2, "scales")
    wanted = c.dims(3, "sizes") if c.has(3) and c.item(3).shape != (0,) else []
    sizes = [x.shape[a] for a in axes]
    if any(isinstance(d, Expr) for d in (*sizes, *wanted)):
        return None
    known = [int(d) for d in sizes]  # type: ignore[arg-type]
    roi = _floats(c, 1, "roi") if not older and c.attr("coordinate_transformation_mode") == "tf_crop_and_resize" else []
    policy = c.choice("keep_aspect_ratio_policy", "stretch", "stretch", "not_larger", "not_smaller")
    made = {}
    targets = [int(d) for d in wanted]  # type: ignore[arg-type]
    if targets and policy != "stretch":
        pick = min if policy == "not_larger" else max
        common = pick(t / s for t, s in zip(targets, known, strict=True))
        scales, targets = [common] * len(axes), [math.floor(common * s + 0.5) for s in known]
    elif targets:
        scales = [t / s for t, s in zip(targets, known, strict=True)]
    else:
        targets = [math.floor(s * f) for s, f in zip(known, scales, strict=True)]
    for i, axis in enumerate(axes):
        part = (roi[i], roi[len(axes) + i]) if roi else (0.0, 1.0)
        made[axis] = Axis(known[i], targets[i], scales[i], *part)
    return made


@rule("Resize", "Upsample")
def _resize(c: Call) -> Any:
    given = c.x(0)
    mode = c.choice("mode", "nearest", "nearest", "linear", "cubic")
    axes = _axes(c, given)
    if axes is None:
        return _repeated(c, given, mode)
    default = "asymmetric" if c.version < 11 else "half_pixel"
    transform = c.choice(
        "coordinate_transformation_mode",
        default,
        *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
        "tf_crop_and_resize",
    )
    if c.version < 11:
        c = _with_floor(c)
    if mode != "nearest" and not given.dtype.is_float:
        raise c.refuse(f"mode {mode!r} is for floats, not {given.dtype}")
    x = wide(given) if mode != "nearest" else given
    outside: Value | None = None
    for axis, how in axes.items():
        places = how.places(transform)
        if how.size == how.target and np.array_equal(places, np.arange(how.size)):
            continue
        x = _resampled(c, x, axis, places, how.scale, mode)
        beyond = (places < 0) | (places > how.size - 1)
        if transform == "tf_crop_and_resize" and beyond.any():
            mask = along(axis, c.constant(beyond), x.tensor.rank)
            outside = mask if outside is None else ops.logical_or(outside, mask)
    if outside is not None:
        value = float(c.attr("extrapolation_value", 0.0))
        x = ops.where(outside, value if x.dtype.is_float else int(value), x)
    return like(x, given)


def _with_floor(c: Call) -> Call:
    """Before opset 11 the nearest element is the one at or before the place."""
    from dataclasses import replace

    return replace(c, attributes={**c.attributes, "nearest_mode": "floor"})


def _repeated(c: Call, x: Value, mode: str) -> Value:
    """Symbolic sizes: every element a whole number of times."""
    scales = list(c.attr("scales") or []) or _floats(c, 1 if c.version < 11 else 2, "scales")
    plain = c.attr("coordinate_transformation_mode", "asymmetric") == "asymmetric"
    floor = c.attr("nearest_mode", "floor") == "floor"
    if mode != "nearest" or not plain or not floor or not scales or any(s != int(s) or s < 1 for s in scales):
        raise c.refuse(
            f"{x.type} has symbolic sizes; there only mode 'nearest' with whole scales, coordinate_transformation_mode "
            "'asymmetric' and nearest_mode 'floor' are supported"
        )
    axes = c.axes(None, x.tensor.rank) or list(range(x.tensor.rank))
    for axis, scale in zip(axes, scales, strict=True):
        times = int(scale)
        if times > 1:
            before: tuple[Dim, ...] = x.shape[: axis + 1]
            wide_shape = (*before, times, *x.shape[axis + 1 :])
            spread = ops.expand(ops.reshape(x, shape=(*before, 1, *x.shape[axis + 1 :])), shape=wide_shape)
            x = ops.reshape(spread, shape=(*before[:-1], before[-1] * times, *x.shape[axis + 1 :]))
    return x
