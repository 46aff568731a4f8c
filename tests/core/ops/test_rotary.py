"""Rotary embedding as a rotation of complex numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, TensorType, sym
from xinheng.core.ir.dtype import float16, float32

RNG = np.random.default_rng(2)


def rotate(x: Any, angles: Any, interleaved: bool) -> Any:
    """Each pair of each head by itself."""
    out = x.copy()
    half = angles.shape[1]
    for t, h, i in np.ndindex(x.shape[0], x.shape[1], half):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        turned = (x[t, h, first] + 1j * x[t, h, second]) * np.exp(1j * angles[t, i])
        out[t, h, first], out[t, h, second] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("width", "half"), [(8, 4), (10, 3), (2, 1), (6, 0)])
def test_pairs_are_rotated_and_the_rest_stays(width: int, half: int, interleaved: bool) -> None:
    x, angles = RNG.normal(size=(5, 3, width)), RNG.uniform(-9, 9, (5, half))
    out = ops.rotary_embedding.reference(x, np.cos(angles), np.sin(angles), interleaved=interleaved)
    np.testing.assert_allclose(out, rotate(x, angles, interleaved), rtol=1e-13, atol=1e-14)
    np.testing.assert_array_equal(out[..., 2 * half :], x[..., 2 * half :])


def test_logits_depend_on_distances_only() -> None:
    q, k = RNG.normal(size=(1, 1, 8)), RNG.normal(size=(1, 1, 8))
    frequency = 10000.0 ** (-np.arange(4) / 4)

    def at(x: Any, position: int) -> Any:
        angles = position * frequency[None]
        return ops.rotary_embedding.reference(x, np.cos(angles), np.sin(angles))[0, 0]

    np.testing.assert_allclose(at(q, 7) @ at(k, 3), at(q, 107) @ at(k, 103), rtol=1e-10)


@pytest.mark.parametrize(
    ("x", "cos", "sin", "message"),
    [
        (TensorType(float32, (3, 8)), (3, 4), (3, 4), r"x must be \[tokens, heads, width\]"),
        (TensorType(float32, (3, 2, 8)), (3, 4), (3, 3), "cos and sin must be equal float32 matrices"),
        (TensorType(float32, (3, 2, 8)), (4, 4), (4, 4), "do not have the rows of"),
        (TensorType(float32, (3, 2, 8)), (3, 5), (3, 5), "are wider than"),
        (TensorType(float32, (3, 2, sym("d"))), (3, 4), (3, 4), "are wider than"),
    ],
)
def test_wrong_types(x: TensorType, cos: tuple[int, ...], sin: tuple[int, ...], message: str) -> None:
    b = Builder()
    tables = [b.input(name, TensorType(float32, shape)) for name, shape in (("cos", cos), ("sin", sin))]
    with pytest.raises(GraphError, match=message):
        ops.rotary_embedding(b.input("x", x), *tables)


def test_tables_are_float32() -> None:
    b = Builder()
    x = b.input("x", TensorType(float16, (3, 2, 8)))
    table = b.input("table", TensorType(float16, (3, 4)))
    with pytest.raises(GraphError, match="must be equal float32 matrices, not float16"):
        ops.rotary_embedding(x, table, table)
