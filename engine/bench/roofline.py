"""The roofline of a model: what each op of a step achieves, over its arithmetic intensity, below the machine's limits.

Source of the model: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from xinheng.core.hal import Limits, Profile, Span
from xinheng.core.ir import Node

from ..batch import Batch
from ..runner import ModelRunner
from ..settings import EngineSettings
from .cost import Cost, Step, cost
from .drive import batches, random_prompts

if TYPE_CHECKING:
    from jinja2 import Environment

LEFT, TOP, WIDTH, HEIGHT = 64, 14, 800, 380
"""The frame of a plot, in pixels."""
INTENSITIES = 1 / 16, 4096.0
"""Operations per byte at the ends of the axis."""
DECADES = 5
"""That the vertical axis spans below the highest limit."""

Phase = tuple[int, int, int, bool]
"""Sequences, tokens of their prompts, tokens made, and whether decode steps are what is looked at."""


@dataclass(frozen=True, slots=True)
class OpPoint:
    """An op of a step, all its calls with results of one type together: seconds and what was done in them.

    `bound` is the time that the limits allow for it.
    """

    op: str
    result: str
    calls: float
    seconds: float
    operations: float
    nbytes: float
    kind: str
    bound: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.nbytes if self.nbytes else 0.0

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds if self.seconds else 0.0

    @property
    def share(self) -> float:
        """Of what the limits allow."""
        return self.bound / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class PhasePoints:
    """The ops of one kind of step, those that take longest first."""

    name: str
    points: tuple[OpPoint, ...]

    @property
    def seconds(self) -> float:
        return sum(point.seconds for point in self.points)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The limits, and the ops of each phase below them."""

    limits: Limits
    phases: tuple[PhasePoints, ...]


def roofline(
    runner: ModelRunner, settings: EngineSettings, limits: Limits, fast: bool, phases: Mapping[str, Phase]
) -> Roofline:
    """Run some steps of each phase with every kernel timed."""
    found = []
    for name, (count, length, tokens, decode) in phases.items():
        prompts = random_prompts(count, length, runner.info.vocab_size)
        profile, steps = Profile(), 0
        step = Step((length,) * count, (length,) * count)
        for batch, full in batches(runner, settings, prompts, tokens):
            wanted = full if decode else not full
            runner.forward(batch, profile if wanted else None)
            if wanted:
                steps += 1
                step = _step(batch) if decode else step
        graph = runner.executable.graph
        whole = steps if decode else 1
        sizes = step.sizes(graph, runner.block_size)
        costs = [(node, cost(node, step, sizes, fast)) for node in graph.nodes]
        found.append(PhasePoints(name, _points(profile.spans, costs, whole, limits)))
    return Roofline(limits, tuple(found))


def _step(batch: Batch) -> Step:
    ends = batch.query_start.tolist()
    return Step(tuple(b - a for a, b in pairwise(ends)), tuple(batch.seq_lens.tolist()))


def _points(
    spans: Sequence[Span], costs: Sequence[tuple[Node, Cost | None]], steps: int, limits: Limits
) -> tuple[OpPoint, ...]:
    """Times of a step joined with costs, by op and type of the result."""
    seconds: dict[tuple[str, str], float] = {}
    calls: dict[tuple[str, str], int] = {}
    for span in spans:
        key = span.op, span.result
        seconds[key] = seconds.get(key, 0.0) + span.duration / steps
        calls[key] = calls.get(key, 0) + 1
    groups: dict[tuple[str, str], list[Cost]] = {key: [] for key in seconds}
    leaders: dict[tuple[str, int], tuple[str, str]] = {}
    for node, each in costs:
        key = node.op.name, str(node.results[0].type)
        place = node.op.name, id(node.operands[0])
        if key in groups:
            leaders.setdefault(place, key)
        else:  # one call can serve several nodes that read the same tensor
            key = leaders.get(place, key)
        if each is not None and key in groups:
            groups[key].append(each)
    made = [_point(key, seconds[key], calls[key] / steps, members, limits) for key, members in groups.items()]
    return tuple(sorted(made, key=lambda point: -point.seconds))


def _point(key: tuple[str, str], seconds: float, calls: float, costs: Sequence[Cost], limits: Limits) -> OpPoint:
    rates = limits.rates
    done, moved = sum(c.operations for c in costs), sum(c.nbytes for c in costs)
    kind = max(costs, key=lambda c: c.operations).kind if costs else "float32"
    kind = kind if kind in rates else "float32"
    return OpPoint(*key, calls, seconds, done, moved, kind, max(moved / limits.bandwidth, done / rates[kind]))


@dataclass(frozen=True, slots=True)
class Frame:
    """Logarithmic axes: operations per byte to the right, operations per second upwards."""

    highest: float

    def x(self, intensity: float) -> float:
        low, high = INTENSITIES
        share = math.log(min(max(intensity, low), high) / low) / math.log(high / low)
        return round(LEFT + share * WIDTH, 1)

    def y(self, rate: float) -> float:
        low = self.highest / 10**DECADES
        share = math.log(min(max(rate, low), self.highest) / low) / math.log(self.highest / low)
        return round(TOP + (1 - share) * HEIGHT, 1)

    def roof(self, bandwidth: float, rate: float) -> str:
        """The points of a polyline: what memory allows, then what arithmetic does."""
        low, high = INTENSITIES
        ridge = min(max(rate / bandwidth, low), high)
        corners = [(low, low * bandwidth), (ridge, min(rate, ridge * bandwidth)), (high, rate)]
        return " ".join(f"{self.x(a)},{self.y(b)}" for a, b in corners)

    @property
    def columns(self) -> list[tuple[float, str]]:
        low, high = (round(math.log2(end)) for end in INTENSITIES)
        return [(self.x(2.0**k), f"{2**k}" if k >= 0 else f"1/{2**-k}") for k in range(low, high + 1, 2)]

    @property
    def rows(self) -> list[tuple[float, str]]:
        top = math.floor(math.log10(self.highest))
        return [(self.y(10.0**k), quantity(10.0**k)) for k in range(top, top - DECADES, -1)]


def quantity(value: float) -> str:
    """A number with a decimal prefix, such as 1.23 G."""
    for exponent, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**exponent:
            return f"{value / 10**exponent:.3g} {prefix}"
    return f"{value:.3g} "


def roofline_html(found: Roofline, title: str, facts: Sequence[str], style: str) -> str:
    """A page that needs nothing else; `style` is the style sheet."""
    from markupsafe import Markup

    frame = Frame(max(found.limits.rates.values()) * 2)
    return (
        _environment()
        .get_template("roofline.html.jinja")
        .render(
            title=title,
            facts=facts,
            style=Markup(style),
            limits=found.limits,
            phases=found.phases,
            frame=frame,
            box=(LEFT, TOP, WIDTH, HEIGHT),
            kinds={kind: i for i, kind in enumerate(sorted(found.limits.rates, key=lambda k: -found.limits.rates[k]))},
        )
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    package = __name__.rpartition(".")[0]
    made = Environment(loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.globals.update(quantity=quantity, radius=lambda share: round(3 + 9 * math.sqrt(share), 1))
    return made
