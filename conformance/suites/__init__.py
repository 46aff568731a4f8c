"""Suites by name: those of entry-point group `xinheng.suites`, or one named as "module:Class" while it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, EntryPoints, entry_points

from xinheng.core.errors import PluginError, nearest
from xinheng.core.hal import Numerics
from xinheng.core.suite import GROUP, Selection, Suite


def suite_names() -> tuple[str, ...]:
    """The suites of this Python environment."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def load_suites(names: Iterable[str], selection: Selection, numerics: Numerics | None = None) -> tuple[Suite, ...]:
    """One suite per name, in this order, of the items that are selected.

    Raises:
        PluginError: there is no such suite, or it cannot be imported, is no suite or fails when it is made.
    """
    return tuple(_made(name, suite_class(name), selection, numerics) for name in names)


def suite_class(name: str) -> type[Suite]:
    """The class of a suite; errors as those of `load_suites`."""
    entries = entry_points(group=GROUP, name=name)
    if ":" in name:
        entries = EntryPoints([EntryPoint(name, name, GROUP)])
    if len(entries) != 1:
        raise PluginError(f"suite {name!r} is registered by {len(entries)} packages" if entries else _missing(name))
    try:
        found = entries[name].load()
    except Exception as error:
        raise PluginError(f"suite {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Suite)):
        raise PluginError(f"suite {name!r} is no subclass of xinheng.core.suite.Suite")
    return found


def _made(name: str, cls: type[Suite], selection: Selection, numerics: Numerics | None) -> Suite:
    try:
        return cls(selection, numerics)
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"suite {name!r} failed to start: {type(error).__name__}: {error}") from error


def _missing(name: str) -> str:
    known: Sequence[str] = suite_names()
    hint = nearest(name, list(known)) or f"; installed: {', '.join(known) or 'none'}"
    return f"no conformance suite is called {name!r}{hint}"


__all__ = ["load_suites", "suite_class", "suite_names"]
