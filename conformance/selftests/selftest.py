"""What the suite is worth: how many wrong kernels its cases reject, how many correct ones, and which faults it sees.

Wrong kernels are those of `mutants`; correct ones are simulated in several orders of summation, as other programs that
are equal in exact arithmetic, and with the roundings that programs admit. Work is dealt out to processes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial, reduce
from multiprocessing import get_context
from operator import add
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, computed_field

from xinheng.core.ops import OPSET

from ..mutants import hunt
from ..mutants.hunt import Fate, Hunted
from ..report.model import Selftest
from ..running.conclusion import suite_version
from . import alarms, strength
from .alarms import Heard
from .standard import standards

LEAST_RATE = 0.99
"""Share of automatic mutants, those that are no bugs left out, of which less makes the suite fail."""
PART = 125
"""Seeds of one task."""
Progress = Callable[[int, int], None]
Family = tuple[str, str]
"""A class of ops and a dtype."""


class Data(BaseModel):
    """What goes into the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Kills(Data):
    """How many mutants of a kind the cases reject.

    Attributes:
        total: those that are no bugs left out.
        survivors: what was not rejected, and in which dtypes.
        equivalent: how many survive since they are no bugs, each explained.
        idle: changes that change nothing.
        unfit: changes that leave no graph.
        stale: explanations of what does not survive.
    """

    total: int
    killed: int
    survivors: tuple[str, ...] = ()
    equivalent: int = 0
    idle: int = 0
    unfit: int = 0
    stale: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        return self.killed / self.total if self.total else 1.0


class Alarms(Data):
    """Correct kernels of a class of ops in a dtype.

    Attributes:
        seeds: how many times operands were drawn, besides the cases of the suite.
        runs: how many results were judged.
        rejected: the case and the kernel of each that was rejected.
    """

    op_class: str
    dtype: str
    seeds: int
    runs: int
    rejected: tuple[str, ...] = ()


class Strength(Data):
    """The smallest fault of a kind that the cases of every op of a class see.

    Attributes:
        fault: "everywhere" and "one element" are relative errors in units of the unit roundoff of the result, "last
            term" is the share of the last term of every sum that is lost.
        least: the smallest that is seen for all ops; None if there is an op for which none is seen.
        op: the op that needs it.
    """

    op_class: str
    dtype: str
    fault: str
    least: float | None
    op: str


class SelfTest(Data):
    """The result of a self-test.

    Attributes:
        suite: the version of what was tested.
        complete: all ops and all mutants, and 1,000 seeds.
        cases: how many cases there were to reject mutants.
    """

    suite: str
    complete: bool
    cases: int
    seeds: int
    seeded: Kills
    automatic: Kills
    alarms: tuple[Alarms, ...]
    strengths: tuple[Strength, ...]
    seconds: float

    @property
    def false_alarms(self) -> int:
        return sum(len(a.rejected) for a in self.alarms)

    @property
    def ok(self) -> bool:
        """Every seeded mutant is killed, enough automatic ones are, and no correct kernel is rejected."""
        enough = self.automatic.rate >= LEAST_RATE and not self.automatic.stale
        return not self.seeded.survivors and enough and not self.false_alarms

    @computed_field  # type: ignore[prop-decorator]
    @property
    def figures(self) -> Selftest:
        """What reports say about the suite."""
        return Selftest(
            seeded=self.seeded.total,
            seeded_killed=self.seeded.killed,
            automatic=self.automatic.total,
            automatic_killed=self.automatic.killed,
            correct_runs=sum(a.runs for a in self.alarms),
            false_alarms=self.false_alarms,
        )


class _Found(NamedTuple):
    """What one task found out."""

    op: str = ""
    cases: int = 0
    seeded: tuple[Hunted, ...] = ()
    automatic: tuple[Hunted, ...] = ()
    heard: dict[Family, Heard] = {}  # noqa: RUF012 (a tuple, never changed)
    least: dict[tuple[str, str], float | None] = {}  # noqa: RUF012


def _examine(op: str, stride: int) -> _Found:
    """One op: its mutants, correct kernels of its cases, and the smallest faults."""
    known = standards(op)
    heard: dict[Family, Heard] = {}
    for standard in known[::stride]:
        family = alarms.family(op, standard.call.kind.name)
        heard[family] = heard.get(family, Heard()) + alarms.heard(standard)
    return _Found(
        op,
        len(known),
        tuple(hunt.seeded(op, known, stride)),
        tuple(hunt.automated(known, stride)),
        heard,
        strength.least(op, known) if stride == 1 else {},
    )


