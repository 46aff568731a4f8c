"""Which ops and layers are behind a model that is off: paired bisection over overrides, with a stopping rule.

Each question is the same: does the model come significantly closer to the trusted run when some ops are computed by the
reference instead? It is answered by the differences of divergence, token by token on the same texts, and by more and
more texts until the answer is clear. Halves of the suspects are asked for until single ops are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from pydantic import BaseModel, ConfigDict

from xinheng.core.baseline import Baseline, Trust
from xinheng.core.divergence import Array, Interval, interval
from xinheng.core.errors import UnsupportedOp
from xinheng.core.hal import Device, Numerics
from xinheng.core.model_probe import MeasuredModel, ModelProbe
from xinheng.core.ops import OPSET

CONFIDENCE = 0.99
"""Of each answer."""
MATERIAL = 0.05
"""A change below this share of the divergence that is still to be explained is nobody's guilt."""
SURPLUS = 2.0
"""A divergence of so many times the noise is what correct kernels may have."""

Suspect = frozenset[str]
"""Ops that can only be moved together."""


class Guilt(BaseModel):
    """Ops behind a deviation.

    Attributes:
        ops: usually one; several where they share a state or act only together.
        gain, gain_low, gain_high: by how much the mean divergence falls when the reference computes them.
        healed: those of them whose decomposition on the device heals it too, so that only their kernel is wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ops: tuple[str, ...]
    gain: float
    gain_low: float
    gain_high: float
    healed: tuple[str, ...] = ()


class Attribution(BaseModel):
    """What is behind the deviation of a model.

    Attributes:
        model, device, reference, dtype: what was compared with what.
        tokens: how many the first measurement has.
        kl, kl_low, kl_high: mean divergence of the device from the reference.
        noise: that of correct runs in the same dtype.
        guilty: the smallest set of ops found whose replacement explains it, most important first.
        residual: mean divergence with all of them replaced.
        explained: no significant deviation is left.
        first_layer: the first layer whose output is beyond twice the noise, -1 for the embedding; None for none.
        layers, layer_noise: the NMSE of what goes into the first layer and comes out of each.
        runs: in how many ways the model was run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    device: str
    reference: str
    dtype: str
    tokens: int
    kl: float
    kl_low: float
    kl_high: float
    noise: float
    guilty: tuple[Guilt, ...]
    residual: float
    explained: bool
    first_layer: int | None
    layers: tuple[float, ...]
    layer_noise: tuple[float, ...]
    runs: int

    @property
    def deviates(self) -> bool:
        """Whether there is anything to explain."""
        return self.kl_low > SURPLUS * self.noise

    @property
    def ops(self) -> tuple[str, ...]:
        """All guilty ops."""
        return tuple(op for guilt in self.guilty for op in guilt.ops)


Way = tuple[tuple[str, str], ...]
"""Overrides on top of the usual ones."""


