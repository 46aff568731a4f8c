"""Weights as Triton kernels read them: dense rows, or planes of codes and scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch

from xinheng.core.hal import WeightPart, WeightSource
from xinheng.core.ir.dtype import bfloat16, float16, float32, from_numpy
from xinheng.core.schemes import scheme

from .._torch.handles import TorchWeight
from .planes import SCHEMES, Planes, planes

Tensor = torch.Tensor
Upload = Callable[[Any, Any], Tensor]
"""Puts an array of a dtype on a device."""

EIGHTS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
"""Dense schemes of eight bits, whose bytes kernels decode themselves."""
CHUNK_BYTES = 1 << 26
"""Packed bytes that are laid out at a time."""


@dataclass(frozen=True)
class TritonPart:
    """A run of rows; `codes` [rows, ...] are values where the coding is "dense", the rest is as in `Planes`."""

    scheme: str
    rows: int
    columns: int
    coding: str
    codes: Tensor
    scale: Tensor | None = None
    outer: Tensor | None = None
    zero: Tensor | None = None
    low: Tensor | None = None
    outer_low: Tensor | None = None
    group: int = 0
    run: int = 16
    offset: int = 0

    @property
    def dense(self) -> bool:
        return self.coding == "dense"

    @property
    def data(self) -> Tensor:
        return self.codes

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The planes in the order in which kernels take them."""
        return self.codes, self.scale, self.outer, self.zero, self.low, self.outer_low

    @property
    def steps(self) -> tuple[int, int, int]:
        """How far a row of codes, of scales and of outer factors is from the next."""
        return tuple(0 if x is None else x.stride(0) for x in (self.codes, self.scale, self.outer))  # type: ignore[return-value]

    @property
    def constants(self) -> dict[str, Any]:
        """What kernels are compiled for."""
        return {"CODING": self.coding, "GROUP": self.group, "RUN": self.run, "OFFSET": self.offset}

    def slice(self, start: int, stop: int) -> TritonPart:
        """Rows start to stop, without a copy."""
        cut = {f.name: x[start:stop] for f in fields(self) if isinstance(x := getattr(self, f.name), Tensor)}
        return replace(self, rows=stop - start, **cut)

    def unpack(self, start: int, stop: int, kind: torch.dtype) -> Tensor:
        """Rows start to stop as values [stop - start, columns] of `kind`."""
        from .kernels.weights import expanded

        return expanded(self.slice(start, stop), None, kind)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.tensors if x is not None)


@dataclass(frozen=True)
class TritonWeight(TorchWeight):
    """A `TorchWeight` whose parts are `TritonPart`s."""

    parts: tuple[Any, ...]

    @cached_property
    def groups(self) -> tuple[TorchWeight, ...]:
        count, rows, columns = self.shape
        return tuple(TritonWeight((rows, columns), self._rows(i * rows, (i + 1) * rows)) for i in range(count))

    def _rows(self, start: int, stop: int) -> tuple[Any, ...]:
        kept, first = [], 0
        for part in self.parts:
            low, high = max(start - first, 0), min(stop - first, part.rows)
            if low < high:
                kept.append(part.slice(low, high))
            first += part.rows
        return tuple(kept)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def layout(self) -> str:
        """How it lies in memory, for the receipt."""
        return "as stored" if all(part.dense for part in self.parts) else "planes of codes and scales"


def prepared(source: WeightSource, upload: Upload) -> TritonWeight:
    """Lay a weight out; rows in a scheme without planes are expanded to float32."""
    return TritonWeight(source.shape, tuple(_part(part, source.shape[-1], upload) for part in source.parts))


def _part(part: WeightPart, columns: int, upload: Upload) -> TritonPart:
    data, dense = part.load(), scheme(part.scheme).dense
    if dense in (float32, float16, bfloat16) and dense is not None:
        return TritonPart(part.scheme, part.rows, columns, "dense", upload(data.view(dense.numpy), dense))
    if part.scheme in EIGHTS:
        return TritonPart(part.scheme, part.rows, columns, EIGHTS[part.scheme], upload(data, from_numpy(data.dtype)))
    if part.scheme not in SCHEMES:
        values = scheme(part.scheme).unpack(data)
        return TritonPart(part.scheme, part.rows, columns, "dense", upload(values, from_numpy(values.dtype)))
    height = max(1, CHUNK_BYTES // max(1, data.shape[-1]))
    pieces = [_uploaded(planes(part.scheme, data[at : at + height]), upload) for at in range(0, len(data), height)]
    made = {name: _joined([piece[name] for piece in pieces]) for name in pieces[0]}
    return TritonPart(part.scheme, part.rows, columns, **made)


def _uploaded(given: Planes, upload: Upload) -> dict[str, Any]:
    """The fields of planes, arrays on the device."""
    named = {f.name: getattr(given, f.name) for f in fields(given)}
    return {name: upload(x, from_numpy(x.dtype)) if hasattr(x, "dtype") else x for name, x in named.items()}


def _joined(pieces: Sequence[Any]) -> Any:
    """Tensors of all pieces under each other; what is no tensor is the same in all of them."""
    return torch.cat(list(pieces)) if len(pieces) > 1 and isinstance(pieces[0], Tensor) else pieces[0]
