"""Simulated accelerators in pure numpy, chosen by a word: never by `auto`."""

from __future__ import annotations

from .backend import SimBackend

__all__ = ["SimBackend"]
