"""Import rules of activation functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import ops
from ...ir.graph import Value
from ..call import Call, like, rule, wide


@rule("Relu")
def _relu(c: Call) -> Any:
    return ops.maximum(c.x(0), 0)


@rule("Gelu")
def _gelu(c: Call) -> Any:
    return ops.gelu(c.x(0), approximate=c.choice("approximate", "none", "none", "tanh"))


@rule("Swish")
def _swish(c: Call) -> Any:
    x, alpha = c.x(0), c.attr("alpha", 1.0)
    if alpha == 1.0:
        return ops.silu(x)
    y = wide(x)
    return like(ops.mul(y, ops.sigmoid(ops.mul(y, alpha))), x)


@rule("SwiGLU")
def _swiglu(c: Call) -> Any:
    gate, up, alpha = c.x(0), c.x(1), c.attr("alpha", 1.0)
    if alpha == 1.0:
        return ops.silu_and_mul(gate, up)
    y = wide(gate)
    return like(ops.mul(ops.mul(y, ops.sigmoid(ops.mul(y, alpha))), wide(up)), gate)


def softplus(x: Value) -> Any:
    """log(1 + exp(x)) without overflow."""
    return ops.add(ops.maximum(x, 0.0), ops.log1p(ops.exp(ops.neg(ops.abs(x)))))


def _elu(c: Call, x: Value) -> Any:
    return ops.where(ops.lt(x, 0.0), ops.mul(ops.expm1(x), c.attr("alpha", 1.0)), x)


def _celu(c: Call, x: Value) -> Any:
    alpha = c.attr("alpha", 1.0)
    low = ops.mul(ops.expm1(ops.div(x, alpha)), alpha)
    return ops.where(ops.lt(x, 0.0), low, x)


def _selu(c: Call, x: Value) -> Any:
    alpha, gamma = c.attr("alpha", 1.67326319217681884765625), c.attr("gamma", 1.05070102214813232421875)
    return ops.mul(ops.where(ops.lt(x, 0.0), ops.mul(ops.expm1(x), alpha), x), gamma)


def _hard_sigmoid(c: Call, x: Value) -> Any:
    line = ops.add(ops.mul(x, c.attr("alpha", 0.2)), c.attr("beta", 0.5))
    return ops.clamp(line, low=0.0, high=1.0)


def _hard_swish(c: Call, x: Value) -> Any:
    return ops.mul(x, ops.clamp(ops.add(ops.div(x, 6.0), 0.5), low=0.0, high=1.0))


def _shrink(c: Call, x: Value) -> Any:
    bias, lambd = c.attr("bias", 0.0), c.attr("lambd", 0.5)
    above = ops.where(ops.lt(lambd, x), ops.sub(x, bias), 0.0)
    return ops.where(ops.lt(x, -lambd), ops.add(x, bias), above)


_FORMULAS: dict[str, Callable[[Call, Value], Any]] = {
    "Celu": _celu,
    "Elu": _elu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": lambda c, x: ops.where(ops.lt(x, 0.0), ops.mul(x, c.attr("alpha", 0.01)), x),
    "Mish": lambda c, x: ops.mul(x, ops.tanh(softplus(x))),
    "Selu": _selu,
    "Softplus": lambda c, x: softplus(x),
    "Softsign": lambda c, x: ops.div(x, ops.add(ops.abs(x), 1.0)),
    "ThresholdedRelu": lambda c, x: ops.where(ops.lt(c.attr("alpha", 1.0), x), x, 0.0),
}


@rule(*_FORMULAS)
def _formula(c: Call) -> Any:
    return like(_FORMULAS[c.op](c, wide(c.x(0))), c.x(0))


@rule("Shrink")
def _shrink_of_any(c: Call) -> Any:
    x = c.x(0)
    if x.dtype.is_float:
        return like(_shrink(c, wide(x)), x)
    from ...ir.dtype import float64

    return like(_shrink(c, like(x, float64)), x)


@rule("PRelu")
def _prelu(c: Call) -> Any:
    x, slope = c.x(0), c.x(1)
    if slope.tensor.rank == 1 and x.tensor.rank > 2 and slope.shape != (1,) and c.version < 7:
        slope = ops.reshape(slope, shape=(*slope.shape, *(1,) * (x.tensor.rank - 2)))
    return ops.where(ops.lt(x, 0), ops.mul(x, slope), x)


@rule("Dropout")
def _dropout(c: Call) -> Any:
    """Inference; training is accepted where it drops nothing."""
    from ...ir.dtype import bool_

    training = bool(c.numbers(2, "training_mode").item()) if c.has(2) else False
    ratio = float(c.numbers(1, "ratio").item()) if training and c.has(1) else 0.5
    if training and ratio != 0.0:
        raise c.refuse("training_mode drops elements at random; only inference is supported")
    x = c.inputs[0]
    return (x, c.full(c.item(0).shape, True, bool_)) if c.wants(1) else x
