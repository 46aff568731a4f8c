"""Ops with a memory per sequence, all sequences of a step side by side."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from xinheng.core import ops

from ..handles import NAMES, TorchSequenceState
from .elementwise import cast, silu, wide
from .registry import FLOATS, TORCH_KERNELS

Tensor = torch.Tensor


def _initial(state: TorchSequenceState, slots: Tensor, fresh: Tensor, kind: torch.dtype) -> Tensor:
    """What each sequence starts from, [seqs, ...]."""
    memory = state.data[slots.long().clamp(min=0)].to(kind)
    memory[fresh | (slots < 0)] = 0
    return memory


def _store(state: TorchSequenceState, slots: Tensor, used: Tensor, memory: Tensor) -> None:
    """Keep the memory of sequences that had rows and have a slot."""
    kept = torch.nonzero(used & (slots >= 0)).reshape(-1)
    state.data[slots[kept].long()] = cast(memory[kept], dtype=NAMES[state.data.dtype])


@TORCH_KERNELS.register(ops.causal_conv1d, name="torch_causal_conv1d", dtypes=FLOATS)
def causal_conv1d(
    x: Tensor,
    state: TorchSequenceState,
    weight: Tensor,
    query_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
) -> tuple[Tensor, TorchSequenceState]:
    kind = torch.promote_types(wide(x).dtype, state.data.dtype)
    out, columns = torch.zeros_like(x), weight.to(kind)[:, None]
    past = _initial(state, slots, fresh, kind)
    begins, reach = query_start.tolist(), past.shape[-1]
    for s in range(slots.numel()):
        begin, end = begins[s], begins[s + 1]
        if begin == end:
            continue
        whole = torch.cat((past[s], x[begin:end].to(kind).T), dim=1)
        y = F.conv1d(whole[None], columns, None if bias is None else bias.to(kind), groups=x.shape[1])[0].T
        out[begin:end] = (y if activation is None else silu(y)).to(x.dtype)
        past[s] = whole[:, whole.shape[1] - reach :]
    _store(state, slots, query_start[1:] > query_start[:-1], past)
    return out, state


@TORCH_KERNELS.register(ops.gated_delta_rule, name="torch_gated_delta_rule", dtypes=FLOATS)
def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    beta: Tensor,
    state: TorchSequenceState,
    query_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
) -> tuple[Tensor, TorchSequenceState]:
    kind = torch.promote_types(wide(q).dtype, state.data.dtype)
    q, k, values, decay, strength = (x.to(kind) for x in (q, k, v, gate, beta))
    out, memory = torch.zeros_like(v), _initial(state, slots, fresh, kind)
    begins, counts = query_start[:-1].long(), (query_start[1:] - query_start[:-1]).long()
    for step in range(int(counts.max()) if counts.numel() else 0):
        alive = torch.nonzero(counts > step).reshape(-1)
        row = begins[alive] + step
        part = memory[alive] * decay[row].exp()[..., None, None]
        column = k[row][..., None]
        missing = values[row] - (column * part).sum(-2)
        part = part + column * (missing * strength[row][..., None])[..., None, :]
        out[row] = (q[row][..., None] * part).sum(-2).to(v.dtype)
        memory[alive] = part
    _store(state, slots, counts > 0, memory)
    return out, state
