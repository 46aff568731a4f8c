"""What the nodes of a step share: made on the device by the first node that asks, and found again by the others.

Attention of every layer asks the same of the same lengths and block table, and rotary embedding of the same tables.
Nothing of it is made on the host, so that a captured graph makes it anew in each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Tensor = torch.Tensor


class Step:
    """What was made in the run of a graph that is under way.

    Nodes run in the order in which they are planned. So a node that is not behind the last one begins a new run, and
    all is forgotten: inputs may lie in the same memory as before, with other numbers in it.
    """

    def __init__(self) -> None:
        self._planned, self._last = 0, -1
        self._made: dict[tuple[Hashable, ...], tuple[tuple[Tensor, ...], Any]] = {}

    def place(self) -> Place:
        """The place of the next node that is planned."""
        self._planned += 1
        return Place(self, self._planned)

    def enter(self, place: int) -> None:
        """A node begins to run."""
        if place <= self._last:
            self._made.clear()
        self._last = place

    def get(self, what: tuple[Hashable, ...], tensors: tuple[Tensor, ...], make: Callable[[], T]) -> T:
        """What was made of these very tensors in this run, or is made now."""
        key = (*what, *map(id, tensors))
        if key not in self._made:
            self._made[key] = tensors, make()  # the tensors stay alive, so that no other gets the id of one
        found: T = self._made[key][1]
        return found


class Place:
    """One node in the runs of its graph."""

    def __init__(self, step: Step, number: int) -> None:
        self._step, self._number = step, number

    def enter(self) -> Step:
        """What the run under way has made so far; called once by each run of the node, at its beginning."""
        self._step.enter(self._number)
        return self._step
