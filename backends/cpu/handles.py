"""The handles that kernels of this device take besides arrays: weights as they are stored.

Caches are the tuples of arrays that references see: `KVPages`, `LatentPages` and `SequenceSlots`, of any strides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from xinheng.core.hal import WeightPart, between
from xinheng.core.ir.dtype import DTYPES
from xinheng.core.schemes import scheme

from .arrays import Array

HELD = frozenset(
    kind for kind in DTYPES.values() if (kind.bits >= 8 or kind.kind == "bool") and kind.name != "float8_e8m0fnu"
)
"""The element types of tensors: those that torch kernels take."""


@dataclass(frozen=True, slots=True)
class HostWeightPart:
    """A run of rows: an array [rows, columns] for a dense float scheme, else packed uint8 [rows, row_bytes].

    The memory may be a read-only map of a file: it is never written.
    """

    scheme: str
    rows: int
    data: Array

    @classmethod
    def of(cls, part: WeightPart) -> HostWeightPart:
        """A part as it lies in its file."""
        data, dense = np.ascontiguousarray(part.load()), scheme(part.scheme).dense
        return cls(part.scheme, part.rows, data.view(dense.numpy) if dense in HELD else data)

    def unpack(self, start: int, stop: int, kind: Any) -> Array:
        """Rows start to stop as values [stop - start, columns] of float32 or float64."""
        rows = self.data[start:stop]
        if self.data.dtype != np.uint8:
            return rows.astype(kind)
        return scheme(self.scheme).unpack(rows, kind)


@dataclass(frozen=True)
class HostWeight:
    """A weight of `shape` (rows, columns) or (groups, rows, columns), one run of rows per scheme.

    `layout` is a phrase on how it came to lie in memory, for the receipt.
    """

    shape: tuple[int, ...]
    parts: tuple[HostWeightPart, ...]
    layout: str = "as stored"

    @cached_property
    def groups(self) -> tuple[HostWeight, ...]:
        """The weights of a stack one by one, without a copy."""
        count, rows, columns = self.shape
        return tuple(HostWeight((rows, columns), self._rows(i * rows, (i + 1) * rows)) for i in range(count))

    def _rows(self, start: int, stop: int) -> tuple[HostWeightPart, ...]:
        runs = between(self.parts, start, stop)
        return tuple(HostWeightPart(part.scheme, high - low, part.data[low:high]) for part, low, high in runs)

    def values(self, kind: Any) -> Array:
        """All values of float32 or float64 in the shape of the weight."""
        pieces = [part.unpack(0, part.rows, kind) for part in self.parts]
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).reshape(self.shape)

    def chunks(self, kind: Any, rows: int) -> Iterator[tuple[int, Array]]:
        """The values in pieces of at most `rows` rows, each with the index of its first row."""
        first = 0
        for part in self.parts:
            for start in range(0, part.rows, rows):
                yield first + start, part.unpack(start, min(start + rows, part.rows), kind)
            first += part.rows

    @property
    def nbytes(self) -> int:
        return sum(part.data.nbytes for part in self.parts)
