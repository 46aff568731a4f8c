"""A new plugin from templates: a package with a device, one kernel, a ledger and its conformance test."""

from __future__ import annotations

from .scaffold import LICENSES, scaffold

__all__ = ["LICENSES", "scaffold"]
