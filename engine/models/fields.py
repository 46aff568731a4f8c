"""Typed reading of what configs and GGUF metadata say about a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from xinheng.core.errors import ModelError


class Fields:
    """Typed access to a mapping of settings; a missing or unfit one is a ModelError naming it."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def get(self, *names: str, default: Any = ...) -> Any:
        """The first of several spellings that is present and not null."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is ...:
            raise ModelError(
                f"{self.where} has no {' or '.join(map(repr, names))}; the model cannot be built without it"
            )
        return default

    def table(self, *names: str, default: Any = ...) -> Mapping[str, Any]:
        """An object."""
        value = self.get(*names, default=default)
        if not isinstance(value, Mapping):
            raise ModelError(f"{self.where}: {names[0]} is {value!r}, it must be an object")
        return value

    def flag(self, *names: str, default: Any = ...) -> bool:
        """True or false."""
        value = self.get(*names, default=default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {names[0]} is {value!r}, it must be true or false")
        return value

    def count(self, *names: str, default: Any = ...) -> int:
        """An integer that may be zero."""
        value = self.get(*names, default=default)
        return 0 if value == 0 and not isinstance(value, bool) else self.size(*names, default=default)

    def size(self, *names: str, default: Any = ...) -> int:
        """A positive integer."""
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ModelError(f"{self.where}: {names[0]} is {value!r}, it must be a positive integer")
        return value

    def number(self, *names: str, default: Any = ...) -> float:
        """A finite number."""
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelError(f"{self.where}: {names[0]} is {value!r}, it must be a finite number")
        return float(value)

    def optional_number(self, *names: str) -> float | None:
        """A finite number, or None if absent."""
        return self.number(*names) if self.get(*names, default=None) is not None else None


def ids(value: Any) -> tuple[int, ...]:
    """A token id, a list of them or nothing, as a tuple."""
    if value is None:
        return ()
    found = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(type(index) is int and index >= 0 for index in found):
        raise ModelError(f"{value!r} is not a token id or a list of them")
    return found
