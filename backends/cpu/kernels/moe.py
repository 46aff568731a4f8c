"""Native mixtures of experts: choosing experts, sorting rows by expert, the products of each, and their sums."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from xinheng.core.errors import DeviceError
from xinheng.core.hal import WeightSource

from ..arrays import Array, address, contiguous, stride
from .library import Library, check, int32_of, matrix_of, type_code
from .tiles import TiledWeight

_FUSED = struct.Struct("7Q6q2i")  # `MoeCall` in csrc/moe.h
_GATING = struct.Struct("4Q6qd5i4x")  # `GatingCall` in csrc/moe_router.h


def gating_kernel(library: Library) -> Callable[..., tuple[Array, Array]]:
    """The kernel of `moe_gating_topk`: scores in float64, rounded once."""
    run, pack = library.moe_gating, _GATING.pack

    def moe_gating_topk(
        logits: Array,
        bias: Array | None = None,
        *,
        k: int,
        score: str = "softmax",
        renormalise: bool = True,
        scale: float = 1.0,
        groups: int = 1,
        groups_kept: int = 1,
        group_score: str = "top2",
    ) -> tuple[Array, Array]:
        flat, tokens, stride = matrix_of(logits)
        added = None if bias is None else contiguous(bias)
        weights = library.empty((tokens, k), np.float32)
        chosen = library.empty((tokens, k), np.int32)
        call = pack(
            address(flat), 0 if added is None else address(added), address(weights), address(chosen),
            tokens, logits.shape[1], stride, k, groups, groups_kept, scale,
            type_code(logits), 0 if added is None else type_code(added), score == "sigmoid", renormalise,
            group_score == "top2",
        )  # fmt: skip
        check(run(call), "moe_gating_topk")
        return weights, chosen

    return moe_gating_topk


def permute_kernel(library: Library) -> Callable[..., tuple[Array, Array, Array]]:
    """The kernel of `moe_permute`, a counting sort."""

    def moe_permute(x: Array, experts: Array, *, num_experts: int) -> tuple[Array, Array, Array]:
        tokens, k = experts.shape
        flat, size = matrix_of(x)[0], x.itemsize
        rows = library.empty((tokens * k, x.shape[1]), x.dtype)
        order = library.empty(tokens * k, np.int32)
        counts = library.empty(num_experts, np.int32)
        chosen, width = int32_of(experts), x.shape[1] * size
        given = (address(flat), stride(flat, 0) * size, width, address(chosen), tokens, k, num_experts)
        bad = library.moe_permute(*given, address(rows), address(order), address(counts))
        if bad > 0:
            number = int(chosen.reshape(-1)[bad - 1])
            raise DeviceError(f"moe_permute: expert {number} of choice {bad - 1} is outside 0 .. {num_experts - 1}")
        return rows, order, counts

    return moe_permute


def unpermute_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `moe_unpermute`, summed in float32 over the choices of a token in their order."""

    def moe_unpermute(rows: Array, order: Array, weights: Array) -> Array:
        (tokens, k), width = weights.shape, rows.shape[1]
        out = library.empty((tokens, width), rows.dtype)
        rows, order, weights = contiguous(rows), int32_of(order), contiguous(weights)
        given = (address(rows), type_code(rows), address(order), address(weights))
        bad = library.moe_unpermute(*given, tokens, k, width, address(out))
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


def grouped_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `grouped_linear`: for weights as stored in float32, for tiles with int8 activations."""

    def grouped_linear(x: Array, weight: Any, counts: Array) -> Array:
        groups, out, columns = weight.shape
        if x.shape[1] != columns:
            raise DeviceError(f"grouped_linear: x has {x.shape[1]} columns, the weight has {columns}")
        tiled = isinstance(weight, TiledWeight)
        flat, rows, stride = matrix_of(x)
        y, counts = library.empty((rows, out), x.dtype), int32_of(counts)
        table = weight.table if tiled else ctypes.create_string_buffer(library.pack(weight))
        given = (address(flat), type_code(x), rows, columns, stride, address(counts), groups, out)
        bad = library.grouped_linear(*given, ctypes.addressof(table), tiled, address(y))
        if bad > 0:
            told = f"{int(counts[bad - 1])} rows for group {bad - 1}, {int(counts.sum())} in all"
            raise DeviceError(f"grouped_linear: counts tell {told}, but x has {rows} rows")
        check(bad, "grouped_linear")
        return y

    return grouped_linear


def fused_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `fused_moe`: float32 between the products, for tiles with int8 activations."""
    run, pack = library.fused_moe, _FUSED.pack

    def fused_moe(x: Array, weights: Array, experts: Array, gate: Any, up: Any, down: Any) -> Array:
        (count, inner, width), (tokens, k) = gate.shape, experts.shape
        if x.shape != (tokens, width) or up.shape != gate.shape or down.shape != (count, width, inner):
            shapes = f"gate {list(gate.shape)}, up {list(up.shape)} and down {list(down.shape)}"
            raise DeviceError(f"fused_moe: x {list(x.shape)} and experts {list(experts.shape)} do not fit {shapes}")
        tiled = isinstance(gate, TiledWeight)
        tables = [w.table if tiled else ctypes.create_string_buffer(library.pack(w)) for w in (gate, up, down)]
        flat, _, stride = matrix_of(x)
        weights, chosen, y = contiguous(weights), int32_of(experts), library.empty(x.shape, x.dtype)
        pointers = (
            address(flat),
            address(weights),
            address(chosen),
            *map(ctypes.addressof, tables),
            address(y),
        )
        bad = run(pack(*pointers, tokens, k, count, width, inner, stride, type_code(x), tiled))
        if bad > 0:
            number = int(chosen.reshape(-1)[bad - 1])
            raise DeviceError(f"fused_moe: expert {number} of choice {bad - 1} is outside 0 .. {count - 1}")
        check(bad, "fused_moe")
        return y

    return fused_moe
