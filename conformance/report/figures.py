"""What follows from outcomes by counting: the figures of a run, and how errors lie against their bounds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict

from xinheng.core.suite import Outcome, Verdict


class Data(BaseModel):
    """Root of the parts of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Figures(Data):
    """The run in numbers.

    Attributes:
        total: items that were run.
        expected: items there should have been; fewer is a failure.
        verdicts: how many of each.
        absent: items that the device lacks by its own declaration, such as of its dtypes.
        indebted: items that an entry of the ledger excuses.
        pass_rate: passes per item that is not absent; excused items count as not passed.
        debt: indebted per item that is not absent.
    """

    total: int
    expected: int
    verdicts: dict[str, int]
    absent: int
    indebted: int
    pass_rate: float
    debt: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], excused: Collection[str] = (), expected: int | None = None) -> Self:
        """Count outcomes.

        Args:
            excused: ids of items that the ledger excuses.
            expected: how many items there should be; None for as many as there are.
        """
        verdicts = {verdict.value: 0 for verdict in Verdict}
        for outcome in outcomes:
            verdicts[outcome.verdict.value] += 1
        without = sum(outcome.absent for outcome in outcomes)
        indebted = sum(outcome.id in excused for outcome in outcomes)
        denominator = max(len(outcomes) - without, 1)
        return cls(
            total=len(outcomes),
            expected=len(outcomes) if expected is None else expected,
            verdicts={name: n for name, n in verdicts.items() if n},
            absent=without,
            indebted=indebted,
            pass_rate=verdicts[Verdict.PASS.value] / denominator,
            debt=indebted / denominator,
        )


class Spread(Data):
    """Errors of an op in a dtype, in units of the bound: what half, 90 % and 99 % of the items stay below, and all."""

    op: str
    dtype: str
    items: int
    p50: float
    p90: float
    p99: float
    worst: float

    @classmethod
    def each(cls, outcomes: Sequence[Outcome]) -> tuple[Self, ...]:
        """The spread of every op and dtype that has errors, in the order of the outcomes."""
        errors: dict[tuple[str, str], list[float]] = {}
        for outcome in outcomes:
            if outcome.worst is not None:
                errors.setdefault((outcome.op, outcome.dtype), []).append(outcome.worst)
        made = []
        for (op, kind), values in errors.items():
            ranks = np.quantile(np.sort(values), (0.5, 0.9, 0.99), method="higher")
            p50, p90, p99 = map(float, ranks)
            made.append(cls(op=op, dtype=kind, items=len(values), p50=p50, p90=p90, p99=p99, worst=max(values)))
        return tuple(made)
