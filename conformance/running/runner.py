"""Running a plan: every item once, and a share of them again in another process; a journal lets a killed run go on."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from xinheng.core.hal import DeviceSpec
from xinheng.core.suite import Outcome, Verdict

from ..draw import stream
from .about import About, Seen
from .crew import Crew
from .journal import Journal
from .plan import Plan

FIRST, AGAIN = "first", "again"
"""The passes of a run: all items, then those of which a second process has to make the same bits."""
SHARE = (32, 8, 8)
"""One item of so many is run again, by tier."""
THREADS = 2
"""Threads that each worker of a device on the host computes with, where there are so many cores: kernels that divide
their work among threads have to be run dividing it."""


class Watcher(Protocol):
    """What is told of the progress of a run."""

    def begin(self, about: About, workers: int, done: Sequence[Outcome], total: int) -> None:
        """The device is open; so many of the items are done already."""

    def advance(self, outcome: Outcome) -> None:
        """An item is done."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a run may use.

    Attributes:
        workers: processes; None for what suits the device.
        threads: host threads of each; None for its share of the cores.
        patience: seconds that an item may take; None for what its suite allows.
        folder: of the report, where the journal is kept; None for no journal.
        resume: go on with the journal that is there.
    """

    workers: int | None = None
    threads: int | None = None
    patience: float | None = None
    folder: Path | None = None
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run: outcomes in the order of the items, the device they are about, and its fingerprint."""

    about: About
    outcomes: tuple[Outcome, ...]
    seen: Seen
    seconds: float


def run(plan: Plan, means: Means | None = None, watcher: Watcher | None = None) -> Result:
    """Run a plan to its end.

    Raises:
        SettingsError: nothing is selected, or the journal to go on with is of another run.
        FormatError: the journal to go on with is damaged.
        DeviceError, PluginError: the device cannot be opened, or a suite cannot be loaded.
    """
    means = means or Means()
    began, suites = time.monotonic(), plan.load()
    places = plan.places(suites)
    size, threads = shares(plan, means, _cores())
    patience = [suite.patience if means.patience is None else means.patience for suite in suites]
    with ExitStack() as stack:
        crew = Crew(plan, places, patience, size, threads)
        stack.callback(crew.dismiss)
        about = crew.open()
        if means.workers is None and not (about.host or about.header.emulated):
            crew.size = 1
        journal = None
        if means.folder is not None:
            identity = plan.identity(places) | about.model_dump(mode="json")
            journal = stack.enter_context(Journal(means.folder, identity, resume=means.resume))
        known = journal.outcomes if journal is not None else {}
        found = {turn: {i: outcome for (t, i), outcome in known.items() if t == turn} for turn in (FIRST, AGAIN)}
        if watcher is not None:
            watcher.begin(about, crew.size, list(found[FIRST].values()), len(places))

        def work(turn: str, indices: Sequence[int]) -> None:
            def done(index: int, outcome: Outcome) -> None:
                found[turn][index] = outcome
                if journal is not None:
                    journal.add((turn, index), outcome)
                if watcher is not None and turn == FIRST:
                    watcher.advance(outcome)

            crew.work([i for i in indices if i not in found[turn]], done)

        work(FIRST, range(len(places)))
        crew.dismiss()
        work(AGAIN, _sampled([found[FIRST][i] for i in range(len(places))], SHARE[plan.tier]))
        seen = Seen() if plan.narrowed or plan.mode != "test" else crew.fingerprint()
    outcomes = tuple(_compared(found[FIRST][i], found[AGAIN].get(i), about.determinism) for i in range(len(places)))
    return Result(about, outcomes, seen, time.monotonic() - began)


def shares(plan: Plan, means: Means, cores: int) -> tuple[int, int]:
    """How many workers there should be, and how many threads of the host each, if the device computes on the host.

    An emulation computes in Python, so it has a worker for each core. Another device is given fewer workers with
    `THREADS` threads each; if it turns out to have memory of its own it keeps a single worker, since two would compete
    for it.
    """
    if means.workers is not None:
        return means.workers, means.threads or max(1, cores // means.workers)
    if DeviceSpec.parse(plan.device).emulated:
        return cores, means.threads or 1
    threads = means.threads or min(THREADS, cores)
    return max(1, cores // threads), threads


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _sampled(outcomes: Sequence[Outcome], share: int) -> list[int]:
    """The items to be run again: some of those whose results have bits to compare."""
    return [i for i, o in enumerate(outcomes) if o.digest and int(stream("again", o.id).integers(0, share)) == 0]


def _compared(first: Outcome, again: Outcome | None, promised: str) -> Outcome:
    """An outcome with what a second process says of D2."""
    if again is None:
        return first
    if again.verdict is Verdict.PASS and again.digest == first.digest:
        return first.model_copy(update={"determinism": tuple(sorted({*first.determinism, "D2"}))})
    if again.verdict is Verdict.PASS and promised < "D2":
        return first
    text = f": {again.message}" if again.message else " with other bits"
    what = f"it passed in one process, and in another: {again.verdict.value}{text}"
    return first.model_copy(update={"verdict": Verdict.FAIL, "defect": "process", "message": what})
