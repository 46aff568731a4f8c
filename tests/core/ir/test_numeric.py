"""The words that references use besides numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xinheng.core.ir import numeric
from xinheng.core.ir.dtype import bfloat16, int32


def test_erf() -> None:
    x = np.array([[-3.0, 0.0, 0.5]])
    np.testing.assert_array_equal(numeric.erf(x), [[math.erf(-3.0), 0.0, math.erf(0.5)]])
    assert numeric.erf(x.astype(np.float32)).dtype == np.float32
    assert numeric.erf(np.zeros((0, 3))).shape == (0, 3)
    assert float(numeric.erf(0.5)) == math.erf(0.5)


def test_sigmoid_neither_overflows_nor_loses_its_tail() -> None:
    x = np.array([-1000.0, -745.0, -1.0, 0.0, 1.0, 1000.0])
    with np.errstate(all="raise", under="ignore"):
        y = numeric.sigmoid(x)
    np.testing.assert_allclose(y, [0.0, math.exp(-745), 1 / (1 + math.e), 0.5, 1 / (1 + 1 / math.e), 1.0], rtol=1e-15)


def test_rsqrt() -> None:
    np.testing.assert_array_equal(numeric.rsqrt(np.array([4.0, 0.0, -1.0])), [0.5, np.inf, np.nan])


def test_store_rounds_once_and_keeps_the_class_of_the_array() -> None:
    x = np.array([1 + 2.0**-8 + 2.0**-40])
    assert numeric.store(x, bfloat16).tolist() == [1 + 2.0**-7]
    assert numeric.store(x.astype(np.float32), bfloat16).dtype == np.float32
    assert numeric.store(x, None) is x
    assert numeric.store(x, int32) is x
    assert numeric.shift(x) is x


class Operand:
    """An operand class that answers words itself."""

    def __word__(self, word: str, *args: Any, **kwargs: Any) -> Any:
        return (word, args, kwargs)


def test_words_are_delegated() -> None:
    x = Operand()
    for word in ("erf", "sigmoid", "rsqrt", "shift"):
        assert getattr(numeric, word)(x) == (word, (), {})
    assert numeric.store(x, bfloat16, known=False) == ("store", (bfloat16,), {"known": False})
    assert numeric.store(x, None) is x
