"""Any device that torch can address, described by a row of a table."""

from __future__ import annotations

from .backend import GenericBackend

__all__ = ["GenericBackend"]
