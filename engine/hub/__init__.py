"""Models by reference: found on disk, fetched from a package index, kept in one content-addressed store."""

from __future__ import annotations

from .sources import resolve
from .store import Manifest, Progress, Store, StoredFile

__all__ = ["Manifest", "Progress", "Store", "StoredFile", "resolve"]
