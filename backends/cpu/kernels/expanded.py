"""Matrix products whose right side is laid out as dense rows first, and then read by the native `linear`.

So every product on this device is accumulated in one order per element, whatever the batch; the libraries below torch
choose theirs by the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from xinheng.core.ir.graph import Node

from ..._torch.handles import NAMES, TorchWeight, TorchWeightPart
from .library import Library
from .linear import linear_kernel

Tensor = torch.Tensor

CHUNK_VALUES = 1 << 22
"""Values of a weight that are expanded at a time."""


def dense(rows: Tensor) -> TorchWeight:
    """A weight of given values [rows, columns]."""
    kept = rows.contiguous()
    return TorchWeight((rows.shape[0], rows.shape[1]), (TorchWeightPart(NAMES[rows.dtype].name, len(rows), kept),))


class NativeMatmul:
    """The kernel of `matmul`; a right side that stays the same is laid out once."""

    def __init__(self, library: Library) -> None:
        self._run = linear_kernel(library)

    def plan(self, node: Node, bounds: Mapping[str, int]) -> Callable[[Tensor, Tensor], Tensor]:
        """The kernel of one node."""
        right = node.operands[1]
        if right is None or right.kind not in ("parameter", "constant") or len(right.shape) != 2:
            return self.multiply
        kept: list[tuple[Tensor, TorchWeight]] = []

        def once(b: Tensor) -> TorchWeight:
            if not kept or kept[0][0] is not b:
                kept[:] = [(b, dense(b.mT))]
            return kept[0][1]

        return partial(self.multiply, laid_out=once)

    def multiply(
        self, a: Tensor, b: Tensor, laid_out: Callable[[Tensor], TorchWeight] = lambda b: dense(b.mT)
    ) -> Tensor:
        """a times b, whose columns `laid_out` makes the rows of a weight if it is a matrix."""
        if not a.numel() or not b.numel():
            return torch.matmul(a, b)
        if b.dim() == 2:
            return self._run(a, laid_out(b))
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
        left, right = (x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (a, b.mT))
        made = torch.stack([self._run(x, dense(y)) for x, y in zip(left, right, strict=True)])
        return made.reshape(*lead, *made.shape[-2:])


def expanded_linear_kernel(library: Library) -> Callable[..., Tensor]:
    """The kernel of `linear` for weights that have no native reader."""
    run = linear_kernel(library)

    def linear(x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
        rows, columns = weight.shape
        out = torch.empty((*x.shape[:-1], rows), dtype=x.dtype)
        for first, values in weight.chunks(torch.float32, max(1, CHUNK_VALUES // columns)):
            last = first + len(values)
            out[..., first:last] = run(x, dense(values), None if bias is None else bias[first:last])
        return out

    return linear


def expanded_batched_linear_kernel(library: Library) -> Callable[..., Tensor]:
    """The kernel of `batched_linear` for weights that have no native reader, and for transposed ones."""
    run = linear_kernel(library)

    def batched_linear(x: Tensor, weight: Any, *, transposed: bool = False) -> Tensor:
        heads = [group.values(torch.float32) for group in weight.groups]
        made = [run(x[:, i], dense(values.mT if transposed else values)) for i, values in enumerate(heads)]
        return torch.stack(made, dim=1)

    return batched_linear
