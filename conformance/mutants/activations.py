"""Mutants of activations and of functions of one number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xinheng.core.ir.dtype import bfloat16, float16, float32, round_to
from xinheng.core.ir.numeric import erf, sigmoid

from .mutant import faulty, given, having, operand, saying, spoiled, wrong
from .norms import low

SINGLE = (float32, float16)
ROUGH = 3e-4
"""The relative error of the approximations that chips have for speed, some 12 bits."""


def _silu(gate: Any, up: Any, *, fault: str) -> Any:
    if fault == "exchanged":
        gate, up = up, gate
    if fault == "not gated":
        return gate * sigmoid(gate)
    if fault == "sigmoid only":
        return sigmoid(gate) * up
    if fault == "sigmoid in bf16":
        return gate * low(sigmoid(gate)) * up
    if fault == "clipped":
        gate = np.minimum(gate, 7.0)
    return gate * sigmoid(gate) * up


_SILU = {
    "exchanged": "takes the gate for the value",
    "not gated": "forgets the value",
    "sigmoid only": "forgets to multiply the sigmoid by its gate",
    "sigmoid in bf16": "keeps the sigmoid in bfloat16",
    "clipped": "clips the gate at 7, as some models want",
}
faulty("silu_and_mul", _silu, _SILU, only={"sigmoid in bf16": SINGLE})


def _form(call: Any) -> Any:
    return saying(call, approximate="none" if call.attributes.get("approximate") == "tanh" else "tanh")


given("gelu gelu_and_mul", "other form", "computes the tanh form for the exact one, or the other way round", _form)
given(
    "gelu_and_mul",
    "exchanged",
    "takes the gate for the value",
    lambda call: having(call, gate=operand(call, "up"), up=operand(call, "gate")),
)


def _quick(x: Any, *, approximate: str = "none") -> Any:
    return x * sigmoid(1.702 * x)


wrong("gelu", "quick", "computes x sigmoid(1.702 x)", _quick)


def _silu_alone(x: Any, *, fault: str) -> Any:
    if fault == "divided":
        return x / (1 + np.exp(-low(x)))
    return np.where(x < -20, np.float32(0), x * sigmoid(x)) if fault == "tail cut" else np.maximum(x, 0.0)


faulty(
    "silu",
    _silu_alone,
    {
        "divided": "computes the exponential of a bfloat16 argument",
        "tail cut": "is zero below -20",
        "relu": "is a ReLU",
    },
    only={"divided": SINGLE},
)


def _sigmoid(x: Any, *, fault: str) -> Any:
    if fault == "hard":
        return np.minimum(np.maximum(x / 6 + 0.5, 0.0), 1.0)
    return np.exp(x) / (1 + np.exp(x))


faulty("sigmoid", _sigmoid, {"hard": "is piecewise linear", "one-sided": "is NaN where exp overflows"})


def _tanh(x: Any, *, fault: str) -> Any:
    if fault == "quotient":
        return (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1)
    return np.minimum(np.maximum(x * (27 + x * x) / (27 + 9 * x * x), -1.0), 1.0)


_TANH = {"quotient": "is a quotient of exponentials that overflow", "rational": "is a rational function of low degree"}
faulty("tanh", _tanh, _TANH)


def _rough(name: str, function: Any) -> None:
    """The function with an error of some 12 bits, as fast instructions have."""
    wrong(name, "rough", "is good to 12 bits only", lambda x: function(x) * np.float32(1 + ROUGH), SINGLE)


for _name, _function in (
    ("exp", np.exp),
    ("log", np.log),
    ("sin", np.sin),
    ("cos", np.cos),
    ("sqrt", np.sqrt),
    ("erf", erf),
    ("atan", np.arctan),
    ("rsqrt", lambda x: 1 / np.sqrt(x)),
    ("reciprocal", lambda x: 1 / x),
):
    _rough(_name, _function)


def _saturating_exp(x: Any) -> Any:
    return np.exp(np.minimum(x, 80.0))


wrong("exp", "clipped", "clips its argument at 80", _saturating_exp, (float32, bfloat16))
wrong("exp", "exp2", "takes powers of two for those of e", np.exp2)
wrong("expm1", "cancelled", "subtracts one from the exponential", lambda x: np.exp(x) - 1)
wrong("log1p", "cancelled", "takes the logarithm of a rounded sum", lambda x: np.log(1 + x))
wrong("log", "log2", "takes logarithms to base two", np.log2)
wrong("rsqrt", "clipped", "adds 1e-6 under the root", lambda x: 1 / np.sqrt(x + 1e-6), (float32,))


def _reduced(x: Any) -> Any:
    """Reduced to one period with a float32 pi times two."""
    turns = np.rint(x / np.float32(2 * math.pi))
    return np.sin(x - turns * np.float32(round_to(2 * math.pi, bfloat16)))


wrong("sin", "reduced roughly", "reduces its argument by a bfloat16 period", _reduced)


def _special(call: Any, made: Any) -> Any:
    x = np.asarray(made[0])
    return (np.where(np.isnan(x), 0.0, x), *made[1:])


spoiled("sqrt log exp tanh silu gelu", "nan hidden", "returns 0 for NaN", _special)
