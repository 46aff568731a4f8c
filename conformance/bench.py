"""What the tests of `pytest_plugin` do: run one item each, and say what its outcome means to pytest."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from xinheng.core.errors import XinhengError
from xinheng.core.hal import Device, DeviceSpec
from xinheng.core.plugins import PluginManager
from xinheng.core.suite import Outcome, Suite, Verdict

from .case import Tier
from .report.model import LedgerEntry
from .running.census import expected, suite_of
from .running.crew import Crew
from .running.ledger import apply, read_ledger
from .running.plan import Place, Plan, wanted
from .running.runner import THREADS
from .running.worker import attempt
from .suites import load_suites
from .vendor import own_ledger

if TYPE_CHECKING:
    from .pytest_plugin import Wanted

LEDGER, COUNT = "the ledger", "the number of items"
"""What can be judged besides items."""


class Bench:
    """The items that a vendor wants to be tested, and the device that is opened when the first of them is run."""

    def __init__(self, asked: Wanted) -> None:
        self._asked = asked
        self.plan = Plan(
            asked.device,
            suites=asked.suites,
            level=asked.level,
            tier=Tier[asked.tier.upper()],
            ops=asked.ops,
            dtypes=asked.dtypes,
        )
        self.path: Path | None = asked.ledger or own_ledger(DeviceSpec.parse(asked.device).backend)
        self._places = self.plan.places(self._suites)
        self._index = {place.item.id: i for i, place in enumerate(self._places)}
        self._crew: Crew | None = None
        self._closed_for = ""

    @property
    def ids(self) -> list[str]:
        """What can be judged: the number of items, the ledger if there is one, and all items."""
        return [COUNT, *([LEDGER] if self.path is not None else []), *self._index]

    def close(self) -> None:
        """End the worker, or close the device."""
        if self._crew is not None:
            self._crew.dismiss()
            self._crew = None
        for suite in self._suites:
            suite.close()
        if "_device" in vars(self):
            self._device.close()

    def judge(self, id: str) -> Outcome | None:
        """Run an item, or look at the ledger or the number of items; what is wrong ends the test."""
        if id not in self._index:
            self._look(id)
            return None
        place = self._places[self._index[id]]
        outcome = self._isolated(self._index[id]) if self._asked.isolate else self._direct(place)
        entry = self._entries.get(id)
        if entry is not None:
            self._announced(entry, outcome)
        if outcome.absent:
            pytest.skip(outcome.message)
        if outcome.verdict is not Verdict.PASS:
            self._fail(f"{outcome.verdict.value} {outcome.defect}: {outcome.message}", id)
        return outcome

    def _isolated(self, index: int) -> Outcome:
        if self._crew is None:
            self._crew = self._hired()
        made: list[Outcome] = []
        self._crew.work([index], lambda _, outcome: made.append(outcome))
        return made[0]

    def _hired(self) -> Crew:
        """A worker with the device open; that there is none is told by every test."""
        if not self._closed_for:
            crew = Crew(self.plan, self._places, [suite.patience for suite in self._suites], size=1, threads=THREADS)
            try:
                crew.open()
                return crew
            except XinhengError as error:
                crew.dismiss()
                self._closed_for = str(error)
        pytest.fail(self._closed_for, pytrace=False)

    def _direct(self, place: Place) -> Outcome:
        return attempt(self._suites[place.suite], place.item, self._device)

    @cached_property
    def _suites(self) -> tuple[Suite, ...]:
        return self.plan.load()

    @cached_property
    def _device(self) -> Device:
        return PluginManager().open(self.plan.device)

    @cached_property
    def _entries(self) -> Mapping[str, LedgerEntry]:
        return {entry.id: entry for entry in read_ledger(self.path)} if self.path is not None else {}

    def _announced(self, entry: LedgerEntry, outcome: Outcome) -> None:
        """What an item means that the vendor has announced to fail."""
        (held,) = apply([entry], [outcome], lambda _: True)
        if held.standing != "expected":
            announced = f"{self.path} calls it {entry.kind} until {entry.expires}"
            self._fail(f"{held.standing}: {announced}, and it is {outcome.verdict.value}: {outcome.message}", entry.id)
        if outcome.verdict is not Verdict.PASS:
            pytest.xfail(f"{entry.kind}, {entry.owner}, {entry.issue}: {outcome.message}")

    def _look(self, id: str) -> None:
        wrong = self._miscounted() if id == COUNT else self._misleading()
        if wrong:
            pytest.fail("\n".join(wrong), pytrace=False)

    def _miscounted(self) -> list[str]:
        """Where there are fewer items of the suite `ops` than there have to be."""
        if "ops" not in self.plan.suites:
            return [] if self._places else [f"suites {', '.join(self.plan.suites)} have no item of what is selected"]
        asked = expected(wanted("ops", self.plan.level, Tier(self.plan.tier), self.plan.ops, self.plan.dtypes))
        if not asked:
            return ["nothing is selected, so nothing would be proven"]
        found: dict[tuple[str, str], int] = {}
        for place in self._places:
            if suite_of(place.item.id) == "ops":
                cell = (place.item.op, place.item.dtype)
                found[cell] = found.get(cell, 0) + 1
        return [
            f"{op} in {kind} has {found.get((op, kind), 0)} items, not {count}"
            for (op, kind), count in asked.items()
            if found.get((op, kind), 0) < count
        ]

    def _misleading(self) -> list[str]:
        """Entries of the ledger about items that are in no tier of any suite."""
        every = load_suites(self.plan.suites, wanted("", "", Tier.EXHAUSTIVE, (), ()))
        ids = {item.id for suite in every for item in suite.items()}
        mine = [id for id in self._entries if suite_of(id) in self.plan.suites or id.count("/") != 4]
        return [f"{self.path}: there is no item {id!r}; remove or correct it" for id in mine if id not in ids]

    def _fail(self, text: str, id: str) -> NoReturn:
        replay = shlex.join(["xinheng", "conformance", "case", id, "--device", self.plan.device])
        pytest.fail(f"{text}\n\nto see it again: {replay}", pytrace=False)
