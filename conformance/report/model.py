"""What a report holds: a device, how it was run, what became of each item, and what follows from that.

Everything is plain data that JSON can hold. Seeds are the last part of the ids of items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Literal, Self

from xinheng.core.certificate import Certificate, DeviceIdentity, Mode, badge
from xinheng.core.errors import CertificateError
from xinheng.core.signature import Signature, digest, plain
from xinheng.core.suite import Outcome, Verdict

from ..determinism import PROMISED_BY
from ..fingerprints.fingerprint import Fingerprint
from .figures import Data, Figures, Spread

KIND: Literal["xinheng.report"] = "xinheng.report"
VERSION = 1
"""Of the format. A reader refuses another one by name."""


class DeviceHeader(DeviceIdentity):
    """Which device, and the software that stands between it and the results.

    Attributes:
        packages: versions of what the plugin and this program are built on, such as numpy.
        platform: the host.
        dtypes: the element types that the device declares.
    """

    packages: dict[str, str] = {}  # noqa: RUF012 (pydantic copies defaults)
    platform: str = ""
    dtypes: tuple[str, ...] = ()


class Modes(Mode):
    """How the device was made to compute; a result says nothing about other modes.

    Attributes:
        arithmetic: what the device declares, field by field.
    """

    arithmetic: dict[str, Any] = {}  # noqa: RUF012 (pydantic copies defaults)


class Scope(Data):
    """What was run.

    Attributes:
        level: what was asked for; empty for all items of the suites.
        tier: "default", "full" or "exhaustive".
        mode: "test", "support" or "perf".
        suites: their names.
        ops, dtypes: only these; empty for all.
        options: what the suites were told, such as the model of the model suite.
        shard: such as "2/8"; empty for all of it.
    """

    level: str = ""
    tier: str = "default"
    mode: str = "test"
    suites: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    options: dict[str, str] = {}  # noqa: RUF012 (pydantic copies defaults)
    shard: str = ""

    @property
    def narrowed(self) -> bool:
        """Whether it is only a part of a level, so that it decides none."""
        return bool(self.ops or self.dtypes or self.shard)


class Missing(Data):
    """What stands between a device and a level: an op in a dtype, why, and the items that show it."""

    op: str
    dtype: str = ""
    reason: str
    items: tuple[str, ...] = ()


class LevelResult(Data):
    """Whether a level is reached. Each level includes those below it.

    Attributes:
        level: such as "L1".
        title: one word for people, such as "serves".
        determinism: what it asks the device to keep, such as "D3"; empty for all that the device declares.
        reached: nothing is missing.
        passed, required: cells (op and dtype) that hold, and how many there are.
        missing: the rest.
    """

    level: str
    title: str = ""
    determinism: str = ""
    reached: bool
    passed: int = 0
    required: int = 0
    missing: tuple[Missing, ...] = ()


Standing = Literal["expected", "unexpected pass", "contradicted", "expired", "unknown"]
"""Of an entry of the ledger: the item did as it says, or it passed, or it did something else, or the entry has expired,
or there is no such item."""


class LedgerEntry(Data):
    """A known failure that its owner has announced. Entries that are not "expected" fail the run.

    Attributes:
        kind: what the ledger calls its class: "unsupported", "bug" or "flaky".
        issue: where it is followed up.
        expires: the last day on which it counts.
    """

    id: str
    owner: str
    kind: Literal["unsupported", "bug", "flaky"]
    issue: str = ""
    expires: date
    standing: Standing = "expected"


class Selftest(Data):
    """What this version of the suite is worth: of known bugs how many it finds, and how often it blames the innocent.

    Attributes:
        seeded, seeded_killed: bugs written by hand.
        automatic, automatic_killed: bugs made from decompositions; those shown to be equivalent do not count.
        correct_runs, false_alarms: runs of correct kernels, and how many of them were rejected.
    """

    seeded: int
    seeded_killed: int
    automatic: int = 0
    automatic_killed: int = 0
    correct_runs: int = 0
    false_alarms: int = 0

    @property
    def kill_rate(self) -> float:
        """Share of all known bugs that are found."""
        return (self.seeded_killed + self.automatic_killed) / max(self.seeded + self.automatic, 1)


class Report(Data):
    """The result of a conformance run.

    Attributes:
        contradictions: what the fingerprint found otherwise than the device declares.
        parts: digests of the reports that this one was merged from.
        seconds: how long the run took.
        created: when, in UTC.
        digest, signature: of everything else; see `xinheng.core.signature`.
    """

    kind: Literal["xinheng.report"]
    version: int
    suite_version: str
    device: DeviceHeader
    modes: Modes
    scope: Scope
    figures: Figures
    levels: tuple[LevelResult, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    fingerprint: Fingerprint | None = None
    contradictions: tuple[str, ...] = ()
    selftest: Selftest | None = None
    spreads: tuple[Spread, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    parts: tuple[str, ...] = ()
    seconds: float = 0.0
    created: str
    digest: str = ""
    signature: Signature | None = None

    @classmethod
    def of(
        cls,
        suite_version: str,
        device: DeviceHeader,
        modes: Modes,
        scope: Scope,
        outcomes: Iterable[Outcome],
        *,
        expected: int | None = None,
        ledger: Sequence[LedgerEntry] = (),
        levels: Sequence[LevelResult] = (),
        fingerprint: Fingerprint | None = None,
        contradictions: Sequence[str] = (),
        selftest: Selftest | None = None,
        parts: Sequence[str] = (),
        seconds: float = 0.0,
        created: datetime | None = None,
    ) -> Self:
        """A report of these outcomes, with the figures that follow from them and its digest.

        Args:
            expected: how many items there should be; None where no number is pinned.
            created: when; None for now.
        """
        made = tuple(outcomes)
        report = cls(
            kind=KIND,
            version=VERSION,
            suite_version=suite_version,
            device=device,
            modes=modes,
            scope=scope,
            figures=Figures.of(made, {e.id for e in ledger if e.standing == "expected"}, expected),
            levels=tuple(levels),
            ledger=tuple(ledger),
            fingerprint=fingerprint,
            contradictions=tuple(contradictions),
            selftest=selftest,
            spreads=Spread.each(made),
            outcomes=made,
            parts=tuple(parts),
            seconds=round(seconds, 3),
            created=(created or datetime.now(UTC)).isoformat(timespec="seconds"),
        )
        return report.model_copy(update={"digest": digest(report.document())})

    def document(self) -> dict[str, Any]:
        """The JSON object that stands for it; of outcomes, what has its default value is left out."""
        data = self.model_dump(exclude={"outcomes"})
        data["outcomes"] = [outcome.model_dump(exclude_defaults=True) for outcome in self.outcomes]
        made: dict[str, Any] = plain(data)
        return made

    def certificate(self) -> Certificate:
        """The portable part of it, dated now and not signed.

        Raises:
            CertificateError: no level is reached, so that there is nothing to certify.
        """
        if not self.level:
            raise CertificateError(f"{self.device.spec} reached no level in this run, so there is nothing to certify")
        return Certificate.of(
            suite_version=self.suite_version,
            level=self.level,
            device=DeviceIdentity(**{name: getattr(self.device, name) for name in DeviceIdentity.model_fields}),
            mode=Mode(**{name: getattr(self.modes, name) for name in Mode.model_fields}),
            items=self.figures.total - self.figures.absent,
            passed=self.figures.verdicts.get(Verdict.PASS.value, 0),
            debt=self.figures.indebted,
            kill_rate=self.selftest.kill_rate if self.selftest else None,
            false_alarms=self.selftest.false_alarms if self.selftest else None,
            issued=datetime.now(UTC).isoformat(timespec="seconds"),
            report=self.digest,
        )

    @property
    def level(self) -> str:
        """The highest level that is reached with all below it; empty if none is."""
        reached = ""
        for result in self.levels:
            if not result.reached:
                break
            reached = result.level
        return reached

    @property
    def badge(self) -> str:
        """The level as people may quote it, such as "L3 (emulated)"."""
        return badge(self.level, self.device.emulated)

    @property
    def next_level(self) -> LevelResult | None:
        """The lowest level that is not reached; None if all are."""
        return next((result for result in self.levels if not result.reached), None)

    @property
    def excused(self) -> Mapping[str, LedgerEntry]:
        """The entries of the ledger that hold, by item."""
        return {entry.id: entry for entry in self.ledger if entry.standing == "expected"}

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """Items that neither passed nor are absent nor excused, in the order of the run.

        Where the question was only what is supported, a refusal is an answer.
        """
        fine = {Verdict.PASS, Verdict.UNSUPPORTED} if self.scope.mode == "support" else {Verdict.PASS}
        excused = self.excused
        return tuple(o for o in self.outcomes if o.verdict not in fine and o.id not in excused and not o.absent)

    @property
    def tolerated(self) -> tuple[Outcome, ...]:
        """Failures that break a promise of determinism which the level that was asked for does not need."""
        needed = next((r.determinism for r in self.levels if r.level == self.scope.level), "") or "D4"
        return tuple(o for o in self.failures if o.verdict is Verdict.FAIL and PROMISED_BY.get(o.defect, "D0") > needed)

    @property
    def passed(self) -> bool:
        """The run is as it should be."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the run failed, one sentence each; empty if it did not."""
        fine = {outcome.id for outcome in self.tolerated}
        blamed = [outcome for outcome in self.failures if outcome.id not in fine]
        items = (f"{o.id}: {o.verdict.value}{f', {o.defect}' if o.defect else ''}" for o in blamed)
        return (*items, *self.complaints)

    @property
    def complaints(self) -> tuple[str, ...]:
        """What is wrong beside single items."""
        told = [f"ledger: {e.id}: {e.standing}" for e in self.ledger if e.standing != "expected"]
        told += [f"fingerprint: the device {text}" for text in self.contradictions]
        if self.figures.total < self.figures.expected:
            told.append(f"{self.figures.total} items were run where there should be {self.figures.expected}")
        if self.level < self.scope.level and not self.scope.narrowed:
            told.append(f"level {self.scope.level} was asked for and {self.level or 'none'} is reached")
        return tuple(told)
