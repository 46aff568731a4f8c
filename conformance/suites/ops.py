"""The suite `ops`: every op of the op set on a device, judged by computed bounds, with the checks of `checks`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from xinheng.core.hal import Device, Numerics
from xinheng.core.suite import Item, Outcome, Selection, Suite

from ..case import Case, Tier, find
from ..cases import SAMPLES
from ..examination import Examination, supported
from ..perf import Stopwatch


class OpSuite(Suite):
    """One item per case; option `mode` is "test", or "support" or "perf" as in `Plan`."""

    name: ClassVar[str] = "ops"

    def __init__(self, selection: Selection, numerics: Numerics | None = None) -> None:
        super().__init__(selection, numerics)
        self._stopwatch: Stopwatch | None = None

    def items(self) -> Sequence[Item]:
        return [item for case in self.cases() if self.selection.admits(item := Item(case.id, case.op, case.kind.name))]

    def cases(self) -> Iterator[Case]:
        """The cases of the tier, those of ops that are not wanted left out."""
        for op in sorted(SAMPLES):
            if self.selection.ops is None or op in self.selection.ops:
                for sample in SAMPLES[op]:
                    yield from sample.cases(Tier(self.selection.tier))

    def run(self, id: str, device: Device) -> Outcome:
        case, mode = find(id), self.selection.options.get("mode", "test")
        if mode == "support":
            return supported(case, device, self.numerics)
        if mode == "perf" and (self._stopwatch is None or self._stopwatch.device is not device):
            self._stopwatch = Stopwatch(device, self.numerics)
        tier = Tier(self.selection.tier)
        return Examination(case, device, self.numerics, tier, stopwatch=self._stopwatch).outcome()
