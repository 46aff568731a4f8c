"""A case as the standard of many kernels: what is expected of them is computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from xinheng.core.ir.dtype import float64
from xinheng.core.ops import OPSET

from ..bounds import Rules
from ..call import Call
from ..case import SAMPLES, Case, Tier
from ..judge import Judgement, judge
from ..layout import Layout


@dataclass(frozen=True)
class _Remembered(Call):
    """A call that keeps the results with bounds that it was asked for."""

    known: dict[Any, tuple[Any, ...]] = field(default_factory=dict, compare=False, repr=False)

    def bounded(self, rules: Rules | None = None, function: Callable[..., Any] | None = None) -> tuple[Any, ...]:
        if (rules, function) not in self.known:
            self.known[rules, function] = super().bounded(rules, function)
        return self.known[rules, function]


@dataclass(frozen=True)
class Standard:
    """One case, ready to judge kernels of a device that declares nothing.

    Attributes:
        id: that of the case.
        call: what kernels are to compute.
        rules: the arithmetic that they may have.
        special: its values are extreme.
    """

    id: str
    call: Call
    rules: Rules
    special: bool = False

    @classmethod
    def of(cls, case: Case) -> Standard:
        call = case.call
        kept = _Remembered(**{f.name: getattr(call, f.name) for f in fields(Call)})
        return cls(case.id, kept, Rules.of(None, call.kind, case.structured), case.sample.special)

    def having(self, **operands: Any) -> Standard:
        """The same call with other values for some operands."""
        names = [operand.name for operand in OPSET[self.call.op].operands]
        given = [operands.get(name, value) for name, value in zip(names, self.call.values, strict=False)]
        return replace(self, call=replace(self.call, values=tuple(given), known={}))  # type: ignore[call-arg]

    @property
    def size(self) -> int:
        """How many numbers its operands have."""
        return sum(np.size(x) for value in self.call.values for x in (value if isinstance(value, tuple) else (value,)))

    @property
    def form(self) -> Hashable:
        """The same for calls that have the same graph, whatever their numbers."""
        call = self.call
        numbers = tuple(repr(v) for v, kind in zip(call.values, call.types, strict=True) if kind is None)
        return call.types, numbers, tuple(sorted((name, repr(value)) for name, value in call.attributes.items()))

    def judge(self, made: tuple[Any, ...]) -> Judgement:
        """Whether stored results are those of a correct kernel."""
        return judge(self.call, made, self.rules)


def standards(op: str, tier: Tier = Tier.DEFAULT) -> list[Standard]:
    """The cases of an op that float32 arithmetic can simulate, small ones first."""
    from .. import cases as cases  # fills the table

    whole = [sample for sample in SAMPLES.get(op, ()) if sample.layout is Layout.WHOLE]
    chosen = [Standard.of(case) for sample in whole for case in sample.cases(tier) if case.kind is not float64]
    return sorted(chosen, key=lambda standard: standard.size)
