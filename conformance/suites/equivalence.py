"""The suite `equivalence`: composites against their decompositions on the device, and both against the reference."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from xinheng.core.errors import DeviceError, OutOfMemory, SettingsError, UnsupportedOp
from xinheng.core.hal import Device
from xinheng.core.suite import DECLARED, Item, Outcome, Suite, Verdict

from ..case import Case, Tier, find
from ..cases import SAMPLES
from ..declared import excuse
from ..equivalence import Comparison, Incomparable, Relation, compare, composites
from ..layout import Layout

PREFIX = "equivalence/"

DEFECTS = {
    Relation.AGREED: ("", Verdict.PASS),
    Relation.FUSED: ("fused-kernel", Verdict.FAIL),
    Relation.PRIMITIVE: ("primitive", Verdict.FAIL),
    Relation.DISPUTED: ("reference-disputed", Verdict.BAD_CASE),
}


FEW = 8
"""Samples of an op in the default tier."""


class EquivalenceSuite(Suite):
    """One item per case of a composite; in the default tier one per dtype of a few samples."""

    name: ClassVar[str] = "equivalence"

    def items(self) -> Sequence[Item]:
        listed = (Item(f"{PREFIX}{case.id}", case.op, case.kind.name) for case in self._cases())
        return [item for item in listed if self.selection.admits(item)]

    def _cases(self) -> Iterator[Case]:
        tier = Tier(self.selection.tier)
        for op in composites():
            # of views only what they show is seen by a decomposition
            samples = [s for s in SAMPLES.get(op, ()) if s.layout is Layout.WHOLE and s.tier <= tier]
            if tier > Tier.DEFAULT:
                yield from (case for sample in samples for case in sample.cases(tier))
                continue
            for sample in samples[:: -(-len(samples) // FEW)] if samples else ():
                yield from {case.kind.name: case for case in reversed(list(sample.cases(tier)))}.values()

    def run(self, id: str, device: Device) -> Outcome:
        began = time.perf_counter()
        if not id.startswith(PREFIX):
            raise SettingsError(f"suite {self.name} has no item {id!r}; its ids begin with {PREFIX}")
        case = find(id.removeprefix(PREFIX))
        found = self._found(case, device)
        return Outcome(id=id, op=case.op, dtype=case.kind.name, seconds=time.perf_counter() - began, **_fields(found))

    def _found(self, case: Case, device: Device) -> Comparison | UnsupportedOp | DeviceError | MemoryError:
        reason = excuse(case.call, device.capabilities)
        if reason is not None:
            return Incomparable(reason)
        try:
            return compare(case.call, device, self.numerics, case.structured)
        except (UnsupportedOp, DeviceError, MemoryError) as error:
            return error


def _fields(found: Comparison | UnsupportedOp | DeviceError | MemoryError) -> dict[str, Any]:
    if isinstance(found, UnsupportedOp):  # whether that is a debt is for the suite of ops to say
        return {"verdict": Verdict.UNSUPPORTED, "defect": DECLARED, "message": f"nothing to compare: {found}"}
    if isinstance(found, OutOfMemory | MemoryError):
        text = str(found) or "the host has no memory left"
        return {"verdict": Verdict.OUT_OF_MEMORY, "defect": "out-of-memory", "message": text}
    if isinstance(found, DeviceError):
        return {"verdict": Verdict.FAIL, "defect": "error", "message": str(found)}
    defect, verdict = DEFECTS[found.relation]
    text = f"{found.relation}: {found.message}" if found.message else ""
    worst = min(found.worst, 1e9) if found.worst == found.worst else 1e9
    return {"verdict": verdict, "defect": defect, "message": text, "kernel": found.kernel, "worst": worst}
