"""Import rules of recurrent layers, one step after the other; the number of steps has to be known.

Gates, their order and their formulas are those of ONNX's RNN, GRU and LSTM (opset 22).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ... import ops
from ...ir.dim import Dim
from ...ir.dtype import int64
from ...ir.graph import Value
from ..call import Call, like, rule, wide
from .activation import softplus
from .movement import flipped

Activation = Callable[[Value], Any]
STEPS = 2048
"""Longer sequences are not unrolled."""


def _activation(c: Call, name: str, alpha: float | None, beta: float | None) -> Activation:
    """An activation by its ONNX name."""
    known: dict[str, Activation] = {
        "tanh": ops.tanh,
        "sigmoid": ops.sigmoid,
        "relu": lambda x: ops.maximum(x, 0.0),
        "softplus": softplus,
        "softsign": lambda x: ops.div(x, ops.add(ops.abs(x), 1.0)),
        "affine": lambda x: ops.add(ops.mul(x, 1.0 if alpha is None else alpha), 0.0 if beta is None else beta),
        "leakyrelu": lambda x: ops.where(ops.lt(x, 0.0), ops.mul(x, 0.01 if alpha is None else alpha), x),
        "elu": lambda x: ops.where(ops.lt(x, 0.0), ops.mul(ops.expm1(x), 1.0 if alpha is None else alpha), x),
    }
    if name.lower() not in known:
        raise c.refuse(f"activation {name!r} is not supported; supported: {', '.join(known)}")
    return known[name.lower()]


@dataclass(frozen=True)
class Layer:
    """One direction: its inputs x [steps, batch, width], weights [gates * hidden, ...], and activations."""

    call: Call
    x: Value
    weight: Value
    recurrence: Value
    bias: Value | None
    recurrent_bias: Value | None
    peepholes: Sequence[Value]
    activations: Sequence[Activation]
    gates: int
    hidden: int

    def split(self, x: Value) -> list[Value]:
        """The parts of a row [batch, gates * hidden], or of a vector."""
        made: Any = ops.split(x, sizes=(self.hidden,) * self.gates, axis=-1)
        return list(made) if isinstance(made, tuple) else [made]

    def activated(self, index: int, x: Value) -> Value:
        """A gate, its argument clipped if the node says so."""
        limit = self.call.attr("clip")
        made: Value = self.activations[index](x if limit is None else ops.clamp(x, low=-limit, high=limit))
        return made

    def projected(self, t: int) -> Value:
        """The input of a step times its weight, with its bias."""
        row = ops.reshape(ops.slice(self.x, axis=0, start=t, stop=t + 1), shape=self.x.shape[1:])
        y = ops.matmul(row, ops.permute(self.weight, axes=(1, 0)))
        made: Value = y if self.bias is None else ops.add(y, self.bias)
        return made

    def recurred(self, h: Value) -> Value:
        y = ops.matmul(h, ops.permute(self.recurrence, axes=(1, 0)))
        made: Value = y if self.recurrent_bias is None else ops.add(y, self.recurrent_bias)
        return made


def _rnn(layer: Layer, t: int, h: Value, c: Value | None) -> tuple[Value, Value | None]:
    return layer.activated(0, ops.add(layer.projected(t), layer.recurred(h))), None


def _gru(layer: Layer, t: int, h: Value, c: Value | None) -> tuple[Value, Value | None]:
    """z and r, then the candidate; with linear_before_reset r multiplies what h contributes to it."""
    xz, xr, xh = layer.split(layer.projected(t))
    hz, hr, hh = layer.split(layer.recurred(h))
    z, r = layer.activated(0, ops.add(xz, hz)), layer.activated(0, ops.add(xr, hr))
    if layer.call.attr("linear_before_reset", 0):
        candidate = layer.activated(1, ops.add(xh, ops.mul(r, hh)))
    else:
        _, _, inner = layer.split(layer.recurred(ops.mul(r, h)))
        candidate = layer.activated(1, ops.add(xh, inner))
    return ops.add(ops.mul(ops.sub(1.0, z), candidate), ops.mul(z, h)), None


def _lstm(layer: Layer, t: int, h: Value, c: Value | None) -> tuple[Value, Value | None]:
    assert c is not None
    memory: Value = c
    i, o, f, g = layer.split(ops.add(layer.projected(t), layer.recurred(h)))
    peep = list(layer.peepholes)
    if peep:
        i, f = ops.add(i, ops.mul(peep[0], memory)), ops.add(f, ops.mul(peep[2], memory))
    i = layer.activated(0, i)
    f = ops.sub(1.0, i) if layer.call.attr("input_forget", 0) else layer.activated(0, f)
    memory = ops.add(ops.mul(f, memory), ops.mul(i, layer.activated(1, g)))
    if peep:
        o = ops.add(o, ops.mul(peep[1], memory))
    return ops.mul(layer.activated(0, o), layer.activated(2, memory)), memory


_CELLS: dict[str, tuple[Callable[..., tuple[Value, Value | None]], int, tuple[str, ...]]] = {
    "RNN": (_rnn, 1, ("Tanh",)),
    "GRU": (_gru, 3, ("Sigmoid", "Tanh")),
    "LSTM": (_lstm, 4, ("Sigmoid", "Tanh", "Tanh")),
}


def _part(x: Value, index: int) -> Value:
    """One of several directions."""
    made: Value = ops.reshape(ops.slice(x, axis=0, start=index, stop=index + 1), shape=x.shape[1:])
    return made


def _pieces(c: Call, index: int, direction: int, size: int, count: int) -> list[Value]:
    """An optional vector of a direction, in so many parts; none if it is not given."""
    if not c.has(index):
        return []
    made: Any = ops.split(_part(wide(c.x(index)), direction), sizes=(size,) * count, axis=0)
    return list(made)


def _activations(c: Call, names: Sequence[str], directions: int) -> list[list[Activation]]:
    given = c.attr("activations") or list(names) * directions
    alphas, betas = list(c.attr("activation_alpha") or []), list(c.attr("activation_beta") or [])
    made = [
        _activation(c, name, alphas[i] if i < len(alphas) else None, betas[i] if i < len(betas) else None)
        for i, name in enumerate(given)
    ]
    return [made[d * len(names) : (d + 1) * len(names)] for d in range(directions)]


def _walked(
    layer: Layer, cell: Any, h: Value, c: Value | None, lengths: Value | None
) -> tuple[Value, Value, Value | None]:
    """All steps: every h [steps, batch, hidden], the last h and c. Beyond its length a row stays, and gives 0."""
    rows: list[Value] = []
    steps = layer.x.shape[0]
    assert isinstance(steps, int)
    for t in range(steps):
        new_h, new_c = cell(layer, t, h, c)
        out = new_h
        if lengths is not None:
            going = ops.lt(layer.call.scalar(t, int64), lengths)
            out = ops.where(going, new_h, 0.0)
            new_h = ops.where(going, new_h, h)
            new_c = new_c if new_c is None or c is None else ops.where(going, new_c, c)
        h, c = new_h, new_c
        rows.append(ops.reshape(out, shape=(1, *out.shape)))
    return ops.concat(*rows, axis=0) if len(rows) > 1 else rows[0], h, c


@rule(*_CELLS)
def _recurrent(c: Call) -> Any:
    cell, gates, names = _CELLS[c.op]
    given = c.x(0)
    batch_first = bool(c.attr("layout", 0))
    x = ops.permute(wide(given), axes=(1, 0, 2)) if batch_first else wide(given)
    steps, batch, _ = x.shape
    if not isinstance(steps, int) or not 0 < steps <= STEPS:
        raise c.refuse(f"the sequence is {steps} long; a known length from 1 to {STEPS} is supported")
    direction = c.choice("direction", "forward", "forward", "reverse", "bidirectional")
    directions = 2 if direction == "bidirectional" else 1
    weight, recurrence = wide(c.x(1)), wide(c.x(2))
    hidden = int(recurrence.shape[-1])  # type: ignore[arg-type]
    lengths = ops.reshape(like(c.x(4), int64), shape=(batch, 1)) if c.has(4) else None
    if lengths is not None and direction != "forward":
        raise c.refuse("input 4 (sequence_lens) is supported in direction 'forward' only")
    activations = _activations(c, names, directions)
    outs: list[tuple[Value, Value, Value | None]] = []
    for d in range(directions):
        backwards = direction == "reverse" or d == 1
        biases: list[Value] | list[None] = _pieces(c, 3, d, gates * hidden, 2) or [None, None]
        peepholes = _pieces(c, 7, d, hidden, 3) if c.op == "LSTM" else []
        layer = Layer(
            c,
            flipped(c, x, 0) if backwards else x,
            _part(weight, d),
            _part(recurrence, d),
            biases[0],
            biases[1],
            peepholes=peepholes,
            activations=activations[d],
            gates=gates,
            hidden=hidden,
        )
        start = [_state(c, i, d, (batch, hidden), x, batch_first) for i in ((5, 6) if c.op == "LSTM" else (5,))]
        every, h, memory = _walked(layer, cell, start[0], start[1] if len(start) > 1 else None, lengths)
        outs.append((flipped(c, every, 0) if backwards else every, h, memory))
    return _collected(c, given, outs, batch_first)


def _state(c: Call, index: int, direction: int, shape: tuple[Dim, ...], like_x: Value, batch_first: bool) -> Value:
    """The initial state of a direction, zeros where none is given."""
    if not c.has(index):
        return c.full(shape, 0.0, like_x.dtype)
    state = wide(c.x(index))
    return _part(ops.permute(state, axes=(1, 0, 2)) if batch_first else state, direction)


def _collected(c: Call, given: Value, outs: list[tuple[Value, Value, Value | None]], batch_first: bool) -> Any:
    """Y [steps, directions, batch, hidden], Y_h and Y_c [directions, batch, hidden], or all with the batch first."""
    every = [ops.reshape(y, shape=(y.shape[0], 1, *y.shape[1:])) for y, _, _ in outs]
    y = ops.concat(*every, axis=1) if len(every) > 1 else every[0]
    lasts = []
    for k in (1, 2):
        parts = [out[k] for out in outs]
        if parts[0] is not None:
            rows = [ops.reshape(p, shape=(1, *p.shape)) for p in parts if p is not None]
            lasts.append(ops.concat(*rows, axis=0) if len(rows) > 1 else rows[0])
    if batch_first:
        y, lasts = ops.permute(y, axes=(2, 0, 1, 3)), [ops.permute(v, axes=(1, 0, 2)) for v in lasts]
    return tuple(like(v, given) for v in (y, *lasts))
