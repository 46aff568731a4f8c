"""Does a device compute what the op set says? Cases, bounds, verdicts and reports; see `bounds` for the numerics."""

from __future__ import annotations

from . import bounds as bounds
