"""Native mixtures of experts: choosing experts, sorting rows by expert, the products of each, and their sums."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch

from xinheng.core.errors import DeviceError
from xinheng.core.hal import WeightSource

from .library import Library, check, int32_of, matrix_of, type_code
from .tiles import TiledWeight

Tensor = torch.Tensor

_FUSED = struct.Struct("7Q6q2i")  # `MoeCall` in csrc/moe.h
_GATING = struct.Struct("4Q6qd5i4x")  # `GatingCall` in csrc/moe_router.h


def gating_kernel(library: Library) -> Callable[..., tuple[Tensor, Tensor]]:
    """The kernel of `moe_gating_topk`: scores in float64, rounded once."""
    run, pack = library.moe_gating, _GATING.pack

    def moe_gating_topk(
        logits: Tensor,
        bias: Tensor | None = None,
        *,
        k: int,
        score: str = "softmax",
        renormalise: bool = True,
        scale: float = 1.0,
        groups: int = 1,
        groups_kept: int = 1,
        group_score: str = "top2",
    ) -> tuple[Tensor, Tensor]:
        flat, tokens, stride = matrix_of(logits)
        added = None if bias is None else bias.contiguous()
        weights = torch.empty((tokens, k), dtype=torch.float32)
        chosen = torch.empty((tokens, k), dtype=torch.int32)
        call = pack(
            flat.data_ptr(), 0 if added is None else added.data_ptr(), weights.data_ptr(), chosen.data_ptr(),
            tokens, logits.shape[1], stride, k, groups, groups_kept, scale,
            type_code(logits), 0 if added is None else type_code(added), score == "sigmoid", renormalise,
            group_score == "top2",
        )  # fmt: skip
        check(run(call), "moe_gating_topk")
        return weights, chosen

    return moe_gating_topk


def permute_kernel(library: Library) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """The kernel of `moe_permute`, a counting sort."""

    def moe_permute(x: Tensor, experts: Tensor, *, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
        tokens, k = experts.shape
        flat, size = matrix_of(x)[0], x.element_size()
        rows = torch.empty((tokens * k, x.shape[1]), dtype=x.dtype)
        order = torch.empty(tokens * k, dtype=torch.int32)
        counts = torch.empty(num_experts, dtype=torch.int32)
        chosen, width = int32_of(experts), x.shape[1] * size
        given = (flat.data_ptr(), flat.stride(0) * size, width, chosen.data_ptr(), tokens, k, num_experts)
        bad = library.moe_permute(*given, rows.data_ptr(), order.data_ptr(), counts.data_ptr())
        if bad > 0:
            number = int(chosen.reshape(-1)[bad - 1])
            raise DeviceError(f"moe_permute: expert {number} of choice {bad - 1} is outside 0 .. {num_experts - 1}")
        return rows, order, counts

    return moe_permute


def unpermute_kernel(library: Library) -> Callable[..., Tensor]:
    """The kernel of `moe_unpermute`, summed in float32 over the choices of a token in their order."""

    def moe_unpermute(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
        (tokens, k), width = weights.shape, rows.shape[1]
        out = torch.empty((tokens, width), dtype=rows.dtype)
        rows, order, weights = rows.contiguous(), int32_of(order), weights.contiguous()
        given = (rows.data_ptr(), type_code(rows), order.data_ptr(), weights.data_ptr())
        bad = library.moe_unpermute(*given, tokens, k, width, out.data_ptr())
        if bad > 0:
            raise DeviceError(f"moe_unpermute: order is no permutation: element {bad - 1} is {int(order[bad - 1])}")
        check(bad, "moe_unpermute")
        return out

    return moe_unpermute


def by_group(source: WeightSource) -> WeightSource:
    """A stack of weights as runs of rows that end where a weight of the stack ends; other weights as they are."""
    if len(source.shape) != 3:
        return source
    groups, rows, columns = source.shape
    flat = WeightSource(source.name, (groups * rows, columns), source.parts)
    return WeightSource.stack(source.name, [flat.rows(i * rows, (i + 1) * rows) for i in range(groups)])


def grouped_kernel(library: Library) -> Callable[..., Tensor]:
    """The kernel of `grouped_linear`: for weights as stored in float32, for tiles with int8 activations."""

    def grouped_linear(x: Tensor, weight: Any, counts: Tensor) -> Tensor:
        groups, out, columns = weight.shape
        if x.shape[1] != columns:
            raise DeviceError(f"grouped_linear: x has {x.shape[1]} columns, the weight has {columns}")
        tiled = isinstance(weight, TiledWeight)
        flat, rows, stride = matrix_of(x)
        y, counts = torch.empty((rows, out), dtype=x.dtype), int32_of(counts)
        table = weight.table if tiled else ctypes.create_string_buffer(library.pack(weight))
        given = (flat.data_ptr(), type_code(x), rows, columns, stride, counts.data_ptr(), groups, out)
        bad = library.grouped_linear(*given, ctypes.addressof(table), tiled, y.data_ptr())
        if bad > 0:
            told = f"{int(counts[bad - 1])} rows for group {bad - 1}, {int(counts.sum())} in all"
            raise DeviceError(f"grouped_linear: counts tell {told}, but x has {rows} rows")
        check(bad, "grouped_linear")
        return y

    return grouped_linear


def fused_kernel(library: Library) -> Callable[..., Tensor]:
    """The kernel of `fused_moe`: float32 between the products, for tiles with int8 activations."""
    run, pack = library.fused_moe, _FUSED.pack

    def fused_moe(x: Tensor, weights: Tensor, experts: Tensor, gate: Any, up: Any, down: Any) -> Tensor:
        (count, inner, width), (tokens, k) = gate.shape, experts.shape
        if x.shape != (tokens, width) or up.shape != gate.shape or down.shape != (count, width, inner):
            shapes = f"gate {list(gate.shape)}, up {list(up.shape)} and down {list(down.shape)}"
            raise DeviceError(f"fused_moe: x {list(x.shape)} and experts {list(experts.shape)} do not fit {shapes}")
        tiled = isinstance(gate, TiledWeight)
        tables = [w.table if tiled else ctypes.create_string_buffer(library.pack(w)) for w in (gate, up, down)]
        flat, _, stride = matrix_of(x)
        weights, chosen, y = weights.contiguous(), int32_of(experts), torch.empty(x.shape, dtype=x.dtype)
        pointers = (
            flat.data_ptr(),
            weights.data_ptr(),
            chosen.data_ptr(),
            *map(ctypes.addressof, tables),
            y.data_ptr(),
        )
        bad = run(pack(*pointers, tokens, k, count, width, inner, stride, type_code(x), tiled))
        if bad > 0:
            number = int(chosen.reshape(-1)[bad - 1])
            raise DeviceError(f"fused_moe: expert {number} of choice {bad - 1} is outside 0 .. {count - 1}")
        check(bad, "fused_moe")
        return y

    return fused_moe