def _draw(ops: Sequence[str], family: Family, seeds: range) -> _Found:
    """Correct kernels of newly drawn operands."""
    return _Found(heard={family: alarms.of_seeds(ops, *family, seeds)})


def selftest(
    seeds: int = 1000,
    ops: Sequence[str] | None = None,
    stride: int = 1,
    processes: int | None = None,
    progress: Progress | None = None,
) -> SelfTest:
    """Examine the suite.

    Args:
        seeds: how often operands are drawn for correct kernels, per class of ops and dtype.
        ops: only these; None for all.
        stride: one mutant and one case in so many, for a quick look.
        processes: how many work at a time; None for as many as there are processors, 1 for this one alone.
        progress: called with the number of tasks done and of all.

    Raises:
        GraphError: there is no such op.
    """
    began = time.perf_counter()
    chosen = tuple(OPSET[name].name for name in (OPSET if ops is None else ops))
    tasks: list[Callable[[], _Found]] = [partial(_examine, op, stride) for op in _slow_first(chosen)]
    for family in alarms.families(chosen):
        tasks += [partial(_draw, chosen, family, range(i, min(i + PART, seeds))) for i in range(0, seeds, PART)]
    found = list(_run(tasks, processes or os.cpu_count() or 1, progress))
    return SelfTest(
        suite=suite_version(),
        complete=ops is None and stride == 1 and seeds >= 1000,
        cases=sum(f.cases for f in found),
        seeds=seeds,
        seeded=_kills(h for f in found for h in f.seeded),
        automatic=_kills((h for f in found for h in f.automatic), chosen if stride == 1 else ()),
        alarms=_alarms(found),
        strengths=_strengths(found),
        seconds=round(time.perf_counter() - began, 1),
    )


_SLOW = ("sdpa_varlen", "conv", "paged_attention", "top_k_top_p_sample", "linear", "moe_gating_topk")


def _slow_first(ops: Sequence[str]) -> list[str]:
    """Ops that take long first, so that no process works alone at the end."""
    return sorted(ops, key=lambda op: _SLOW.index(op) if op in _SLOW else len(_SLOW))


def _run(tasks: Sequence[Callable[[], _Found]], processes: int, progress: Progress | None) -> Iterator[_Found]:
    def told(done: int) -> None:
        if progress is not None:
            progress(done, len(tasks))

    if processes == 1:
        for i, task in enumerate(tasks, 1):
            yield task()
            told(i)
        return
    # A forked copy of a process with threads may hang.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for i, future in enumerate(as_completed([pool.submit(task) for task in tasks]), 1):
            yield future.result()
            told(i)


def _kills(hunted: Iterable[Hunted], ops: Sequence[str] = ()) -> Kills:
    """Figures of mutants, and which explanations of those of `ops` are stale."""
    each = sorted(hunted, key=lambda h: h.id)
    fates = Counter(h.fate for h in each)
    explained = {h.id for h in each if h.fate is Fate.EQUIVALENT}
    left = [id for id in hunt.equivalents() if id.split(":")[0] in ops and id not in explained]
    return Kills(
        total=fates[Fate.KILLED] + fates[Fate.SURVIVED],
        killed=fates[Fate.KILLED],
        survivors=tuple(f"{h.id} {', '.join(h.missing)}".strip() for h in each if h.fate is Fate.SURVIVED),
        equivalent=len(explained),
        idle=fates[Fate.IDLE],
        unfit=fates[Fate.UNFIT],
        stale=tuple(left),
    )


def _alarms(found: Sequence[_Found]) -> tuple[Alarms, ...]:
    families = sorted({family for f in found for family in f.heard})
    together = {family: reduce(add, (f.heard[family] for f in found if family in f.heard)) for family in families}
    return tuple(
        Alarms(op_class=op_class, dtype=dtype, seeds=h.seeds, runs=h.runs, rejected=h.rejected)
        for (op_class, dtype), h in together.items()
    )


def _strengths(found: Sequence[_Found]) -> tuple[Strength, ...]:
    """By class, dtype and kind of fault the op that sees least."""
    worst: dict[tuple[str, str, str], Strength] = {}
    for f in found:
        for (dtype, fault), least in f.least.items():
            op_class = OPSET[f.op].tolerance.value
            made = Strength(op_class=op_class, dtype=dtype, fault=fault, least=least, op=f.op)
            known = worst.setdefault((op_class, dtype, fault), made)
            if known.least is not None and (least is None or least > known.least):
                worst[op_class, dtype, fault] = made
    return tuple(worst[key] for key in sorted(worst))