@dataclass
class Investigation:
    """One model on one device, run in many ways, one after another; what was measured stays known.

    Args:
        noise: the mean divergence of correct runs.
        numerics: how the device computes, apart from what is replaced.
        material: the smallest gain that counts.
    """

    model: MeasuredModel
    device: Device
    baseline: Baseline
    noise: float
    numerics: Numerics
    dtype: str
    material: float = 0.0
    runs: int = 0
    _open: tuple[Way, ModelProbe] | None = None
    _seen: dict[tuple[Way, int], Array] = field(default_factory=dict)

    def close(self) -> None:
        """Release the last run."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def divergence(self, way: Way, text: int) -> Array:
        """Of each token of a text."""
        if (way, text) not in self._seen:
            self._seen[way, text] = self.baseline.deviation(self._run(way), [text]).kl
        return self._seen[way, text]

    def _run(self, way: Way) -> ModelProbe:
        if self._open is None or self._open[0] != way:
            self.close()
            numerics = Numerics(self.numerics.mode, {**self.numerics.overrides, **dict(way)})
            self._open = way, self.model.open(self.device, numerics, self.dtype)
            self.runs += 1
        return self._open[1]

    def all(self, way: Way) -> list[Array]:
        """The divergence of each token, by text."""
        return [self.divergence(way, text) for text in range(len(self.baseline.texts))]

    def mean(self, found: Sequence[Suspect] = ()) -> Interval:
        """The mean divergence over all texts with those found computed by the reference."""
        return interval(np.concatenate(self.all(referred(union(found)))))

    def gain(self, before: Way, after: Way) -> Interval:
        """By how much divergence falls from one way to another, on as many texts as it takes to be sure that it does so
        materially, or that it does not."""
        known, differences = self.all(before), list[Array]()
        while True:
            text = len(differences)
            differences.append(known[text] - self.divergence(after, text))
            found = interval(np.concatenate(differences), CONFIDENCE)
            if found.low > self.material or found.high < self.material or text + 1 == len(known):
                return found

    def matters(self, replaced: Suspect, more: Suspect) -> Interval | None:
        """The gain of replacing `more` beside `replaced`, if it is sure to be material."""
        found = self.gain(referred(replaced), referred(replaced | more))
        return found if found.low > self.material else None

    def guilty(self, suspects: Sequence[Suspect], replaced: Suspect) -> list[Suspect]:
        """The smallest sets among suspects whose replacement matters where `replaced` is replaced already."""
        if not suspects or self.matters(replaced, union(suspects)) is None:
            return []
        if len(suspects) == 1:
            return [suspects[0]]
        middle = len(suspects) // 2
        halves = suspects[:middle], suspects[middle:]
        parts = [part for half in halves for part in self.guilty(half, replaced)]
        return parts or [self._together(halves, replaced)]

    def _together(self, halves: tuple[Sequence[Suspect], Sequence[Suspect]], replaced: Suspect) -> Suspect:
        """Those that matter only together: of each half what matters while the other is replaced."""
        both = [ops for half, other in (halves, halves[::-1]) for ops in self.guilty(half, replaced | union(other))]
        return union(both or [*halves[0], *halves[1]])

    def search(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """A set of guilty ones of which none can be left out; each round explains what the one before has left."""
        found: list[Suspect] = []
        while (rest := self.mean(found)).low > SURPLUS * self.noise:
            self.material = max(SURPLUS * self.noise, MATERIAL * rest.mean)
            more = self.guilty([ops for ops in suspects if ops not in found], union(found))
            if not more:
                break
            found += more
        for ops in list(found):
            others = [other for other in found if other is not ops]
            if others and self.matters(union(others), ops) is None:
                found = others
        return found

    def guilt(self, ops: Suspect, found: Sequence[Suspect]) -> Guilt:
        """What one of those found does, while the others are replaced."""
        others = union(other for other in found if other is not ops)
        gain = self.gain(referred(others), referred(others | ops))
        healed = tuple(op for op in sorted(ops) if OPSET[op].composite and self._heals(op, others))
        return Guilt(ops=tuple(sorted(ops)), gain=gain.mean, gain_low=gain.low, gain_high=gain.high, healed=healed)

    def _heals(self, op: str, others: Suspect) -> bool:
        """Whether its decomposition takes the place of the reference; not if the device cannot run that."""
        with suppress(UnsupportedOp):
            way = tuple(sorted((*referred(others), (op, "decompose"))))
            return self.gain(referred(others), way).low > self.material
        return False


def referred(ops: Iterable[str]) -> Way:
    """Ops computed by the reference."""
    return tuple((op, "reference") for op in sorted(ops))


def union(sets: Iterable[Suspect]) -> Suspect:
    """All ops of some sets."""
    return frozenset(op for ops in sets for op in ops)


def attribute(trust: Trust, device: Device, numerics: Numerics | None = None, dtype: str = "auto") -> Attribution:
    """Find the ops and the first layer behind the deviation of a model on a device.

    Args:
        trust: the model, the trusted device and the texts.
        numerics: how the device is to compute; ops that are overridden in it are no suspects.
        dtype: of activations.

    Raises:
        UnsupportedOp: the device cannot run the model.
        DeviceError: it fails to, or the trusted device cannot tell the noise.
    """
    numerics = numerics or Numerics()
    baseline = trust.baseline()
    probe = trust.model.open(device, numerics, dtype)
    try:
        noise, walk = trust.noise(baseline, probe, numerics.mode), baseline.walk(probe)
        suspects = [ops for ops in probe.movable if not ops & numerics.overrides.keys()]
        kind = probe.dtype.name
    finally:
        probe.close()
    case = Investigation(trust.model, device, baseline, noise.kl, numerics, dtype)
    try:
        whole, found = case.mean(), case.search(suspects)
        residual = case.mean(found)
        guilty = sorted((case.guilt(ops, found) for ops in found), key=lambda guilt: -guilt.gain)
    finally:
        case.close()
    beyond = np.flatnonzero(~(walk <= SURPLUS * noise.walk))
    return Attribution(
        model=trust.model.name,
        device=device.spec,
        reference=trust.device.spec,
        dtype=kind,
        tokens=sum(map(len, baseline.texts)),
        kl=whole.mean,
        kl_low=whole.low,
        kl_high=whole.high,
        noise=noise.kl,
        guilty=tuple(guilty),
        residual=residual.mean,
        explained=residual.low <= SURPLUS * noise.kl,
        first_layer=int(beyond[0]) - 1 if beyond.size else None,
        layers=tuple(map(float, walk)),
        layer_noise=tuple(map(float, noise.walk)),
        runs=case.runs,
    )
