"""The geometry of the plots in a report; templates draw it. Errors are in units of the bound, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from xinheng.core.suite import Outcome

from .figures import Spread

LOWEST, HIGHEST = 1e-3, 10.0
"""Ends of the axis; errors beyond them are drawn at its ends."""
BINS = 4
"""Bins of a histogram per decade, so that the bound itself is an edge."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis from `LOWEST` to `HIGHEST` that starts at `left` and is `width` pixels wide."""

    left: float
    width: float

    def at(self, error: float) -> float:
        """The place of an error."""
        share = math.log(min(max(error, LOWEST), HIGHEST) / LOWEST) / math.log(HIGHEST / LOWEST)
        return round(self.left + share * self.width, 1)

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Places and texts of its ticks."""
        return tuple((self.at(x), text) for x, text in ((1e-3, "0.1 %"), (0.01, "1 %"), (0.1, "10 %"), (10, "10 ×")))

    @property
    def bound(self) -> float:
        """The place of the bound itself."""
        return self.at(1.0)

    @property
    def right(self) -> float:
        return self.left + self.width


@dataclass(frozen=True, slots=True)
class Mark:
    """The errors of an op in one dtype: the middle, the 99th percentile and the largest, as places on the axis."""

    spread: Spread
    p50: float
    p99: float
    worst: float

    @property
    def over(self) -> bool:
        """The largest is beyond the bound."""
        return self.spread.worst > 1


@dataclass(frozen=True, slots=True)
class Lane:
    """An op with its marks."""

    op: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bin of a histogram: where it starts and ends, how many items are in it, and how high it is drawn."""

    left: float
    right: float
    count: int
    height: float
    over: bool
    text: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many items of a dtype have which error; `exact` ones have none at all, and have no bar."""

    dtype: str
    items: int
    exact: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """The largest error of an op in a dtype in two reports, and its place; `moved` is a change worth a name."""

    op: str
    dtype: str
    before: float
    after: float
    x: float
    y: float
    moved: bool


def points(
    before: Iterable[Spread], after: Iterable[Spread], axis: Axis, grew: Callable[[float, float], bool]
) -> tuple[Point, ...]:
    """A point for every op and dtype that has errors in both reports; `grew` says which of them moved."""
    old = {(spread.op, spread.dtype): spread.worst for spread in before}
    return tuple(
        Point(s.op, s.dtype, a, s.worst, axis.at(a), axis.at(s.worst), grew(a, s.worst))
        for s in after
        if (a := old.get((s.op, s.dtype), 0.0)) > 0 and s.worst > 0
    )


@dataclass(frozen=True, slots=True)
class Curve:
    """Positive numbers as places in a frame, on a logarithmic scale from `low` below to `high` above."""

    points: tuple[tuple[float, float], ...]

    @property
    def path(self) -> str:
        """As the points of a polyline."""
        return " ".join(f"{x},{y}" for x, y in self.points)


@dataclass(frozen=True, slots=True)
class Curves:
    """Several curves in one frame, and the powers of ten with their heights."""

    curves: tuple[Curve, ...]
    ticks: tuple[tuple[float, str], ...]


def curves(series: Sequence[Sequence[float]], left: float, width: float, height: float) -> Curves:
    """Curves of equally many numbers each; zeros and what is not finite lie at the ends of the scale."""
    finite = [x for values in series for x in values if 0 < x < math.inf] or [1.0]
    low, high = math.floor(math.log10(min(finite))), math.ceil(math.log10(max(finite)))
    high = max(high, low + 1)

    def up(value: float) -> float:
        exponent = math.log10(value) if 0 < value < math.inf else (high if value > 0 else low)
        return round(height * (high - exponent) / (high - low), 1)

    made = []
    for values in series:
        step = width / max(len(values) - 1, 1)
        made.append(Curve(tuple((round(left + i * step, 1), up(value)) for i, value in enumerate(values))))
    every = max((high - low) // 5, 1)
    return Curves(tuple(made), tuple((up(10.0**k), f"1e{k}") for k in range(low, high + 1, every)))


def lanes(spreads: Iterable[Spread], axis: Axis) -> tuple[Lane, ...]:
    """A lane for every op that has errors, with its dtypes that have any.

    Errors beyond the bound come first, then the largest of the dtype that is given first, usually the widest: in
    narrow ones all come close to the bound.
    """
    found: dict[str, list[Spread]] = {}
    for spread in spreads:
        if spread.worst > 0:
            found.setdefault(spread.op, []).append(spread)
    made = [
        Lane(op, tuple(Mark(s, axis.at(s.p50), axis.at(s.p99), axis.at(s.worst)) for s in members))
        for op, members in found.items()
    ]
    return tuple(sorted(made, key=_prominence))


def _prominence(lane: Lane) -> tuple[float, float, str]:
    errors = [mark.spread.worst for mark in lane.marks]
    return -max(max(errors), 1.0), -errors[0], lane.op


def histograms(
    outcomes: Iterable[Outcome], axis: Axis, height: float, first: Sequence[str] = ()
) -> tuple[Histogram, ...]:
    """A histogram for every dtype in which something is rounded; `first` are dtypes that come before others."""
    errors: dict[str, list[float]] = {}
    for outcome in outcomes:
        if outcome.worst is not None:
            errors.setdefault(outcome.dtype or "any dtype", []).append(outcome.worst)
    made = [_histogram(kind, values, axis, height) for kind, values in errors.items() if any(values)]
    order = [*first, *sorted(errors)]
    return tuple(sorted(made, key=lambda h: order.index(h.dtype)))


def _histogram(kind: str, values: Sequence[float], axis: Axis, height: float) -> Histogram:
    decades = round(math.log10(HIGHEST / LOWEST))
    edges = [LOWEST * 10 ** (i / BINS) for i in range(decades * BINS + 1)]
    counts = [0] * (len(edges) - 1)
    bound = round(-math.log10(LOWEST)) * BINS
    for value in values:
        if value > 0:
            place = math.ceil(math.log10(min(value, HIGHEST) / LOWEST) * BINS - 1e-9) - 1 if value > LOWEST else 0
            place = min(place, bound - 1) if value <= 1 else max(place, bound)
            counts[place] += 1
    most = max(counts)
    bars = tuple(
        Bar(
            axis.at(edges[i]) + 0.5,
            axis.at(edges[i + 1]) - 0.5,
            count,
            round(max(count / most * height, 1.5), 1),
            i >= bound,
            f"{kind}: {count:,} items between {_percent(edges[i])} and {_percent(edges[i + 1])} of the bound",
        )
        for i, count in enumerate(counts)
        if count
    )
    return Histogram(kind, len(values), sum(value == 0 for value in values), bars)


def _percent(error: float) -> str:
    return f"{error * 100:.2g} %" if error < 1 else f"{error * 100:.0f} %"
