"""Correct kernels are never rejected: 252 seeds per op and format, in five orders of summation."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import TF32, operand
from xinheng.core.ir.dtype import DType, bfloat16, float16, float32, round_to
from xinheng.core.ir.numeric import store

from . import kernels
from .kernels import FORMATS, KINDS, ORDERS, Array, Kernel, admitted, bound, data, run

ROWS, K, N = 2, 150, 4
HEADS, KV, QUERIES, KEYS, WIDTH = 4, 2, 3, 40, 16
SCALE = WIDTH**-0.5


def inputs_of(op: str, kind: str, dtype: DType) -> tuple[Array, ...]:
    weight = round_to(np.random.default_rng(5).standard_normal(K) * 0.3 + 1, dtype)
    if op == "matmul":
        b = np.swapaxes(data(kind, N, K, dtype=dtype, seed=1), -1, -2)
        return data(kind, ROWS, K, dtype=dtype), b
    if op == "attention":
        kv = (data(kind, KV, KEYS, WIDTH, dtype=dtype, seed=s) for s in (1, 2))
        return (data(kind, HEADS, QUERIES, WIDTH, dtype=dtype), *kv)
    x = data(kind, ROWS, K, dtype=dtype)
    return {"rms_norm": (x, weight), "layer_norm": (x, weight, weight), "silu_and_mul": (x, x[::-1])}.get(op, (x,))


def softmax_exp2(x: Any) -> Any:
    z = np.exp2((x - np.max(x, axis=-1, keepdims=True)) * math.log2(math.e))
    return z * (1 / np.sum(z, axis=-1, keepdims=True))


def rms_norm_scaled(x: Any, weight: Any) -> Any:
    return x * (1 / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) * (1 / x.shape[-1]) + 1e-6) * weight)


def silu_divided(gate: Any, up: Any) -> Any:
    return gate / (1 + np.exp(-gate)) * up


def attention_online(q: Any, k: Any, v: Any, *, block: int = 16, probs: DType | None = None) -> Any:
    """One pass over blocks of keys with a running maximum."""
    k, v = np.repeat(k, HEADS // KV, axis=-3), np.repeat(v, HEADS // KV, axis=-3)
    top, out, total = np.float32(-1e30), np.float32(0), np.float32(0)
    for i in range(0, KEYS, block):
        part = slice(i, i + block)
        s = (q * SCALE) @ np.swapaxes(k[..., part, :], -1, -2)
        s = np.where(kernels.visible(QUERIES, KEYS)[:, part], s, -np.inf)
        new = np.maximum(np.max(s, axis=-1, keepdims=True), top)
        p, keep = np.exp(s - new), np.exp(top - new)
        total = total * keep + np.sum(p, axis=-1, keepdims=True)
        out, top = out * keep + np.asarray(store(p, probs)).view(type(q)) @ v[..., part, :], new
    return out / total


ATTENTION = {"scale": SCALE}
CASES: dict[str, tuple[str, Any, dict[str, Any], Any]] = {  # name: inputs, reference, attributes, kernel if another
    "matmul": ("matmul", kernels.matmul, {}, None),
    "sum": ("sum", kernels.total, {}, None),
    "softmax": ("softmax", kernels.softmax, {}, None),
    "softmax by exp2": ("softmax", kernels.softmax, {}, softmax_exp2),
    "rms_norm": ("rms_norm", kernels.rms_norm, {}, None),
    "rms_norm, weight scaled": ("rms_norm", kernels.rms_norm, {}, rms_norm_scaled),
    "layer_norm": ("layer_norm", kernels.layer_norm, {}, None),
    "gelu": ("gelu", kernels.gelu, {}, None),
    "silu_and_mul": ("silu_and_mul", kernels.silu_and_mul, {}, None),
    "silu_and_mul, divided": ("silu_and_mul", kernels.silu_and_mul, {}, silu_divided),
    "attention": ("attention", kernels.attention, ATTENTION, None),
    "attention, window and softcap": ("attention", kernels.attention, {**ATTENTION, "window": 9, "softcap": 5.0}, None),
    "attention, online": ("attention", kernels.attention, ATTENTION, attention_online),
}


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_correct_kernel_passes(case: str, dtype: DType) -> None:
    op, reference, attrs, kernel = CASES[case]
    for kind in KINDS:
        inputs = inputs_of(op, kind, dtype)
        expected = bound(reference, *inputs, dtype=dtype, rules=kernels.rules_for(kind), **attrs)
        program = partial(reference, **attrs) if kernel is None else kernel
        for order in ORDERS if op not in ("gelu", "silu_and_mul") else ORDERS[:1]:
            good = admitted(expected, run(program, *inputs, kernel=order), dtype)
            assert good.all(), f"{order.__name__} {case} on {kind}: {np.flatnonzero(~good)}"


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_rotary_passes(dtype: DType, interleaved: bool) -> None:
    cos, sin = kernels.tables(7, WIDTH)
    for kind in KINDS:
        x, rules = data(kind, 7, WIDTH, dtype=dtype), kernels.rules_for(kind)
        operands = (operand(part, kind_of, rules) for part, kind_of in ((x, dtype), (cos, float32), (sin, float32)))
        expected = kernels.rotary(*operands, interleaved=interleaved)
        assert admitted(expected, run(kernels.rotary, x, cos, sin, interleaved=interleaved), dtype).all()


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_stored_probabilities_pass_at_any_block_size(dtype: DType) -> None:
    for kind in ("normal", "uniform", "tiny", "outlier"):
        inputs = inputs_of("attention", kind, dtype)
        program = partial(kernels.attention, scale=SCALE, probs=dtype)
        expected = bound(program, *inputs, dtype=dtype, rules=kernels.rules_for(kind))
        for block in (8, 40):
            out = run(partial(attention_online, block=block, probs=dtype), *inputs, kernel=ORDERS[2])
            assert admitted(expected, out, dtype).all(), (kind, block)


def test_the_square_root_law_needs_cancellation() -> None:
    """Squares below half an ulp of the running sum vanish: the error then grows with the length of the chain."""
    dtype = float32
    x = np.full((1, 16384), round_to(0.1, dtype))
    expected = bound(kernels.total, x, dtype=dtype, rules=kernels.rules_for("normal"))
    out = run(kernels.total, x)
    assert admitted(expected, out, dtype).all()
    error, unit = np.abs(out - expected.v) / np.abs(x).sum(-1), dtype.unit_roundoff
    assert (error > 4 * math.sqrt(x.shape[-1]) * unit).all(), "data too tame to tell"


def test_products_that_underflow_pass() -> None:
    a, b = (data("normal", *shape, dtype=float32, seed=s) for s, shape in enumerate([(8, 5), (5, 8)]))
    a, b = (round_to(x * 2.0**-73, float32) for x in (a, b))
    expected = bound(kernels.matmul, a, b, dtype=float32, rules=kernels.rules_for("normal"))
    for order in ORDERS:
        assert admitted(expected, run(kernels.matmul, a, b, kernel=order), float32).all()


@pytest.mark.parametrize("declared", ["partial", "depth", "flush", "inputs"])
def test_a_declared_mode_admits_its_kernels(declared: str) -> None:
    dtype = float32 if declared == "inputs" else bfloat16
    modes: dict[str, tuple[dict[str, Any], type[Kernel]]] = {
        "partial": ({"partial": bfloat16, "chunk": 64}, kernels.order("Narrow", kernels.narrow(bfloat16))),
        "depth": ({"depth": 64}, ORDERS[2]),
        "flush": ({"flush": True}, ORDERS[0]),
        "inputs": ({"inputs": TF32}, ORDERS[0]),
    }
    options, kernel = modes[declared]
    for kind in KINDS:
        a, b = inputs_of("matmul", kind, dtype)
        expected = bound(kernels.matmul, a, b, dtype=dtype, rules=kernels.rules_for(kind, **options))
        cut = (lambda x: round_to(x, TF32)) if declared == "inputs" else (lambda x: x)
        out = round_to(run(kernels.matmul, cut(a), cut(b), kernel=kernel), dtype, flush=declared == "flush")
        assert admitted(expected, out, dtype).all(), kind
