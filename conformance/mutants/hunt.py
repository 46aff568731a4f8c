"""Which mutants of an op its cases reject, and why the others are left."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from xinheng.core.errors import GraphError
from xinheng.core.ir import Graph

from ..selftests.simulated import flat
from ..selftests.standard import Standard
from . import automatic
from .automatic import Change
from .mutant import MUTANTS, Mutant


class Fate(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    """An automatic one that survived and is explained in `equivalents.toml`: it is no bug."""
    UNFIT = "unfit"
    """An automatic change that leaves no graph of any case: no mutant."""
    IDLE = "idle"
    """One that leaves the same graph, once simplified, or the same float64 results of arithmetic: no mutant either."""


@dataclass(frozen=True)
class Hunted:
    """A mutant and what became of it.

    Attributes:
        by: the cases that rejected it, one for each dtype in which it had to be.
        missing: dtypes in which no case rejected it.
    """

    id: str
    fate: Fate
    by: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def seeded(op: str, standards: Sequence[Standard], stride: int = 1) -> Iterator[Hunted]:
    """The fates of the mutants of an op in `MUTANTS`, or of one in `stride`."""
    useful: Counter[str] = Counter()
    for mutant in [mutant for mutant in MUTANTS.values() if mutant.op == op][::stride]:
        hunted = hunt_one(mutant, sorted(standards, key=lambda s: -useful[s.id]))
        useful.update(hunted.by)
        yield hunted


def hunt_one(mutant: Mutant, standards: Sequence[Standard]) -> Hunted:
    """The fate of a mutant, which must be rejected in each of its dtypes; in any, if cases run in none of these."""
    kinds = {s.call.kind for s in standards}
    waiting = [kind for kind in mutant.where if kind in kinds]
    anywhere, by = not waiting, []
    for standard in standards:
        if not (anywhere or standard.call.kind in waiting):
            continue
        made = mutant.run(standard.call)
        if made is None or standard.judge(made).ok:
            continue
        by.append(standard.id)
        if anywhere:
            return Hunted(mutant.id, Fate.KILLED, tuple(by))
        waiting.remove(standard.call.kind)
        if not waiting:
            return Hunted(mutant.id, Fate.KILLED, tuple(by))
    return Hunted(mutant.id, Fate.SURVIVED, tuple(by), tuple(kind.name for kind in waiting))


class Grounds:
    """The cases of an op with the graphs that they share."""

    def __init__(self, standards: Sequence[Standard]) -> None:
        self.forms: dict[Any, list[Standard]] = {}
        for standard in standards:
            self.forms.setdefault(standard.form, []).append(standard)
        self.offered = {form: set(automatic.offered(group[0].call)) for form, group in self.forms.items()}
        self.useful: Counter[str] = Counter()
        self.plain: dict[tuple[str, bool], tuple[Any, ...]] = {}

    def hunt(self, change: Change) -> Hunted:
        """The fate of one change."""
        groups = [group for form, group in self.forms.items() if change in self.offered[form]]
        tried = groups if change.place == automatic.CALL else _spread(groups)
        if not any(automatic.changed(group[0].call, change) for group in tried):
            return Hunted(change.id, Fate.UNFIT)
        fitting: list[tuple[list[Standard], Graph]] = []
        for group in sorted(groups, key=lambda group: -max(self.useful[s.id] for s in group)):
            graph = automatic.changed(group[0].call, change)
            if graph is None:
                continue
            for standard in sorted(group, key=lambda s: -self.useful[s.id]):
                if rejected(standard, graph):
                    self.useful[standard.id] += 1
                    return Hunted(change.id, Fate.KILLED, (standard.id,))
            fitting.append((group, graph))
        idle = all(automatic.idle(group[0].call, change, graph) for group, graph in fitting)
        if not idle and change.node in PLAIN:
            idle = all(self._same(s, change, graph) for group, graph in fitting for s in group)
        return Hunted(change.id, Fate.IDLE if idle else Fate.SURVIVED)

    def _same(self, standard: Standard, change: Change, graph: Graph) -> bool:
        """Whether results in float64 are those of the unchanged graph, to the last bit."""
        key = standard.id, change.place != automatic.CALL
        if key not in self.plain:
            self.plain[key] = flat(automatic.exact(standard.call, standard.call.graph(key[1])))
        pairs = zip(flat(automatic.exact(standard.call, graph)), self.plain[key], strict=True)
        return all(np.array_equal(a, b, equal_nan=b.dtype.kind == "f") for a, b in pairs)


FORMS = 8
"""A change of a decomposition must leave a graph of one of so many calls of different forms, or it is none."""


def _spread(groups: list[list[Standard]]) -> list[list[Standard]]:
    """Some groups of all sizes, the last and largest among them."""
    return groups[:: -max(1, len(groups) // FORMS)][:FORMS]


PLAIN = frozenset(
    {"add", "sub", "mul", "div", "exp", "log", "square", "rsqrt", "sigmoid", "tanh", "erf", "sum", "mean", "amax"}
    | {"reshape", "permute", "concat", "slice", "expand", "split", "cast", "matmul", "gather", "index_select", "full"}
    | {"softmax", "max_pool", "all_gather", "reduce_scatter"}
)
"""Ops that choose nothing: where they give the same for random numbers, they give the same."""


def rejected(standard: Standard, graph: Graph) -> bool:
    """Whether a case rejects a graph; one that reads beyond its operands has crashed."""
    try:
        made = automatic.run(standard.call, graph)
    except (GraphError, IndexError, ValueError):
        return True
    return not standard.judge(made).ok


@cache
def equivalents() -> Mapping[str, str]:
    """Automatic mutants that are no bugs, by id, with the reason."""
    text = resources.files("xinheng.conformance.mutants").joinpath("equivalents.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["equivalent"]
    return {id: entry["reason"] for entry in entries for id in entry["mutants"]}


def automated(standards: Sequence[Standard], stride: int = 1) -> Iterator[Hunted]:
    """The fates of all changes of an op, or of one in `stride`."""
    grounds = Grounds(standards)
    known = equivalents()
    for change in automatic.numbered(set().union(*grounds.offered.values()))[::stride]:
        hunted = grounds.hunt(change)
        explained = hunted.fate is Fate.SURVIVED and hunted.id in known
        yield replace(hunted, fate=Fate.EQUIVALENT) if explained else hunted
