"""Seeded bugs are rejected: each on every seed of at least one kind of data, in each format named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Rules, operand
from xinheng.core.ir.dtype import DType, bfloat16, float16, float32, round_to
from xinheng.core.ir.numeric import store

from . import kernels
from .kernels import FORMATS, SEEDS, Array, Kernel, admitted, bound, data, run

K, N = 160, 8
HEADS, KV, QUERIES, KEYS, WIDTH = 4, 2, 4, 48, 16
SCALE = WIDTH**-0.5
WINDOW, SOFTCAP = 12, 5.0
NARROW = kernels.order("Narrow", kernels.narrow(bfloat16))
F32, F16, B16 = (float32,), (float16,), (bfloat16,)


def weight(dtype: DType) -> Array:
    return round_to(np.random.default_rng(5).standard_normal(K) * 0.3 + 1, dtype)


def rejected(expected: Any, out: Array, dtype: DType) -> float:
    return float(np.mean(~admitted(expected, out, dtype)))


# ---------------------------------------------------------------------------------------------------------- one per op
def _stale(out: Array) -> Array:
    out = out.copy()
    out[..., -1, :] = out[..., -2, :]
    return out


def _three_percent(out: Array) -> Array:
    out = out.copy()
    out[..., 0, 0] *= 1.03
    return out


MATMUL: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "last of K dropped": (lambda a, b: a[..., :-1] @ b[..., :-1, :], {}),
    "tail of K dropped": (lambda a, b: a[..., :-16] @ b[..., :-16, :], {}),
    "bfloat16 accumulator": (kernels.matmul, {"kernel": NARROW}),
    "stale row": (kernels.matmul, {"after": _stale}),
    "one element off": (kernels.matmul, {"after": _three_percent}),
    "scaled": (lambda a, b: a @ b * SCALE, {}),
}


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("bug", MATMUL)
def test_matmul(bug: str, dtype: DType) -> None:
    a, b = data("normal", 3, K, dtype=dtype), data("normal", K, 32, dtype=dtype, seed=1)
    program, how = MATMUL[bug]
    how = dict(how)
    after = how.pop("after", lambda out: out)
    assert (
        rejected(bound(kernels.matmul, a, b, dtype=dtype, rules=Rules()), after(run(program, a, b, **how)), dtype) == 1
    )


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_storage_by_truncation_is_seen_in_16_bits(dtype: DType) -> None:
    a, b = data("normal", 3, K, dtype=dtype), data("normal", K, N, dtype=dtype, seed=1)
    out = run(kernels.matmul, a, b).astype(np.float64)
    nearest = round_to(out, dtype)
    ulp = np.ldexp(1.0, np.frexp(out)[1] - dtype.precision)
    cut = np.where(np.abs(nearest) > np.abs(out), nearest - np.sign(out) * ulp, nearest)
    expected = bound(kernels.matmul, a, b, dtype=dtype, rules=Rules())
    assert rejected(expected, out, dtype) == 0
    assert rejected(expected, cut, dtype) == 1


def _short_total(x: Any) -> Any:
    z = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return z / np.sum(z[..., :-1], axis=-1, keepdims=True)


def _no_maximum(x: Any) -> Any:
    z = np.exp(x)
    return z / np.sum(z, axis=-1, keepdims=True)


def _exp_in_bfloat16(x: Any) -> Any:
    z = store(np.exp(x - np.max(x, axis=-1, keepdims=True)), bfloat16)
    return z / np.sum(z, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("program", "kind", "how"),
    [
        (_short_total, "uniform", {}),
        (_no_maximum, "alternating", {}),
        (_exp_in_bfloat16, "normal", {}),
        (kernels.softmax, "normal", {"kernel": NARROW}),
    ],
)
@pytest.mark.parametrize("dtype", FORMATS[:2], ids=str)
def test_softmax(program: Callable[..., Any], kind: str, how: dict[str, Any], dtype: DType) -> None:
    x = data(kind, 24, K, dtype=dtype)
    rules = kernels.rules_for(kind)
    assert rejected(bound(kernels.softmax, x, dtype=dtype, rules=rules), run(program, x, **how), dtype) > 0.97


def _rms(x: Any, w: Any, eps: float = 1e-6, outside: bool = False, terms: int = K, skip: int = 0, one: int = 0) -> Any:
    square = np.sum((x * x)[..., skip:], axis=-1, keepdims=True) / np.float32(terms)
    root = np.sqrt(square) + eps if outside else np.sqrt(square + eps)
    return x / root * (w + np.float32(one))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(
    ("bug", "kind"),
    [
        ({"outside": True}, "tiny"),
        ({"eps": 1e-5}, "tiny"),
        ({"eps": 0.0}, "tiny"),
        ({"terms": K - 1}, "normal"),
        ({"skip": 1}, "normal"),
        ({"one": 1}, "normal"),
    ],
    ids=str,
)
def test_rms_norm(bug: dict[str, Any], kind: str, dtype: DType) -> None:
    x, w = data(kind, 16, K, dtype=dtype), weight(dtype)
    expected = bound(kernels.rms_norm, x, w, dtype=dtype, rules=Rules())
    assert rejected(expected, run(_rms, x, w), dtype) == 0
    assert rejected(expected, run(partial(_rms, **bug), x, w), dtype) > 0.97


def test_one_pass_variance_is_another_program() -> None:
    def one_pass(x: Any, w: Any, b: Any) -> Any:
        m = np.mean(x, axis=-1, keepdims=True)
        variance = np.mean(x * x, axis=-1, keepdims=True) - m * m
        return (x - m) / np.sqrt(variance + 1e-5) * w + b

    x, w = data("offset", 3, K, dtype=float32), weight(float32)
    expected = bound(kernels.layer_norm, x, w, w, dtype=float32, rules=Rules())
    assert rejected(expected, run(one_pass, x, w, w), float32) == 1


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_pairing_and_sign(dtype: DType, interleaved: bool) -> None:
    x, (cos, sin) = data("normal", 7, WIDTH, dtype=dtype), kernels.tables(7, WIDTH)
    operands = [operand(*part) for part in ((x, dtype), (cos, float32), (sin, float32))]
    expected = kernels.rotary(*operands, interleaved=interleaved)
    assert rejected(expected, run(kernels.rotary, x, cos, sin, interleaved=not interleaved), dtype) == 1
    assert rejected(expected, run(kernels.rotary, x, cos, -sin, interleaved=interleaved), dtype) == 1
    low = round_to(cos, bfloat16), round_to(sin, bfloat16)
    if dtype is not bfloat16:
        assert rejected(expected, run(kernels.rotary, x, *low, interleaved=interleaved), dtype) == 1


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_activations(dtype: DType) -> None:
    def tanh_form(x: Any) -> Any:
        return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))

    x, y = data("normal", 8, K, dtype=dtype), data("normal", 8, K, dtype=dtype, seed=1)
    assert rejected(bound(kernels.gelu, x, dtype=dtype, rules=Rules()), run(tanh_form, x), dtype) == 1
    expected = bound(kernels.silu_and_mul, x, y, dtype=dtype, rules=Rules())
    assert rejected(expected, run(kernels.silu_and_mul, y, x), dtype) == 1
    assert rejected(expected, run(lambda g, u: kernels.silu_and_mul(g, u) * 1.001, x, y), dtype) == 1


# ------------------------------------------------------------------------------------------------------------ attention
def _plain(q: Any, k: Any, v: Any, **how: Any) -> Any:
    return kernels.attention(q, k, v, **{"scale": SCALE, **how})


def _masked(mask: Array) -> Callable[..., Any]:
    def program(q: Any, k: Any, v: Any, cap_after: bool = False) -> Any:
        k, v = np.repeat(k, HEADS // KV, axis=-3), np.repeat(v, HEADS // KV, axis=-3)
        s = q @ np.swapaxes(k, -1, -2) * SCALE
        capped = np.tanh(np.where(mask, s, -1e30) / SOFTCAP) * SOFTCAP
        s = capped if cap_after else np.where(mask, s, -np.inf)
        p = np.exp(s - np.max(s, axis=-1, keepdims=True))
        return p @ v / np.sum(p, axis=-1, keepdims=True)

    return program


def _shifted(by: int) -> Array:
    return np.asarray(np.arange(KEYS) <= np.arange(QUERIES)[:, None] + KEYS - QUERIES + by)


def _heads_interleaved(q: Any, k: Any, v: Any) -> Any:
    return _plain(q, np.concatenate([k, k], axis=-3), np.concatenate([v, v], axis=-3))


WINDOWED, CAPPED = {"window": WINDOW}, {"softcap": SOFTCAP}
ATTENTION: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "first key dropped": ({}, lambda q, k, v: _plain(q, k[..., 1:, :], v[..., 1:, :])),
    "one future key": ({}, _masked(_shifted(1))),
    "own key missing": ({}, _masked(_shifted(-1))),
    "heads interleaved": ({}, _heads_interleaved),
    "scale missing": ({}, partial(_plain, scale=1.0)),
    "scale twice": ({}, partial(_plain, scale=SCALE**2)),
    "scale of a padded head": ({}, partial(_plain, scale=(WIDTH + 1) ** -0.5)),
    "window + 1": (WINDOWED, partial(_plain, window=WINDOW + 1)),
    "window - 1": (WINDOWED, partial(_plain, window=WINDOW - 1)),
    "window ignored": (WINDOWED, _plain),
    "softcap ignored": (CAPPED, _plain),
    "softcap after mask": (CAPPED, partial(_masked(_shifted(0)), cap_after=True)),
    "softcap before scale": (CAPPED, partial(_plain, scale=1.0, softcap=SOFTCAP)),
}


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("bug", ATTENTION)
def test_attention(bug: str, dtype: DType) -> None:
    attrs, program = ATTENTION[bug]
    q = data("normal", HEADS, QUERIES, WIDTH, dtype=dtype)
    k, v = (data("normal", KV, KEYS, WIDTH, dtype=dtype, seed=s) for s in (1, 2))
    expected = bound(_plain, q, k, v, dtype=dtype, rules=Rules(), **attrs)
    assert rejected(expected, run(program, q, k, v), dtype) == 1


def test_probabilities_in_bfloat16_are_no_plain_program() -> None:
    q = data("normal", HEADS, QUERIES, WIDTH, dtype=float16)
    k, v = (data("normal", KV, KEYS, WIDTH, dtype=float16, seed=s) for s in (1, 2))
    out = run(partial(_plain, probs=bfloat16), q, k, v)
    assert rejected(bound(_plain, q, k, v, dtype=float16, rules=Rules()), out, float16) == 1
    assert rejected(bound(partial(_plain, probs=bfloat16), q, k, v, dtype=float16, rules=Rules()), out, float16) == 0


# ------------------------------------------------------------------------------------------------------ declared modes
def test_a_declared_mode_hides_nothing_else() -> None:
    dtype = bfloat16
    a, b = data("normal", 3, 64, dtype=dtype), data("normal", 64, 32, dtype=dtype, seed=1)
    rules = Rules(partial=bfloat16, chunk=64)
    expected = bound(kernels.matmul, a, b, dtype=dtype, rules=rules)
    assert rejected(expected, run(kernels.matmul, a, b, kernel=NARROW), dtype) == 0
    assert rejected(expected, run(lambda x, y: x[..., :-1] @ y[..., :-1, :], a, b, kernel=NARROW), dtype) == 1


def test_declared_depth_sees_what_an_undeclared_sum_hides() -> None:
    terms, dtype = 4096, float32
    x, w = data("normal", 1, terms, dtype=dtype)[:4], np.ones(terms)
    bug = partial(_rms, terms=terms - 1)
    blocked: type[Kernel] = kernels.ORDERS[2]
    loose, tight = (bound(kernels.rms_norm, x, w, dtype=dtype, rules=rules) for rules in (Rules(), Rules(depth=64)))
    out = run(bug, x, w, kernel=blocked)
    assert rejected(loose, out, dtype) < 1
    assert rejected(tight, out, dtype) == 1
    assert rejected(tight, run(partial(_rms, terms=terms), x, w, kernel=blocked), dtype) == 0


def test_data_has_the_announced_number_of_seeds() -> None:
    assert len(data("normal", 2, dtype=float32)) == SEEDS
