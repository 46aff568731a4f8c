"""What a conformance suite is: named items, each run on an opened device and answered by an outcome.

Extension point: group `xinheng.suites`; the value is a subclass of `Suite`, and the name is how users choose it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from .hal.device import Device, Numerics

GROUP = "xinheng.suites"
DECLARED = "declared"
"""The `defect` of an unsupported item that the device need not run by its own declaration, such as of its dtypes."""


class Verdict(StrEnum):
    """What became of an item."""

    PASS = "pass"
    FAIL = "fail"
    UNSUPPORTED = "unsupported"
    """The device refused with the right error."""
    CRASH = "crash"
    """The process that ran it ended, by a signal or otherwise."""
    HANG = "hang"
    """It did not end in time."""
    OUT_OF_MEMORY = "out of memory"
    BAD_CASE = "bad case"
    """The item proves nothing, such as when its bound is useless: the suite is to blame, not the device."""


class Outcome(BaseModel):
    """The result of one item.

    Attributes:
        id: the item, exactly; it can be run again by it.
        op, dtype: what it is about; for items about no single op, the suite's own words.
        verdict: what became of it.
        defect: a stable word for what is wrong, empty where nothing is: `numbers`, `specials`, `shape`, `dtype`,
            `repeat`, `process`, `batch`, `capture`, `stale`, `synchronisation`, `inputs-changed`, `out-of-bounds`,
            `unwritten`, `supports`, `error`, `crash`, `hang`, `out-of-memory`, `useless-bound`, or a suite's own; and
            `declared` of an unsupported item that the device need not run by its own declaration.
        message: a sentence for people: what, where, expected and got.
        kernel: who computed it, from the receipt.
        program: the declared program whose bound admits all results.
        worst: largest error in units of the bound; at most 1 where it passes.
        useless: share of results whose bound says nothing.
        determinism: the levels that were checked and held, such as ("D1", "D3").
        seconds: how long it took.
        measures: further numbers by name, such as "kl", "nmse", "gbps".
        digest: a hash of the bits of the results; where there is one, another process should get the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    op: str
    dtype: str = ""
    verdict: Verdict
    defect: str = ""
    message: str = ""
    kernel: str = ""
    program: str = ""
    worst: float | None = None
    useless: float = 0.0
    determinism: tuple[str, ...] = ()
    seconds: float = 0.0
    measures: dict[str, float] = {}
    digest: str = ""

    @property
    def absent(self) -> bool:
        """Whether the device lacks it by its own declaration, so that it is nobody's failure."""
        return self.verdict is Verdict.UNSUPPORTED and self.defect == DECLARED


@dataclass(frozen=True, slots=True)
class Item:
    """Something a suite can run: its id, the op and dtype it is about."""

    id: str
    op: str
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which items of a suite are wanted.

    Attributes:
        tier: 0 minutes, 1 an hour, 2 as long as it takes.
        ops: only these; None for all.
        dtypes: only these; None for all.
        options: a suite's own, such as the model of the model suite.
    """

    tier: int = 0
    ops: frozenset[str] | None = None
    dtypes: frozenset[str] | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def admits(self, item: Item) -> bool:
        """Whether an item's op and dtype are wanted."""
        return (self.ops is None or item.op in self.ops) and (self.dtypes is None or item.dtype in self.dtypes)


class Suite(ABC):
    """A set of items. It is made anew in each process that runs some of them, from the same selection."""

    name: ClassVar[str]
    patience: ClassVar[float] = 60.0
    """Seconds that an item may take before it counts as hung."""

    def __init__(self, selection: Selection, numerics: Numerics | None = None) -> None:
        self.selection, self.numerics = selection, numerics or Numerics()

    @abstractmethod
    def items(self) -> Sequence[Item]:
        """The items of the selection in a stable order; cheap, and the same everywhere."""

    @abstractmethod
    def run(self, id: str, device: Device) -> Outcome:
        """Run one item. What goes wrong on the device is an outcome, not an exception.

        Raises:
            XinhengError: there is no such item, or something other than the device is wrong.
        """

    def close(self) -> None:  # noqa: B027 (nothing to release is a valid answer)
        """Release what the suite keeps between items."""
