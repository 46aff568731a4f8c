"""The handles that torch kernels take besides tensors: weights and caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core.hal import between
from xinheng.core.ir.dtype import DType, bfloat16, dtype
from xinheng.core.schemes import scheme

DTYPES: dict[DType, torch.dtype] = {
    dtype(name): getattr(torch, name)
    for name in [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint64",
        "uint32",
        "uint16",
        "uint8",
        "bool",
    ]
}
"""Our element types as torch types; those below one byte have none."""

NAMES = {value: key for key, value in DTYPES.items()}


class Rows(Protocol):
    """A run of rows of a weight, in whatever layout a device likes."""

    @property
    def scheme(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def data(self) -> torch.Tensor:
        """The values, if they are `dense`; otherwise codes."""

    @property
    def dense(self) -> bool: ...

    @property
    def nbytes(self) -> int: ...

    def slice(self, start: int, stop: int) -> Self:
        """Rows start to stop, without a copy."""

    def take(self, index: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        """The rows of an index int64 [n] as values [n, columns] of `kind`."""

    def unpack(self, start: int, stop: int, kind: torch.dtype) -> torch.Tensor:
        """Rows start to stop as values [stop - start, columns] of `kind`."""


@dataclass(frozen=True, slots=True)
class TorchWeightPart:
    """A run of rows: a tensor [rows, columns] for a dense float scheme, else packed uint8 [rows, row_bytes].

    The memory may be a read-only map of a file: it is never written.
    """

    scheme: str
    rows: int
    data: torch.Tensor

    @property
    def dense(self) -> bool:
        return self.data.dtype is not torch.uint8

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def slice(self, start: int, stop: int) -> TorchWeightPart:
        """Rows start to stop, without a copy."""
        return TorchWeightPart(self.scheme, stop - start, self.data[start:stop])

    def take(self, index: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        """The rows of an index int64 [n] as values [n, columns] of `kind`."""
        return TorchWeightPart(self.scheme, index.numel(), self.data[index]).unpack(0, index.numel(), kind)

    def unpack(self, start: int, stop: int, kind: torch.dtype) -> torch.Tensor:
        """Rows start to stop as values [stop - start, columns] of `kind`."""
        rows = self.data[start:stop]
        if self.dense:
            return rows.to(kind)
        wide = np.float64 if kind is torch.float64 else np.float32
        values: Any = scheme(self.scheme).unpack(rows.cpu().numpy(), wide)
        return torch.from_numpy(values).to(device=rows.device, dtype=kind)


@dataclass(frozen=True)
class TorchWeight:
    """A weight of `shape` (rows, columns) or (groups, rows, columns), one run of rows per scheme.

    `layout` is a phrase on how it came to lie in memory, for the receipt.
    """

    shape: tuple[int, ...]
    parts: tuple[Rows, ...]
    layout: str = "as stored"

    @cached_property
    def groups(self) -> tuple[TorchWeight, ...]:
        """The weights of a stack one by one, without a copy."""
        count, rows, columns = self.shape
        return tuple(TorchWeight((rows, columns), self._rows(i * rows, (i + 1) * rows)) for i in range(count))

    def _rows(self, start: int, stop: int) -> tuple[Rows, ...]:
        return tuple(part.slice(low, high) for part, low, high in between(self.parts, start, stop))

    def values(self, kind: torch.dtype) -> torch.Tensor:
        """All values in the shape of the weight."""
        pieces = [part.unpack(0, part.rows, kind) for part in self.parts]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).reshape(self.shape)

    def chunks(self, kind: torch.dtype, rows: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The values in pieces of at most `rows` rows, each with the index of its first row."""
        first = 0
        for part in self.parts:
            for start in range(0, part.rows, rows):
                yield first + start, part.unpack(start, min(start + rows, part.rows), kind)
            first += part.rows

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor of the host as an array over the same memory."""
    kind, bits = NAMES[tensor.dtype], tensor.detach().resolve_neg().resolve_conj()
    if kind is bfloat16 or kind.name.startswith("float8"):  # numpy has them from another package
        return bits.view(torch.int16 if kind.bits == 16 else torch.uint8).numpy().view(kind.numpy)
    plain: NDArray[Any] = bits.numpy()
    return plain


@dataclass(frozen=True, slots=True)
class TorchPagedKV:
    """A paged cache: k [blocks, block_size, heads, k_dim] and v [blocks, block_size, heads, v_dim], of any strides."""

    k: torch.Tensor
    v: torch.Tensor

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """The tensors that it consists of, in the order of `StateType.parts`."""
        return self.k, self.v


@dataclass(frozen=True, slots=True)
class TorchQuantizedKV(TorchPagedKV):
    """A paged cache of int8: codes k and v, k_scale and v_scale float32 [blocks, block_size, heads], of any strides."""

    k_scale: torch.Tensor
    v_scale: torch.Tensor

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """The tensors that it consists of, in the order of `StateType.parts`."""
        return self.k, self.v, self.k_scale, self.v_scale


@dataclass(frozen=True, slots=True)
class TorchPagedLatent:
    """A paged latent cache: latent [blocks, block_size, dim] and rope [blocks, block_size, rope_dim], contiguous."""

    latent: torch.Tensor
    rope: torch.Tensor

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """The tensors that it consists of, in the order of `StateType.parts`."""
        return self.latent, self.rope


@dataclass(frozen=True, slots=True)
class TorchSequenceState:
    """A fixed-size state per sequence: data [slots, ...], contiguous."""

    data: torch.Tensor

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """The tensors that it consists of, in the order of `StateType.parts`."""
        return (self.data,)
