"""What a report shows beside errors: how fast ops are, and how far models are from their reference."""

from __future__ import annotations

from dataclasses import dataclass

from xinheng.core.suite import Outcome, Verdict

from .model import Report

SHARES = ("arithmetic_share", "bandwidth_share")
"""Measures that say how much of what the machine was measured to be able to is used."""
MODELS = "models/"
"""How ids of the model suite begin."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast an op is in a dtype: the item that uses most of the machine."""

    op: str
    dtype: str
    best: Outcome

    @property
    def share(self) -> float | None:
        """The larger of its shares of the two limits; None where no limit was measured."""
        found = [self.best.measures[name] for name in SHARES if name in self.best.measures]
        return max(found, default=None)

    @property
    def limit(self) -> str:
        """Which of the limits it is closer to: "arithmetic" or "memory"."""
        found = self.best.measures
        return "arithmetic" if found.get(SHARES[0], 0.0) >= found.get(SHARES[1], 0.0) else "memory"


@dataclass(frozen=True, slots=True)
class Walk:
    """The error of a model layer by layer, and that of a correct computation in the same dtype."""

    model: str
    errors: tuple[float, ...]
    noise: tuple[float, ...]


def speeds(report: Report) -> tuple[Speed, ...]:
    """The speed of every op and dtype that was timed, the best used first."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in report.outcomes:
        if "microseconds" in outcome.measures:
            found.setdefault((outcome.op, outcome.dtype), []).append(outcome)
    made = []
    for (op, kind), members in found.items():
        best = max(members, key=lambda o: (max(o.measures.get(name, 0.0) for name in SHARES), o.measures["gflops"]))
        made.append(Speed(op, kind, best))
    return tuple(sorted(made, key=lambda speed: (-(speed.share or 0.0), speed.op, speed.dtype)))


def models(report: Report) -> tuple[Outcome, ...]:
    """The items of the model suite, failures first."""
    found = (outcome for outcome in report.outcomes if outcome.id.startswith(MODELS))
    return tuple(sorted(found, key=lambda outcome: outcome.verdict is Verdict.PASS))


def walks(report: Report) -> tuple[Walk, ...]:
    """The walks through the layers of models."""
    made = []
    for outcome in models(report):
        errors, noise = (_numbered(outcome, name) for name in ("nmse_", "noise_"))
        if len(errors) > 1 and len(errors) == len(noise):
            made.append(Walk(outcome.id.split("/")[1], errors, noise))
    return tuple(made)


def _numbered(outcome: Outcome, name: str) -> tuple[float, ...]:
    digits = {key.removeprefix(name): value for key, value in outcome.measures.items() if key.startswith(name)}
    return tuple(value for _, value in sorted((int(key), value) for key, value in digits.items() if key.isdigit()))
