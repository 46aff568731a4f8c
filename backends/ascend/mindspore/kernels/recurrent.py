"""Ops with a memory per sequence; the bounds of sequences and their slots are read on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops as msops
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.ir.dtype import int32

from ..handles import MindSporeSequenceState
from ..tensors import DTYPES, converted, to_tensor
from .elementwise import silu_double
from .movement import piece, zeros
from .registry import FLOATS, MINDSPORE_KERNELS, double, narrow

_HOST = ("query_start", "slots", "fresh")


def _sequences(query_start: NDArray[Any], slots: NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """Sequence, first row and end of those that have rows."""
    for s in range(slots.shape[0]):
        begin, end = int(query_start[s]), int(query_start[s + 1])
        if begin < end:
            yield s, begin, end


def _initial(state: MindSporeSequenceState, slot: int, fresh: bool) -> Any:
    """What a sequence starts from, in float64."""
    if fresh or slot < 0:
        return msops.zeros(state.data.shape[1:], ms.float64)
    return double(msops.gather(state.data, to_tensor(np.array([slot]), int32), 0)).reshape(state.data.shape[1:])


def _store(state: MindSporeSequenceState, slot: int, memory: Any) -> None:
    """Keep a memory, rounded once to the dtype of the state."""
    if slot >= 0 and memory.size:
        kept = converted(converted(memory, DTYPES[state.kind]), state.data.dtype)
        msops.scatter_nd_update(state.data, to_tensor(np.array([[slot]]), int32), kept.expand_dims(0))


def _stacked(outputs: list[Any], like: Any) -> Any:
    """Outputs of sequences under each other, in the dtype and with the rows of `like`, zeros behind them."""
    made = [narrow(out, like) for out in outputs]
    rest = like.shape[0] - sum(out.shape[0] for out in made)
    if rest or not made:
        made.append(zeros((rest, *like.shape[1:]), like))
    return made[0] if len(made) == 1 else msops.cat(tuple(made), 0)


@MINDSPORE_KERNELS.register(ops.causal_conv1d, name="mindspore_causal_conv1d", dtypes=FLOATS, host=_HOST)
def causal_conv1d(
    x: Any,
    state: MindSporeSequenceState,
    weight: Any,
    query_start: NDArray[Any],
    slots: NDArray[Any],
    fresh: NDArray[Any],
    bias: Any = None,
    *,
    activation: str | None = None,
) -> tuple[Any, MindSporeSequenceState]:
    columns, outputs, width = double(weight), [], weight.shape[1]
    for s, begin, end in _sequences(query_start, slots):
        past = msops.transpose(_initial(state, int(slots[s]), bool(fresh[s])), (1, 0)) if width > 1 else None
        rows = double(piece(x, 0, begin, end))
        whole = rows if past is None else msops.cat((past, rows), 0)
        y = piece(whole, 0, 0, end - begin) * columns[:, 0]
        for j in range(1, width):
            y = y + piece(whole, 0, j, j + end - begin) * columns[:, j]
        y = y if bias is None else y + double(bias)
        outputs.append(y if activation is None else silu_double(y))
        if past is not None:
            last = piece(whole, 0, end - begin, end - begin + width - 1)
            _store(state, int(slots[s]), msops.transpose(last, (1, 0)))
    return _stacked(outputs, x), state


@MINDSPORE_KERNELS.register(ops.gated_delta_rule, name="mindspore_gated_delta_rule", dtypes=FLOATS, host=_HOST)
def gated_delta_rule(
    q: Any,
    k: Any,
    v: Any,
    gate: Any,
    beta: Any,
    state: MindSporeSequenceState,
    query_start: NDArray[Any],
    slots: NDArray[Any],
    fresh: NDArray[Any],
) -> tuple[Any, MindSporeSequenceState]:
    queries, keys, values, strength = (double(part) for part in (q, k, v, beta))
    decay, outputs = msops.exp(double(gate)), []
    for s, begin, end in _sequences(query_start, slots):
        memory = _initial(state, int(slots[s]), bool(fresh[s]))
        for t in range(begin, end):
            column = keys[t].expand_dims(-1)
            memory = memory * decay[t].reshape((-1, 1, 1))
            missing = values[t] - (column * memory).sum(-2)
            memory = memory + column * (missing * strength[t].expand_dims(-1)).expand_dims(-2)
            outputs.append((queries[t].expand_dims(-1) * memory).sum(-2).expand_dims(0))
        _store(state, int(slots[s]), memory)
    return _stacked(outputs, v), state
