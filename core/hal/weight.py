"""Where a parameter comes from: rows of packed values that are read only when a device prepares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from ..ir.types import WeightType
from ..schemes import scheme


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A run of rows in one scheme; `load()` gives them as uint8 [rows, row_bytes], normally a view of a memory map."""

    scheme: str
    rows: int
    load: Callable[[], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class WeightSource:
    """A lazy, sliceable parameter of `shape` (rows, columns), made of one or more runs of rows."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[WeightPart, ...]

    @property
    def type(self) -> WeightType:
        names = {part.scheme for part in self.parts}
        spelled = "+".join(f"{part.scheme}:{part.rows}" for part in self.parts)
        return WeightType(self.shape, names.pop() if len(names) == 1 else spelled)

    @property
    def nbytes(self) -> int:
        """Size of the packed values in bytes."""
        return sum(part.rows * scheme(part.scheme).row_bytes(self.shape[-1]) for part in self.parts)

    def rows(self, start: int, stop: int) -> WeightSource:
        """Rows start to stop; nothing is read.

        Raises:
            ModelError: there are no such rows.
        """
        if not 0 <= start <= stop <= self.shape[0]:
            raise ModelError(f"weight {self.name!r} has {self.shape[0]} rows, not {start}:{stop}")
        kept = tuple(
            WeightPart(part.scheme, high - low, _sliced(part.load, np.s_[low:high]))
            for part, low, high in between(self.parts, start, stop)
        )
        return WeightSource(self.name, (stop - start, self.shape[-1]), kept)

    def columns(self, start: int, stop: int) -> WeightSource:
        """Columns start to stop, which must lie on the block borders of every scheme.

        Raises:
            ModelError: a border cuts a block in two, or there are no such columns.
        """
        if not 0 <= start <= stop <= self.shape[-1]:
            raise ModelError(f"weight {self.name!r} has {self.shape[-1]} columns, not {start}:{stop}")
        parts = []
        for part in self.parts:
            block, header = scheme(part.scheme).block, scheme(part.scheme).header
            if start % block or stop % block:
                raise ModelError(
                    f"weight {self.name!r}: columns {start}:{stop} cut a block of {block} values of scheme "
                    f"{part.scheme!r}; slice at multiples of {block}"
                )
            low, high = scheme(part.scheme).row_bytes(start), scheme(part.scheme).row_bytes(stop)
            load = _sliced(part.load, np.s_[:, low:high])
            parts.append(WeightPart(part.scheme, part.rows, _headed(part.load, header, load) if header else load))
        return WeightSource(self.name, (self.shape[0], stop - start), tuple(parts))

    def unpack(self, dtype: Any = np.float32) -> NDArray[Any]:
        """All values, [rows, columns] in `dtype`."""
        blocks = [scheme(part.scheme).unpack(part.load(), dtype) for part in self.parts]
        return (blocks[0] if len(blocks) == 1 else np.concatenate(blocks)).reshape(self.shape)

    @staticmethod
    def stack(name: str, sources: Sequence[WeightSource]) -> WeightSource:
        """Several weights of one shape as one of shape (groups, rows, columns)."""
        shapes = {source.shape for source in sources}
        if len(shapes) != 1:
            raise ModelError(f"weight {name!r}: cannot stack weights of shapes {sorted(shapes)}")
        return WeightSource(name, (len(sources), *shapes.pop()), tuple(p for source in sources for p in source.parts))

    @staticmethod
    def concatenate(name: str, sources: Sequence[WeightSource]) -> WeightSource:
        """The rows of several weights under each other, each keeping its scheme."""
        columns = {source.shape[-1] for source in sources}
        if len(columns) != 1:
            raise ModelError(f"weight {name!r}: cannot stack weights of {sorted(columns)} columns")
        shape = (sum(source.shape[0] for source in sources), columns.pop())
        return WeightSource(name, shape, tuple(part for source in sources for part in source.parts))


class Run(Protocol):
    """Neighbouring rows of a weight."""

    @property
    def rows(self) -> int: ...


R = TypeVar("R", bound=Run)


def between(runs: Iterable[R], start: int, stop: int) -> Iterator[tuple[R, int, int]]:
    """The runs that hold rows start to stop of all rows, each with where they begin and end in it."""
    first = 0
    for run in runs:
        low, high = max(start - first, 0), min(stop - first, run.rows)
        if low < high:
            yield run, low, high
        first += run.rows


def _sliced(load: Callable[[], NDArray[np.uint8]], index: Any) -> Callable[[], NDArray[np.uint8]]:
    return lambda: load()[index]


def _headed(
    whole: Callable[[], NDArray[np.uint8]], header: int, rest: Callable[[], NDArray[np.uint8]]
) -> Callable[[], NDArray[np.uint8]]:
    """Rows with the header of the whole; a copy."""
    return lambda: np.concatenate([whole()[:, :header], rest()], axis=1)
