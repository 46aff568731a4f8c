"""What a benchmark found, as data."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 1
"""Of the JSON form; a number that changes its meaning changes this one."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity that was measured several times: median, least, most, the quartiles, and how often."""

    median: float
    minimum: float
    maximum: float
    lower_quartile: float
    upper_quartile: float
    samples: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value."""
        found = sorted(values)
        low, middle, high = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
        return cls(middle, found[0], found[-1], low, high, len(found))


@dataclass(frozen=True, slots=True)
class Share:
    """How near a step came to what the machine gives.

    `bandwidth` is the time in which weights and cache can be read, `arithmetic` that of the products, both as shares of
    the time that the step took; `limit` names the larger one, which is the share of what was possible.
    """

    bandwidth: float
    arithmetic: float

    @property
    def limit(self) -> str:
        return "bandwidth" if self.bandwidth >= self.arithmetic else "arithmetic"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"limit": self.limit}


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prompt of `tokens` tokens: seconds to its first token, tokens per second, share of the limits if known."""

    tokens: int
    first_token_seconds: Spread
    rate: Spread
    share: Share | None


@dataclass(frozen=True, slots=True)
class Decode:
    """`batch` sequences that run together.

    `rate` counts tokens of full decode steps over their time; `end_to_end` all tokens over the whole time, prompts
    included. Tokens per second.
    """

    batch: int
    rate: Spread
    end_to_end: Spread
    step_seconds: Spread
    share: Share | None


@dataclass(frozen=True, slots=True)
class Overhead:
    """Where the time of a decode step of one sequence goes that is not inside kernels.

    `step` is a step of the engine; `forward` the part of it in which the device computes the graph; `kernels` what the
    kernels alone took, from other steps, in which each was timed. Seconds, medians.
    """

    step: float
    forward: float
    kernels: float

    @property
    def hal(self) -> float:
        """Seconds of the forward pass outside of kernels."""
        return self.forward - self.kernels

    @property
    def hal_share(self) -> float:
        """The same as a share of the step."""
        return self.hal / self.step

    @property
    def engine(self) -> float:
        """Seconds of scheduling, sampling and text."""
        return self.step - self.forward

    def to_json(self) -> dict[str, float]:
        names = ("step", "forward", "kernels", "hal", "engine")
        return {f"{name}_seconds": getattr(self, name) for name in names} | {"hal_share": self.hal_share}


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Everything; `to_json` is what `xinheng bench --json` prints."""

    model: str
    about: dict[str, Any]
    load_seconds: float
    memory: dict[str, int]
    limits: dict[str, Any] | None
    prefill: Prefill
    decode: tuple[Decode, ...]
    overhead: Overhead | None
    receipt: dict[str, Any]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        data = asdict(self)
        data["overhead"] = self.overhead.to_json() if self.overhead else None
        for share, made in zip(self._shares(), (data["prefill"], *data["decode"]), strict=True):
            made["share"] = share.to_json() if share else None
        return {"version": VERSION, **data}

    def _shares(self) -> list[Share | None]:
        return [self.prefill.share, *(each.share for each in self.decode)]
