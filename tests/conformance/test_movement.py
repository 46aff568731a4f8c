"""Moves, masks and the array interface: values as numpy gives them, errors moved alike, anything unknown refused."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Bounded, MissingRule, Rules, operand
from xinheng.core.errors import GraphError, XinhengError
from xinheng.core.ir import numeric
from xinheng.core.ir.dtype import bfloat16, float16, float32, int32

Program = Callable[[Any], Any]

V = np.arange(24.0).reshape(2, 3, 4) - 7
E = V**2 / 64
MOVES: dict[str, Program] = {
    "index": lambda x: x[1, ..., ::2],
    "new axis": lambda x: x[:, None],
    "gather": lambda x: x[:, np.array([2, 0])],
    "mask": lambda x: x[V > 0],
    "T": lambda x: x.T,
    "x.reshape": lambda x: x.reshape(6, 4),
    "x.transpose": lambda x: x.transpose(2, 0, 1),
    "x.swapaxes": lambda x: x.swapaxes(0, 1),
    "reshape": lambda x: np.reshape(x, (4, -1)),
    "transpose": lambda x: np.transpose(x, (1, 0, 2)),
    "swapaxes": lambda x: np.swapaxes(x, -1, -2),
    "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "expand_dims": lambda x: np.expand_dims(x, 1),
    "squeeze": lambda x: np.squeeze(x[:1], axis=0),
    "ravel": lambda x: np.ravel(x),
    "repeat": lambda x: np.repeat(x, 2, axis=1),
    "tile": lambda x: np.tile(x, (2, 1, 1)),
    "broadcast_to": lambda x: np.broadcast_to(x, (5, 2, 3, 4)),
    "flip": lambda x: np.flip(x, axis=-1),
    "roll": lambda x: np.roll(x, 1, axis=0),
    "take": lambda x: np.take(x, np.array([1, 1, 0]), axis=0),
    "take_along_axis": lambda x: np.take_along_axis(x, np.argsort(-V, axis=-1), axis=-1),
    "split": lambda x: np.split(x, 2, axis=-1)[1],
    "array_split": lambda x: np.array_split(x, 3, axis=-1)[0],
    "concatenate": lambda x: np.concatenate([x, x[:, :1]], axis=1),
    "stack": lambda x: np.stack([x, x], axis=-1),
    "where": lambda x: np.where(V > 0, x, x[:, :1]),
    "copy": lambda x: np.copy(x),
    "tril": lambda x: np.tril(x),
    "rows": lambda x: list(x)[1],
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_take_the_error_along(name: str) -> None:
    rules = Rules(lam=3)
    moved = MOVES[name](Bounded(V, E, rules))
    assert isinstance(moved, Bounded)
    assert moved.rules is rules
    assert np.array_equal(moved.v, MOVES[name](V))
    assert np.array_equal(moved.e, MOVES[name](E))


VALUES: dict[str, Program] = {
    "sum": lambda x: np.sum(x, axis=(0, 2), keepdims=True),
    "sum of all": lambda x: np.sum(x),
    "mean": lambda x: np.mean(x, axis=-1),
    "var": lambda x: np.var(x, axis=-1, keepdims=True),
    "cumsum": lambda x: np.cumsum(x, axis=1),
    "cumsum of all": lambda x: np.cumsum(x),
    "max": lambda x: np.max(x, axis=-1, keepdims=True),
    "amax": lambda x: np.amax(x, axis=0),
    "amin": lambda x: np.amin(x, axis=1),
    "min": lambda x: np.min(x, axis=0, initial=-3.0),
    "max of none": lambda x: np.max(x[:, :0], axis=1, initial=-np.inf),
    "clip": lambda x: np.clip(x, -2, 5.5),
    "clip above": lambda x: np.clip(x, None, 0.0),
    "maximum": lambda x: np.maximum(x, 0),
    "minimum": lambda x: np.minimum(1.5, x),
    "matmul": lambda x: x @ np.swapaxes(x, -1, -2),
    "matrix by vector": lambda x: x @ x[0, 0],
    "zeros_like": lambda x: np.zeros_like(x),
    "ones_like": lambda x: np.ones_like(x) + x,
    "full_like": lambda x: np.full_like(x, 0.5),
    "reflected": lambda x: 1 - 2.0 / (x + 0.25),
    "abs": lambda x: abs(-x) + +x,
    "joined with plain": lambda x: np.concatenate([np.zeros((2, 1, 4)), x], axis=1),
    "chosen from plain": lambda x: np.where(V > 0, x, -np.inf),
    "reciprocal": lambda x: np.reciprocal(x + 0.5),
    "power": lambda x: np.abs(x + 0.5) ** 1.5,
    "square": lambda x: np.square(x) + x**2 + x**3,
    "erf": lambda x: numeric.erf(x),
    "sigmoid": lambda x: numeric.sigmoid(x),
    "rsqrt": lambda x: numeric.rsqrt(np.abs(x) + 1),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_of_numpy(name: str) -> None:
    out, want = VALUES[name](Bounded(V)), VALUES[name](V)
    assert out.shape == np.shape(want)
    assert out.e.shape == out.v.shape
    np.testing.assert_allclose(out.v, want, rtol=1e-14, atol=0)
    assert (out.e <= 1e-4 * (1 + np.abs(np.nan_to_num(out.v, posinf=0, neginf=0)))).all()


PLAIN: dict[str, Program] = {
    "greater": lambda x: x > 0,
    "less": lambda x: np.float64(1) < x,
    "equal": lambda x: x == 2,
    "different": lambda x: x != x[0],
    "within": lambda x: np.logical_and(x >= -1, x <= 3),
    "finite": lambda x: np.isfinite(x) & ~np.isnan(x),
    "not": lambda x: np.logical_not(x),
    "argmax": lambda x: np.argmax(x, axis=-1),
    "argsort": lambda x: np.argsort(-x, axis=-1, kind="stable"),
    "shape": lambda x: np.shape(x),
    "ndim": lambda x: (np.ndim(x), np.size(x), len(x), x.ndim, x.size, x.shape, x.dtype),
    "mask of its shape": lambda x: np.ones_like(x, dtype=bool),
}


@pytest.mark.parametrize("name", PLAIN)
def test_comparisons_and_selection_are_plain(name: str) -> None:
    out = PLAIN[name](Bounded(V, 100.0))
    assert not isinstance(out, Bounded)
    assert out == PLAIN[name](V) if isinstance(out, tuple) else np.array_equal(out, PLAIN[name](V))


REFUSED: dict[str, Program] = {
    "unknown ufunc": lambda x: np.spacing(x),
    "unknown function": lambda x: np.median(x),
    "einsum": lambda x: np.einsum("abc->acb", x),
    "reduce": lambda x: np.add.reduce(x),
    "outer": lambda x: np.multiply.outer(x, x),
    "out": lambda x: np.add(x, x, out=np.zeros(V.shape)),
    "where keyword": lambda x: np.exp(x, where=V > 0),
    "in place": lambda x: x.__iadd__(1),
    "write": lambda x: operator.setitem(x, 0, 1.0),
    "as array": lambda x: np.asarray(x),
    "list": lambda x: np.array([x, x]),
    "truth": lambda x: bool(x),
    "float": lambda x: float(x),
    "none": lambda x: x + None,
    "text": lambda x: x * "2",
    "complex": lambda x: x * 1j,
    "objects": lambda x: x + np.array([None, 1], object)[0:1],
    "bounded index": lambda x: V[x],
    "bounded gather": lambda x: x[x],
    "bounded mask": lambda x: np.where(x, x, 0.0),
    "where of one": lambda x: np.where(x),
    "bounded take": lambda x: np.take(V, x),
    "unknown word": lambda x: x.__word__("gamma"),
    "sum with dtype": lambda x: np.sum(x, dtype=np.float32),
    "out of clip": lambda x: np.clip(x, 0, 1, out=x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused(name: str) -> None:
    with pytest.raises((TypeError, IndexError)):
        REFUSED[name](Bounded(V))


def test_a_missing_rule_says_what_and_where() -> None:
    with pytest.raises(MissingRule, match=r"numpy\.spacing.*conformance/bounds\.py|numpy\.spacing.*rewrite"):
        np.spacing(Bounded(V))
    assert issubclass(MissingRule, XinhengError)


def test_zero_stride_errors_stay_correct_in_matmul() -> None:
    a, b = Bounded(np.ones((4, 6)), 0.5), Bounded(np.ones((6, 3)), np.full((6, 3), 0.25))
    assert a.e.strides == (0, 0)
    out = a @ b
    assert np.allclose(out.e, 6 * (0.5 + 0.25 + 0.125), rtol=1e-5)


def test_operands_must_be_what_the_device_gets() -> None:
    x = np.array([0.1, 1.0], np.float16)
    exact = operand(x, float16)
    assert isinstance(exact, Bounded)
    assert not exact.e.any()
    assert operand(np.array([np.nan, np.inf, -0.0]), bfloat16).shape == (3,)
    with pytest.raises(GraphError, match=r"0\.1.*not representable in float16"):
        operand(np.array([1.0, 0.1]), float16)
    indices = operand(np.array([1, 0], np.int32), int32)
    assert isinstance(indices, np.ndarray)
    assert np.array_equal(V[indices], V[[1, 0]])


def test_a_flushing_device_may_read_subnormals_as_zero() -> None:
    x = np.array([2.0**-130, 1.0])
    flushed = operand(x, float32, Rules(flush=True))
    assert isinstance(flushed, Bounded)
    assert flushed.e.tolist() == [2.0**-130, 0.0]
    assert not operand(x, float32, Rules()).e.any()  # type: ignore[union-attr]
