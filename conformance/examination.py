"""One case on one device, from the question whether it is supported to the last check: its outcome."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError, OutOfMemory, UnsupportedOp, XinhengError
from xinheng.core.hal import Device, MemoryGuard, Numerics
from xinheng.core.ir.dtype import float32
from xinheng.core.suite import DECLARED, Outcome, Verdict

from . import checks
from .case import Case, Tier
from .checks import Experiment, Finding
from .declared import excuse
from .determinism import PROMISED_BY, promised
from .draw import stream
from .judge import Judgement
from .paging import repaged
from .perf import Stopwatch
from .trial import kernels_of

REPEATS = (2, 2, 50)
"""Further runs of a case beside the first, for D1, by tier."""
CHURNED = (8, 1, 1)
"""One case of so many is run again after other work, by tier."""
BEYOND = 1e9
"""What an infinite error counts as, in units of the bound."""


@dataclass
class Examination:
    """What is found out about a case on a device; `outcome` is the result.

    Args:
        tier: how often things are repeated.
        further: make the checks of `checks` on results that are right.
        stopwatch: take times instead of these.
    """

    case: Case
    device: Device
    numerics: Numerics
    tier: Tier = Tier.DEFAULT
    further: bool = True
    stopwatch: Stopwatch | None = None
    found: dict[str, Any] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        """Run everything. What goes wrong on the device is the verdict.

        Raises:
            XinhengError: the case itself cannot be evaluated.
        """
        began = time.perf_counter()
        try:
            finding = self._find()
        except (OutOfMemory, MemoryError) as error:
            self.found.update(verdict=Verdict.OUT_OF_MEMORY)
            finding = Finding("out-of-memory", str(error) or "the host has no memory left")
        except DeviceError as error:
            finding = self._refused(error) if excused(self.case, self.device) else Finding("error", str(error))
        if finding is not None:
            self.found.setdefault("verdict", Verdict.FAIL)
            self.found.update(defect=finding.defect, message=finding.message)
        self.found.setdefault("verdict", Verdict.PASS)
        kind = self.case.kind.name
        seconds = time.perf_counter() - began
        return Outcome(id=self.case.id, op=self.case.op, dtype=kind, seconds=seconds, **self.found)

    def _find(self) -> Finding | None:
        """The first thing that is wrong, in order of gravity."""
        call, device = self.case.call, self.device
        try:
            node = repaged(call, device.capabilities).graph().nodes[-1]
        except UnsupportedOp as error:
            return self._refused(error)
        chosen = call.op in self.numerics.overrides
        try:
            claim = chosen or checks.claimed(device, node)
            lie = None if chosen else checks.contradiction(device, node, claim)
        except DeviceError as error:
            return Finding("supports", str(error))
        if lie is None and not claim:
            lie = checks.forced(call, device, self.numerics)
        if lie is not None:
            return lie
        with device.guard_memory() or nullcontext() as guard:
            try:
                experiment = Experiment(self.case, device, self.numerics)
                damage = checks.run_guarded(experiment, guard)
            except UnsupportedOp as error:
                if claim and not chosen and excused(self.case, device) is None:
                    return checks.refused(call.op, error)
                return self._refused(error)
        self.found.update(kernel=kernels_of(experiment.trial.executable.receipt, call.op))
        judgement = experiment.judge(call, experiment.first)
        self.found.update(
            program=judgement.program,
            worst=min(judgement.worst, BEYOND) if judgement.worst == judgement.worst else BEYOND,
            useless=judgement.useless,
        )
        if damage is not None:
            return damage
        if not judgement.ok:
            return self._diagnosis(experiment, judgement, guard)
        if judgement.vacuous and not self.case.sample.special:
            self.found.update(verdict=Verdict.BAD_CASE)
            return Finding("useless-bound", f"the bounds of {judgement.useless:.0%} of the results say nothing")
        if self.stopwatch is not None:
            with checks.blamed(device, "failed to run again"):
                self.found.update(measures=self.stopwatch.measures(experiment.trial))
            return None
        return self._checked(experiment) if self.further else None

    def _refused(self, error: XinhengError) -> Finding:
        """What is noted of a proper refusal; one announced by the capabilities of the device is marked as such."""
        self.found.update(verdict=Verdict.UNSUPPORTED)
        reason = excused(self.case, self.device)
        return Finding("", str(error)) if reason is None else Finding(DECLARED, reason)

    def _diagnosis(self, experiment: Experiment, judgement: Judgement, guard: MemoryGuard | None) -> Finding:
        """Why the first results were wrong: read too early, different each time, never written, or just wrong."""
        left = checks.unwritten(experiment.first) if guard is not None else None
        if left is not None:
            return left
        call = self.case.call
        again = experiment.run()
        if experiment.judge(call, checks.at_rest(experiment)).ok:
            if not experiment.judge(call, again).ok:
                return Finding("synchronisation", f"wrong unless the device is at rest: {judgement.message}")
            return Finding("repeat", f"wrong the first time and then right: {judgement.message}")
        text = checks.difference(again, experiment.first)
        if text is not None:
            return Finding("repeat", f"wrong, and different each time: {text}")
        return Finding(judgement.defect, judgement.message)

    def _checked(self, experiment: Experiment) -> Finding | None:
        """All further checks; levels of determinism that hold are noted."""
        held, broken = {""}, set()
        for level, found in self._further(experiment):
            # a row or a capture that differs by chance is no fault of its own
            finding = (found and found.defect in PROMISED_BY and checks.unsteady(experiment)) or found
            if finding is None:
                held.add(level)
            elif finding.defect not in PROMISED_BY or PROMISED_BY[finding.defect] <= promised(self.device):
                return finding
            else:
                broken.add(finding.defect)
        self.found.update(determinism=tuple(sorted(held - {""})))
        if not broken & {"repeat", "process"}:
            self.found.update(digest=checks.digest(experiment.first))
        return None

    def _further(self, experiment: Experiment) -> Iterator[tuple[str, Finding | None]]:
        """Pairs of a level, empty for what every device must hold, and what is wrong."""
        yield "", checks.waited(experiment)
        yield "D1", checks.repeated(experiment, REPEATS[self.tier])
        wrong, alike = checks.second_run(experiment)
        yield "", wrong
        eager = checks.eager_differs(experiment)
        if eager is None and not alike:
            eager = Finding("capture", "eager and captured runs differ on other numbers than the first")
        yield "D4", eager
        rows, compared = checks.batch_slice(experiment)
        if compared:
            yield "D3", rows
        if int(stream("churn", self.case.id).integers(0, CHURNED[self.tier])) == 0:
            yield "", checks.after_churn(experiment)


def supported(case: Case, device: Device, numerics: Numerics) -> Outcome:
    """Whether a device would run a case, and by which kernels, without running it."""
    found: dict[str, Any] = {"verdict": Verdict.PASS}
    try:
        call = repaged(case.call, device.capabilities)
        receipt = compile(call.graph(), device, numerics=numerics).receipt
        found |= {"kernel": kernels_of(receipt, case.op), "measures": {"native": float(not receipt.decomposed)}}
    except UnsupportedOp as error:
        reason = excused(case, device)
        told = {"defect": DECLARED if reason else "", "message": reason or str(error)}
        found = {"verdict": Verdict.UNSUPPORTED, **told}
    except XinhengError as error:
        found = {"verdict": Verdict.FAIL, "defect": "error", "message": str(error)}
    return Outcome(id=case.id, op=case.op, dtype=case.kind.name, **found)


def excused(case: Case, device: Device) -> str | None:
    """Why a device may refuse a case by its own declaration; float32 is what no device may lack."""
    known = device.capabilities
    if float32 not in known.dtypes:
        return None
    return excuse(case.call, known) or _without_views(case, device)


def _without_views(case: Case, device: Device) -> str | None:
    """What a device lacks to make operands that are views; it is missed in the items of that very op."""
    makers = case.call.graph().nodes[:-1]
    lacking = next((node.op.name for node in makers if not device.supports(node)), None)
    return None if lacking is None else f"the device has no {lacking} to make such views of operands"
