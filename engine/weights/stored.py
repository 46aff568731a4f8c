"""The tensors of an opened checkpoint: where their bytes lie and in which scheme, whatever the container format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import ModelError, nearest
from xinheng.core.hal.weight import WeightPart, WeightSource
from xinheng.core.ir.dtype import cast_to, from_numpy
from xinheng.core.schemes import scheme

from .file_map import FileMap


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of `shape` (slowest dimension first) in `scheme`, at byte `offset` of a mapped file, row-major."""

    name: str
    shape: tuple[int, ...]
    scheme: str
    file: FileMap = field(repr=False)
    offset: int

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return scheme(self.scheme).row_bytes(self.columns)

    @property
    def row_count(self) -> int:
        """Rows when all dimensions but the last are folded into one."""
        return prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        return self.row_count * self.row_bytes

    def load(self) -> NDArray[np.uint8]:
        """The packed rows as a read-only view of the file, uint8 [row_count, row_bytes]."""
        return self.file.view(self.offset, self.nbytes).reshape(self.row_count, self.row_bytes)

    def unpack(self, dtype: Any) -> NDArray[Any]:
        """All values in `dtype`, rounded once."""
        stored, target = scheme(self.scheme), np.dtype(dtype)
        if stored.dense is not None or target in (np.dtype(np.float32), np.dtype(np.float64)):
            values = stored.unpack(self.load(), target)
        else:
            values = cast_to(stored.unpack(self.load(), np.float64), from_numpy(target))
        return values.reshape(self.shape)


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint (see `checkpoint.Checkpoint`) whose tensors lie in memory-mapped files."""

    path: Path
    format: str
    metadata: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, StoredTensor] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def names(self) -> tuple[str, ...]:
        """The names of all tensors, in the order of the file."""
        return tuple(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, slowest dimension first ([out, in] for a linear)."""
        return self._tensor(name).shape

    def source(self, name: str) -> WeightSource:
        """A matrix as a lazy weight; its bytes are a view of the file.

        Raises:
            ModelError: there is no such tensor, or it is not a matrix.
        """
        tensor = self._tensor(name)
        if len(tensor.shape) != 2:
            raise ModelError(
                f"{self.path}: tensor {name!r} has shape {list(tensor.shape)}; a weight is a matrix; use array()"
            )
        return WeightSource(name, tensor.shape, (WeightPart(tensor.scheme, tensor.shape[0], tensor.load),))

    def array(self, name: str, dtype: Any = np.float32) -> NDArray[Any]:
        """A tensor of any rank, unpacked and rounded once to `dtype`; a copy of its own.

        Raises:
            ModelError: there is no such tensor.
        """
        return self._tensor(name).unpack(dtype)

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self.tensors:
            known = list(self.tensors)
            raise ModelError(f"{self.path}: no tensor {name!r} among {len(known)}{nearest(name, known)}")
        return self.tensors[name]
