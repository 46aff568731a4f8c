"""What experiments find out about the arithmetic of a device, each with the evidence."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from xinheng.core.ir.dtype import bfloat16, float16, float32, float64

UNKNOWN = "unknown"

FORMATS = {kind.precision: kind.name for kind in (float64, float32, float16, bfloat16)}
"""The formats sums are kept in, by their significant bits."""


class Trait(BaseModel):
    """One property: its value in a few words, and what was seen. An unknown one has the reason as its evidence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: str
    evidence: str

    @property
    def known(self) -> bool:
        return self.value != UNKNOWN


class Accumulator(Trait):
    """What sums of one op are kept in.

    Attributes:
        bits: significant bits that survive among neighbouring terms; a lower limit where `exact`.
        exact: the experiment did not reach the end of them.
        partial: significant bits that survive across the whole sum, if these are fewer.
        chunk: the terms between two roundings to `partial`.
    """

    bits: int | None = None
    exact: bool = False
    partial: int | None = None
    chunk: int | None = None


class Summation(Trait):
    """In which order one op adds; `depth` is the longest chain of additions in a sum of `terms`, if it is a tree."""

    depth: int | None = None
    terms: int | None = None


class Grade(Trait):
    """Accuracy of a function: the smallest grade in units in the last place whose bound admits all results seen."""

    ulps: float | None = None


def format_name(bits: int) -> str:
    """What a number of significant bits is called."""
    return FORMATS.get(bits, f"{bits} bits")
