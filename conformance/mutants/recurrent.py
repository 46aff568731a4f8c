"""Mutants of ops with a memory per sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import float16, float32
from xinheng.core.ir.numeric import sigmoid
from xinheng.core.ops import OPSET

from ..call import Call
from ..selftests.simulated import rebuilt
from .mutant import faulty, given, having, operand, saying
from .norms import low

BOTH = "causal_conv1d gated_delta_rule"
_conv, _rule = OPSET["causal_conv1d"].reference, OPSET["gated_delta_rule"].reference


def _opposite(call: Call) -> Call:
    return having(call, fresh=~np.asarray(operand(call, "fresh")))


def _none_fresh(call: Call) -> Call:
    return having(call, fresh=np.zeros_like(np.asarray(operand(call, "fresh"))))


def _last_slot(call: Call) -> Call:
    slots = np.asarray(operand(call, "slots"))
    return having(call, slots=np.where(slots < 0, operand(call, "state")[0].shape[0] - 1, slots))


def _next_slot(call: Call) -> Call:
    slots = np.asarray(operand(call, "slots"))
    return having(call, slots=np.where(slots < 0, slots, (slots + 1) % operand(call, "state")[0].shape[0]))


given(BOTH, "fresh ignored", "starts new sequences from what the last owner of the slot left", _none_fresh)
given(BOTH, "fresh inverted", "starts old sequences anew and new ones from a slot", _opposite)
given(BOTH, "slot -1", "counts slot -1 from the end", _last_slot)
given(BOTH, "next slot", "counts slots from one", _next_slot)


def _not_stored(state: Any, slots: Any, kept: Any) -> Any:
    return type(state)(state.data)


def _first_only(state: Any, slots: Any, kept: Any) -> Any:
    return _rule.__globals__["_stored"](state, slots[:1], kept[:1])


def _stored_with(fault: str) -> Any:
    return _not_stored if fault == "state not stored" else _first_only


for _op, _reference in (("causal_conv1d", _conv), ("gated_delta_rule", _rule)):
    faulty(
        _op,
        lambda *operands, fault, reference=_reference, **how: rebuilt(reference, _stored=_stored_with(fault))(
            *operands, **how
        ),
        {
            "state not stored": "never writes the state back",
            "first sequence only": "writes the state of the first sequence only",
        },
    )


# --------------------------------------------------------------------------------------------------------- convolution
def _windowed(
    x: Any, state: Any, weight: Any, query_start: Any, slots: Any, fresh: Any, bias: Any = None,
    *, activation: str | None = None, fault: str,
) -> Any:  # fmt: skip
    if fault == "weight flipped":
        return _conv(x, state, np.flip(weight, axis=1), query_start, slots, fresh, bias, activation=activation)
    if fault == "bias ignored":
        return _conv(x, state, weight, query_start, slots, fresh, None, activation=activation)
    if fault == "newest first":
        turned = type(state)(np.flip(state.data, axis=-1))
        y, after = _conv(x, turned, weight, query_start, slots, fresh, bias, activation=activation)
        return y, type(state)(np.flip(after.data, axis=-1))
    if fault == "activation stored":
        y, after = _conv(x * sigmoid(x), state, weight, query_start, slots, fresh, bias, activation=None)
        return y, after
    y, after = _conv(x, state, weight, query_start, slots, fresh, bias, activation=activation)
    return _conv(x, state, weight, query_start, slots, fresh, bias, activation=None)[0], after


faulty(
    "causal_conv1d",
    _windowed,
    {
        "weight flipped": "meets the newest input with the first column",
        "bias ignored": "never adds the bias",
        "newest first": "keeps the newest input first",
        "activation stored": "activates inputs instead of outputs",
        "activation ignored": "never activates",
    },
)


# ----------------------------------------------------------------------------------------------------------- delta rule
def _step(memory: Any, q: Any, k: Any, v: Any, gate: Any, beta: Any, fault: str) -> tuple[Any, Any]:
    """One token: the memory after it, and its output."""
    column, value = np.expand_dims(k, -1), np.expand_dims(v, -2)
    decay = np.reshape(gate if fault == "gate not exponential" else np.exp(gate), (-1, 1, 1))
    before = memory
    memory = memory if fault in ("decay last", "decay ignored") else memory * decay
    missing = value - np.matmul(np.swapaxes(column, -1, -2), before if fault == "decay after reading" else memory)
    missing = value if fault == "no delta" else missing
    missing = missing if fault == "beta ignored" else missing * np.reshape(beta, (-1, 1, 1))
    memory = memory + column * missing
    memory = memory * decay if fault == "decay last" else memory
    memory = low(memory) if fault == "memory in bf16" else memory
    read = before if fault == "output before" else memory
    return memory, np.matmul(np.expand_dims(q, -2), read)


def _delta(
    q: Any, k: Any, v: Any, gate: Any, beta: Any, state: Any, query_start: Any, slots: Any, fresh: Any, *, fault: str
) -> Any:
    parts = _rule.__globals__
    outputs, places, kept = [], [], []
    for s in range(slots.shape[0]):
        begin, end = int(query_start[s]), int(query_start[s + 1])
        if begin == end:
            continue
        memory = np.asarray(parts["_initial"](state, int(slots[s]), bool(fresh[s])), np.float32).view(type(q))
        for t in range(begin, end):
            memory, out = _step(memory, q[t], k[t], v[t], gate[t], beta[t], fault)
            outputs.append(np.reshape(out, (1, *v.shape[1:])))
        places.append(int(slots[s]))
        kept.append(memory)
    return parts["_behind"](outputs, v.shape[0], v.shape[1:]), parts["_stored"](state, places, kept)


faulty(
    "gated_delta_rule",
    _delta,
    {
        "decay ignored": "never decays",
        "decay last": "decays after the update",
        "decay after reading": "reads the memory before it decays",
        "gate not exponential": "takes the logarithm of the decay for the decay",
        "no delta": "does not subtract what the memory knows already",
        "beta ignored": "updates in full",
        "output before": "reads the output from the memory before the update",
        "memory in bf16": "keeps the memory in bfloat16 between tokens",
    },
    only={"memory in bf16": (float32, float16)},
)
given(
    "causal_conv1d",
    "other activation",
    "activates where it should not, or the other way round",
    lambda call: _other(call),
)


def _other(call: Call) -> Call:
    return saying(call, activation=None if call.attributes.get("activation") else "silu")
