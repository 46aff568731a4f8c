"""The words that numpy lacks and op references need.

A reference is plain functional numpy plus these words, so that it runs unchanged on float64 arrays (the meaning), on
narrower arrays (a simulated kernel) and on operands that carry error bounds. An operand class takes part by defining
`__word__(word, *args, **kwargs)`; arrays take the functions below.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .dtype import DType, round_to

_ERF = np.frompyfunc(math.erf, 1, 1)


def _word(word: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    handler = getattr(type(x), "__word__", None)
    return NotImplemented if handler is None else handler(x, word, *args, **kwargs)


def erf(x: Any) -> Any:
    """Error function, elementwise."""
    y = _word("erf", x)
    return np.asarray(_ERF(x), np.asarray(x).dtype) if y is NotImplemented else y


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), elementwise, without overflow on either side."""
    y = _word("sigmoid", x)
    if y is not NotImplemented:
        return y
    z = np.exp(-np.abs(x))
    return np.where(np.asarray(x) >= 0, 1 / (1 + z), z / (1 + z))


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x), elementwise; infinity at zero."""
    y = _word("rsqrt", x)
    if y is not NotImplemented:
        return y
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 / np.sqrt(x)


def store(x: Any, dtype: DType | None, known: bool = True) -> Any:
    """Keep an intermediate in `dtype`: one rounding, or none for `None`.

    `known=False` says that what is stored is known only up to a factor (a running maximum), so an error analysis has to
    bound its rounding instead of evaluating it.
    """
    if dtype is None or not dtype.is_float:
        return x
    y = _word("store", x, dtype, known=known)
    return np.asarray(round_to(x, dtype), np.asarray(x).dtype) if y is NotImplemented else y


def point(x: Any, name: str, known: bool = True) -> Any:
    """A rounding point: an intermediate that a kernel may keep in the dtype of its operands, or wider.

    Which of its points a kernel rounds at is its program; conformance has a list of programs by op. `known` as in
    `store`.
    """
    y = _word("point", x, name, known=known)
    return x if y is NotImplemented else y


def shift(m: Any) -> Any:
    """A shift that cancels exactly, such as the maximum in softmax: any nearby value will do, its error is dropped."""
    y = _word("shift", m)
    return m if y is NotImplemented else y
