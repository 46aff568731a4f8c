"""What a run consists of: a device, suites, the items of one shard. Plain data, so that two runs can be compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from xinheng.core.errors import SettingsError, nearest
from xinheng.core.hal import Numerics
from xinheng.core.ops import OPSET
from xinheng.core.suite import Item, Selection, Suite

from ..suites import load_suites
from .levels import up_to

MODES = ("test", "support", "perf")
BY_LEVEL = ("ops", "supports")
"""Suites about the op set, of which a level needs a part; of others it needs all or nothing."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `count`-th item, from the one of this number on; numbers start at 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """From text such as "2/8"; SettingsError if it is not of that form."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise SettingsError(f"--shard {text!r} is not of the form number/count, such as 2/8")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return "" if self.count == 1 else f"{self.number}/{self.count}"

    def of(self, items: Sequence[Any]) -> Sequence[Any]:
        """Its part of all items."""
        return items[self.number - 1 :: self.count]


@dataclass(frozen=True, slots=True)
class Place:
    """An item, and its suite by the place among the suites of the run."""

    suite: int
    item: Item


@dataclass(frozen=True)
class Plan:
    """A run.

    Attributes:
        device: its spec.
        suites: names that `load_suites` knows.
        level: what was asked for: of the suite `ops`, only what this level and those below it need; empty for all.
        tier: 0, 1 or 2.
        ops, dtypes: only these; empty for all.
        mode: "test"; "support" to find out what could be run; "perf" to time it as well.
        options: of single suites.
        disabled: names of backend plugins that are not imported.
        cache_dir: where compiled kernels may be kept; empty for no such place.

    Raises:
        SettingsError: there is no such level, op or mode.
    """

    device: str
    suites: tuple[str, ...] = ("ops",)
    level: str = ""
    tier: int = 0
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    mode: str = "test"
    options: Mapping[str, str] = field(default_factory=dict)
    numerics: Numerics = field(default_factory=Numerics)
    shard: Shard = Shard()
    disabled: tuple[str, ...] = ()
    cache_dir: str = ""

    def __post_init__(self) -> None:
        if self.level:
            up_to(self.level)
        if self.mode not in MODES:
            raise SettingsError(f"--mode {self.mode!r} is none of {', '.join(MODES)}")
        unknown = [op for op in self.ops if op not in OPSET] if self.suites == ("ops",) else []
        if unknown:
            raise SettingsError(f"there is no op {unknown[0]!r}{nearest(unknown[0], list(OPSET))}; see 'xinheng ops'")

    @property
    def narrowed(self) -> bool:
        """Whether the user wants a part only, so that no level is decided."""
        return bool(self.ops or self.dtypes)

    def selection(self, suite: str) -> Selection:
        """The items that are wanted of a suite."""
        options = {**self.options, "mode": self.mode}
        return wanted(suite, self.level, self.tier, self.ops, self.dtypes, options)

    def load(self) -> tuple[Suite, ...]:
        """The suites, made anew; PluginError if one is missing or broken."""
        return tuple(load_suites([name], self.selection(name), self.numerics)[0] for name in self.suites)

    def places(self, suites: Sequence[Suite]) -> tuple[Place, ...]:
        """The items of this shard, in the order of the report.

        Raises:
            SettingsError: nothing is selected, or two suites have an item of the same id.
        """
        every = [Place(i, item) for i, suite in enumerate(suites) for item in suite.items()]
        if not every:
            raise SettingsError("no item is selected, so nothing would be proven; see 'xinheng conformance list'")
        ids = [place.item.id for place in every]
        if len(set(ids)) < len(ids):
            twice = next(id for i, id in enumerate(ids) if id in ids[:i])
            raise SettingsError(f"there are two items {twice!r} in {', '.join(self.suites)}; take one suite at a time")
        mine = tuple(self.shard.of(every))
        if not mine:
            raise SettingsError(f"shard {self.shard} has no item, since there are {len(every)}; take fewer shards")
        return mine

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        return asdict(self) | {"options": dict(self.options), "numerics": _plain(self.numerics)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`, also after a trip through text."""
        parts: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in data.items()}
        return cls(**{**parts, "numerics": Numerics(**data["numerics"]), "shard": Shard(**data["shard"])})

    def identity(self, places: Sequence[Place]) -> dict[str, Any]:
        """What has to be the same for two runs to be one: the plan but for matters of this machine, and the items."""
        data = self.to_json()
        del data["cache_dir"], data["disabled"]
        ids = "\n".join(place.item.id for place in places)
        return {**data, "items": len(places), "ids": hashlib.sha256(ids.encode()).hexdigest()[:16]}


def wanted(
    suite: str,
    level: str,
    tier: int,
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> Selection:
    """The items of a suite that a level needs (all, if it is empty), as far as they are of these ops and dtypes."""
    chosen = frozenset(ops) if ops else None
    if level and suite in BY_LEVEL:
        needed = frozenset(op for part in up_to(level) for op in part.ops)
        chosen = needed if chosen is None else chosen & needed
    return Selection(tier, chosen, frozenset(dtypes) if dtypes else None, options or {})


def _plain(numerics: Numerics) -> dict[str, Any]:
    return {"mode": numerics.mode, "overrides": dict(numerics.overrides)}
