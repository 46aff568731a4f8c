"""Buffers of the MindSpore runtime besides tensors: weights and states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import ops as msops

from xinheng.core.hal import between
from xinheng.core.ir.dtype import DType

from .packed import Planes, decoded, plane_bytes, rows_of
from .tensors import converted


@dataclass(frozen=True, slots=True)
class MindSporePart:
    """A run of rows: one dense plane [rows, columns] if `scheme` is None, else the planes of a packed scheme."""

    scheme: str | None
    rows: int
    planes: Planes

    def taken(self, start: int, stop: int) -> MindSporePart:
        """Rows start to stop."""
        return MindSporePart(self.scheme, stop - start, rows_of(self.planes, start, stop))

    def values(self) -> Any:
        """The values as float32 [rows, columns]."""
        return converted(self.planes[0], ms.float32) if self.scheme is None else decoded(self.scheme, self.planes)


@dataclass(frozen=True, slots=True)
class MindSporeWeight:
    """A weight of `shape` (rows, columns) or (groups, rows, columns); `layout` says what became of the stored form."""

    shape: tuple[int, ...]
    parts: tuple[MindSporePart, ...]
    layout: str = "as stored"

    @property
    def nbytes(self) -> int:
        return sum(plane_bytes(part.planes) for part in self.parts)

    @property
    def dense(self) -> Any:
        """The only plane of a weight of plain numbers in one piece, None for others."""
        only = self.parts[0]
        return only.planes[0] if len(self.parts) == 1 and only.scheme is None else None

    def values(self) -> Any:
        """All values, float32 in the shape of the weight."""
        made = [part.values() for part in self.parts]
        return (made[0] if len(made) == 1 else msops.cat(tuple(made), 0)).reshape(self.shape)

    def pieces(self, rows: int) -> Iterator[Any]:
        """The values in float32 pieces of at most `rows` rows."""
        for part in self.parts:
            for start in range(0, part.rows, rows):
                yield part.taken(start, min(start + rows, part.rows)).values()

    def group(self, index: int) -> MindSporeWeight:
        """One weight of a stack."""
        _, rows, columns = self.shape
        runs = between(self.parts, index * rows, (index + 1) * rows)
        return MindSporeWeight((rows, columns), tuple(part.taken(*place) for part, *place in runs), self.layout)


@dataclass(frozen=True, slots=True)
class MindSporePagedKV:
    """A paged cache: k [blocks, block_size, heads, k_dim] and v [blocks, block_size, heads, v_dim].

    `kind` is the dtype that its values are rounded to. The CPU target cannot write into bfloat16 tensors by index, so
    that a bfloat16 cache is held in float32.
    """

    k: Any
    v: Any
    kind: DType


@dataclass(frozen=True, slots=True)
class MindSporePagedLatent:
    """A paged latent cache: latent [blocks, block_size, dim], rope [blocks, block_size, rope_dim], as `kind`."""

    latent: Any
    rope: Any
    kind: DType


@dataclass(frozen=True, slots=True)
class MindSporeSequenceState:
    """A state of fixed size per sequence: data [slots, ...], as `kind`."""

    data: Any
    kind: DType
