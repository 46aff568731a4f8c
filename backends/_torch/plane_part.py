"""Rows of a weight on an accelerator: planes of codes and scales, expanded by torch's own ops where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

from xinheng.core.hal import WeightPart
from xinheng.core.ir.dtype import from_numpy
from xinheng.core.schemes import scheme

from .planes import SCHEMES, SUPER, Planes, planes

Tensor = torch.Tensor
Upload = Callable[[Any, Any], Tensor]
"""Puts an array of a dtype on a device."""

CHUNK_BYTES = 1 << 26
"""Packed bytes that are laid out at a time."""


@dataclass(frozen=True)
class PlanePart:
    """A run of rows; `codes` [rows, ...] are the values themselves where the coding is "dense".

    The rest is as in `Planes`.
    """

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
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self._tensors().values())

    def slice(self, start: int, stop: int) -> Self:
        """Rows start to stop, without a copy."""
        cut: dict[str, Any] = {name: x[start:stop] for name, x in self._tensors().items()}
        return replace(self, rows=stop - start, **cut)

    def take(self, index: Tensor, kind: torch.dtype) -> Tensor:
        """The rows of an index int64 [n] as values [n, columns] of `kind`."""
        picked: dict[str, Any] = {name: x.index_select(0, index) for name, x in self._tensors().items()}
        return replace(self, rows=index.numel(), **picked).unpack(0, index.numel(), kind)

    def unpack(self, start: int, stop: int, kind: torch.dtype) -> Tensor:
        """Rows start to stop as values [stop - start, columns] of `kind`."""
        part = self.slice(start, stop)
        wide = torch.float64 if kind is torch.float64 else torch.float32
        return part.codes.to(kind) if self.dense else part._expanded(wide).to(kind)

    def _tensors(self) -> dict[str, Tensor]:
        return {f.name: x for f in fields(self) if isinstance(x := getattr(self, f.name), Tensor)}

    def _expanded(self, wide: torch.dtype) -> Tensor:
        """The values as `wide`: s (q - z) - m, with the factors of their groups; the only rounding is the last one."""
        assert self.scale is not None
        rows = self.codes.shape[0]
        group = self.group or self.columns
        values = self._numbers(wide).view(rows, self.columns // group, group)
        if self.offset:
            values -= self.offset
        if self.zero is not None:
            values -= self.zero.to(wide)[..., None]
        values *= self._factor(self.scale, self.outer, wide)[..., None]
        if self.low is not None:
            values -= self._factor(self.low, self.outer_low, wide)[..., None]
        return values.view(rows, self.columns)

    def _numbers(self, wide: torch.dtype) -> Tensor:
        """The codes as new numbers, contiguous."""
        rows = self.codes.shape[0]
        if self.coding == "e4m3":
            return self.codes.view(torch.float8_e4m3fn).to(wide)
        if self.coding != "nibbles":
            return self.codes.to(wide)
        runs = self.codes.view(rows, self.columns // (2 * self.run), self.run)
        numbers = torch.empty((rows, runs.shape[1], 2, self.run), dtype=wide, device=runs.device)
        numbers[:, :, 0] = runs & 15
        numbers[:, :, 1] = runs >> 4
        return numbers

    def _factor(self, inner: Tensor, outer: Tensor | None, wide: torch.dtype) -> Tensor:
        """Factors by group, [rows, groups]: those that are stored, times one per run of columns if there is one."""
        if outer is None:
            return inner.to(wide)
        return inner.to(wide) * outer.to(wide).repeat_interleave(SUPER // self.group, -1)


def plane_part(part: WeightPart, columns: int, upload: Upload) -> PlanePart:
    """Lay rows out on a device; those of a scheme without planes are expanded to float32."""
    data, dense = part.load(), scheme(part.scheme).dense
    if dense is not None and dense.bits >= 16:
        return PlanePart(part.scheme, part.rows, columns, "dense", upload(data.view(dense.numpy), dense))
    if part.scheme not in SCHEMES:
        values = scheme(part.scheme).unpack(data)
        return PlanePart(part.scheme, part.rows, columns, "dense", upload(values, from_numpy(values.dtype)))
    height = max(1, CHUNK_BYTES // max(1, data.shape[-1]))
    pieces = [_uploaded(planes(part.scheme, data[at : at + height]), upload) for at in range(0, len(data), height)]
    made = {name: _joined([piece[name] for piece in pieces]) for name in pieces[0]}
    return PlanePart(part.scheme, part.rows, columns, **made)


def _uploaded(given: Planes, upload: Upload) -> dict[str, Any]:
    """The fields of planes, arrays on the device."""
    named = {f.name: getattr(given, f.name) for f in fields(given)}
    return {name: upload(x, from_numpy(x.dtype)) if hasattr(x, "dtype") else x for name, x in named.items()}


def _joined(pieces: Sequence[Any]) -> Any:
    """Tensors of all pieces under each other; what is no tensor is the same in all of them."""
    return torch.cat(list(pieces)) if len(pieces) > 1 and isinstance(pieces[0], Tensor) else pieces[0]
