"""Stretches of a prompt by who wrote them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """A stretch of a prompt. `special`: written by the template, so control tokens in it are meant."""

    text: str
    special: bool
