"""Ops with a fixed-size memory per sequence: short convolutions and linear attention of hybrid models."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import numeric
from ..ir.dim import require_equal
from ..ir.dtype import bool_, float32
from ..ir.op import State, Tensor, Tolerance, op, require
from ..ir.types import StateType, TensorType
from .movement import integer
from .states import SequenceSlots


def _initial(state: Any, slot: int, fresh: bool) -> Any:
    """What a sequence starts from: its slot, or zeros."""
    return np.zeros(state.data.shape[1:]) if fresh or slot < 0 else state.data[slot]


def _stored(state: Any, slots: list[int], kept: list[Any]) -> SequenceSlots:
    """The state with new contents in some slots; -1 keeps nothing."""
    if not kept:
        return SequenceSlots(state.data)
    writer = np.full(state.data.shape[0], -1)
    for i, slot in enumerate(slots):
        if slot >= 0:
            writer[slot] = i
    written = np.reshape(writer >= 0, (-1,) + (1,) * (len(state.data.shape) - 1))
    return SequenceSlots(np.where(written, np.take(np.stack(kept), np.maximum(writer, 0), axis=0), state.data))


def _behind(outputs: list[Any], rows: int, shape: tuple[int, ...]) -> Any:
    """Outputs of sequences under each other, with rows of zeros behind them."""
    rest = rows - sum(out.shape[0] for out in outputs)
    parts = [*outputs, np.zeros((rest, *shape))] if rest or not outputs else outputs
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=0)


@op(tolerance=Tolerance.REDUCTION)
def causal_conv1d(
    x: Tensor,
    state: State,
    weight: Tensor,
    query_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
) -> State:
    """A convolution over the last inputs of each channel, which a state carries from step to step.

    y[t, c] = activation(bias[c] + sum over j of weight[c, j] * x[t - width + 1 + j, c]), so that the last column of the
    weight meets the newest input; `activation` is None or "silu". x is [tokens, channels], weight [channels, width] and
    bias [channels] have its dtype. The state is a sequence_state of shape (channels, width - 1): the inputs before the
    next token, oldest first, rounded once to its dtype.

    Rows query_start[s] to query_start[s + 1] belong to sequence s, whose state is in slot slots[s] (int32 [seqs], each
    named once; -1 starts from zeros and keeps nothing). Where fresh[s] (bool [seqs]) it starts from zeros instead. A
    sequence without rows keeps its state, rows beyond the last sequence give 0. Computed in at least float32.
    """
    outputs, places, kept = [], [], []
    for s in range(slots.shape[0]):
        begin, end = int(query_start[s]), int(query_start[s + 1])
        if begin == end:
            continue
        past = np.transpose(_initial(state, int(slots[s]), bool(fresh[s])), (1, 0))
        whole = np.concatenate([past, x[begin:end]], axis=0)
        terms = [whole[j : j + end - begin] * weight[:, j] for j in range(weight.shape[1])]
        y = np.sum(np.stack(terms), axis=0)
        y = y if bias is None else y + bias
        outputs.append(y if activation is None else y * numeric.sigmoid(y))
        places.append(int(slots[s]))
        kept.append(np.transpose(whole[end - begin :], (1, 0)))
    return _behind(outputs, x.shape[0], x.shape[1:]), _stored(state, places, kept)


def _check_sequences(state: StateType, query_start: TensorType, slots: TensorType, fresh: TensorType) -> None:
    require(state.kind == "sequence_state", f"the state must be a sequence_state, not {state}")
    integer(query_start, "query_start", 1)
    integer(slots, "slots", 1)
    require(fresh.dtype is bool_ and fresh.rank == 1, f"fresh must be bool [seqs], not {fresh}")
    require_equal(query_start.shape[0], slots.shape[0] + 1, "query_start must have one more element than slots")
    require_equal(fresh.shape[0], slots.shape[0], "fresh and slots differ in length")


@causal_conv1d.infer
def _(
    x: TensorType,
    state: StateType,
    weight: TensorType,
    query_start: TensorType,
    slots: TensorType,
    fresh: TensorType,
    bias: TensorType | None,
    *,
    activation: str | None,
) -> tuple[TensorType, StateType]:
    _check_sequences(state, query_start, slots, fresh)
    require(x.rank == 2 and x.dtype.is_float, f"x must be float [tokens, channels], not {x}")
    channels = x.shape[1]
    fits = weight.rank == 2 and weight.shape[0] == channels and weight.dtype == x.dtype
    require(fits, f"weight must be {x.dtype} [{channels}, width], not {weight}")
    wanted = (channels, weight.shape[1] - 1)
    require(state["shape"] == wanted, f"the state must have shape {list(wanted)}, not {list(state['shape'])}")
    require(
        bias is None or bias == TensorType(x.dtype, (channels,)), f"bias must be {x.dtype} [{channels}], not {bias}"
    )
    require(activation in (None, "silu"), f"activation must be None or 'silu', not {activation!r}")
    return x, state


@op(tolerance=Tolerance.CONTRACTION)
def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor,
    beta: Tensor,
    state: State,
    query_start: Tensor,
    slots: Tensor,
    fresh: Tensor,
) -> State:
    """Linear attention with decay and the delta rule (Yang et al. 2024, "Gated Delta Networks", equation 10).

    For each token of a sequence, in order, and each head with its state S [k_dim, v_dim]:
    S = exp(gate) S; S = S + k (beta (v - k S)); out = q S. q and k are [tokens, heads, k_dim] and taken as they are
    (normalise and scale them before), v is [tokens, heads, v_dim]; gate, the logarithm of the decay, and beta are
    float32 [tokens, heads]. The result is [tokens, heads, v_dim].

    The state is a sequence_state of shape (heads, k_dim, v_dim), computed in at least float32 within a step and rounded
    once to its dtype at the end of it. query_start, slots and fresh are as in `causal_conv1d`.
    """
    outputs, places, kept = [], [], []
    for s in range(slots.shape[0]):
        begin, end = int(query_start[s]), int(query_start[s + 1])
        if begin == end:
            continue
        memory = _initial(state, int(slots[s]), bool(fresh[s]))
        for t in range(begin, end):
            column, value = np.expand_dims(k[t], -1), np.expand_dims(v[t], -2)
            memory = memory * np.reshape(np.exp(gate[t]), (-1, 1, 1))
            missing = value - np.matmul(np.swapaxes(column, -1, -2), memory)
            memory = memory + column * (missing * np.reshape(beta[t], (-1, 1, 1)))
            outputs.append(np.reshape(np.matmul(np.expand_dims(q[t], -2), memory), (1, *v.shape[1:])))
        places.append(int(slots[s]))
        kept.append(memory)
    return _behind(outputs, v.shape[0], v.shape[1:]), _stored(state, places, kept)


@gated_delta_rule.infer
def _(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    gate: TensorType,
    beta: TensorType,
    state: StateType,
    query_start: TensorType,
    slots: TensorType,
    fresh: TensorType,
) -> tuple[TensorType, StateType]:
    _check_sequences(state, query_start, slots, fresh)
    require(q.rank == k.rank == v.rank == 3, f"q, k and v must have three axes, not {q}, {k}, {v}")
    require(q.dtype == k.dtype == v.dtype and q.dtype.is_float, f"q, k and v differ in dtype: {q}, {k}, {v}")
    heads, width = q.shape[1:]
    require(k.shape[1:] == (heads, width) and v.shape[1] == heads, f"q {q}, k {k} and v {v} have different heads")
    for name, x in (("gate", gate), ("beta", beta)):
        require(
            x.dtype == float32 and x.rank == 2 and x.shape[1] == heads, f"{name} must be float32 [tokens, {heads}]: {x}"
        )
    for x in (k, v, gate, beta):
        require_equal(x.shape[0], q.shape[0], f"{x} and q {q} have different numbers of tokens")
    wanted = (heads, width, v.shape[2])
    require(state["shape"] == wanted, f"the state must have shape {list(wanted)}, not {list(state['shape'])}")
    return v, state
