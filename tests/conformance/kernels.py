"""Op references in the style of `core/ops`, and float32 arrays that run them as kernels adding up in a chosen order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.conformance.bounds import Rules, admits, operand
from xinheng.core.ir.dtype import DType, bfloat16, float16, float32, round_to
from xinheng.core.ir.numeric import erf, rsqrt, shift, sigmoid, store

Array = NDArray[Any]
Program = Callable[..., Any]

FORMATS = (float32, float16, bfloat16)
KINDS = ("normal", "uniform", "outlier", "tiny", "constant", "alternating", "offset")
SEEDS = 36  # of each kind, as the first axis of every input


# ---------------------------------------------------------------------------------------------------------- references
def matmul(a: Any, b: Any) -> Any:
    return a @ b


def total(x: Any) -> Any:
    return np.sum(x, axis=-1)


def softmax(x: Any) -> Any:
    z = np.exp(x - shift(np.max(x, axis=-1, keepdims=True)))
    return z / np.sum(z, axis=-1, keepdims=True)


def rms_norm(x: Any, weight: Any, *, eps: float = 1e-6) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    d = x - np.mean(x, axis=-1, keepdims=True)
    return d * rsqrt(np.mean(d * d, axis=-1, keepdims=True) + eps) * weight + bias


def rotary(x: Any, cos: Any, sin: Any, *, interleaved: bool = False) -> Any:
    half = x.shape[-1] // 2
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    parts = [a * cos - b * sin, b * cos + a * sin]
    return np.reshape(np.stack(parts, axis=-1), x.shape) if interleaved else np.concatenate(parts, axis=-1)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def silu_and_mul(gate: Any, up: Any) -> Any:
    return gate * sigmoid(gate) * up


def visible(queries: int, keys: int, window: int | None = None) -> Array:
    q, k = np.arange(queries)[:, None] + keys - queries, np.arange(keys)
    return np.asarray((k <= q) & (q - k < (window or keys)))


def attention(
    q: Any, k: Any, v: Any, *, scale: float, window: int | None = None, softcap: float | None = None, probs: Any = None
) -> Any:
    """[seeds, heads, tokens, width] with grouped heads; the queries are the last positions."""
    group = q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, group, axis=-3), np.repeat(v, group, axis=-3)
    s = q @ np.swapaxes(k, -1, -2) * scale
    if softcap is not None:
        s = np.tanh(s / softcap) * softcap
    s = np.where(visible(q.shape[-2], k.shape[-2], window), s, -np.inf)
    p = np.exp(s - shift(np.max(s, axis=-1, keepdims=True)))
    return store(p, probs, known=False) @ v / np.sum(p, axis=-1, keepdims=True)


# -------------------------------------------------------------------------------------------------- simulated kernels
def sequential(t: Array) -> Array:
    return np.asarray(np.add.accumulate(t, axis=-1, dtype=np.float32)[..., -1])


def backwards(t: Array) -> Array:
    return sequential(t[..., ::-1])


def blocked(t: Array) -> Array:
    pad = np.zeros((*t.shape[:-1], -t.shape[-1] % 64), np.float32)
    return sequential(sequential(np.concatenate([t, pad], -1).reshape(*t.shape[:-1], -1, 64)))


def pairwise(t: Array) -> Array:
    while t.shape[-1] > 1:
        odd = t[..., -1:] if t.shape[-1] % 2 else t[..., :0]
        t = np.concatenate([t[..., :-1:2] + t[..., 1::2], odd], -1)
    return t[..., 0]


def narrow(partial: DType, chunk: int = 64) -> Callable[[Array], Array]:
    """Partial sums kept in `partial` once every `chunk` terms."""

    def add_up(t: Array) -> Array:
        acc = np.zeros(t.shape[:-1], np.float32)
        for i in range(0, t.shape[-1], chunk):
            acc = round_to(acc + sequential(t[..., i : i + chunk]), partial).astype(np.float32)
        return acc

    return add_up


class Kernel(np.ndarray[Any, Any]):
    """float32 arrays whose sums and products of matrices add up in the order of their class."""

    add_up = staticmethod(sequential)
    fused = False

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        args = tuple(np.asarray(a) if isinstance(a, np.ndarray) else a for a in args)
        out = getattr(ufunc, method)(*args, **kwargs) if ufunc is not np.matmul else self._matmul(*args)
        return out.view(type(self)) if out.dtype == np.float32 else out

    def _matmul(self, a: Array, b: Array) -> Array:
        b = np.swapaxes(b, -1, -2)
        if not self.fused:
            return self.add_up(a[..., :, None, :] * b[..., None, :, :])
        out = np.zeros((), np.float32)
        for k in range(a.shape[-1]):
            out = (out + a[..., :, None, k].astype(np.float64) * b[..., None, :, k]).astype(np.float32)
        return out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func not in (np.sum, np.mean):
            out = super().__array_function__(func, types, args, kwargs)
            return out.view(type(self)) if getattr(out, "dtype", None) == np.float32 else out
        x, axis = np.asarray(args[0]), kwargs["axis"]
        result = self.add_up(np.moveaxis(x, axis, -1))
        result = np.expand_dims(result, axis) if kwargs.get("keepdims") else result
        return (result / np.float32(x.shape[axis]) if func is np.mean else result).view(type(self))


def order(name: str, add_up: Callable[[Array], Array], fused: bool = False) -> type[Kernel]:
    return type(name, (Kernel,), {"add_up": staticmethod(add_up), "fused": fused})


ORDERS = (
    order("Sequential", sequential),
    order("Backwards", backwards),
    order("Blocked", blocked),
    order("Pairwise", pairwise),
    order("Fused", sequential, fused=True),
)


def run(program: Program, *inputs: Array, kernel: type[Kernel] = ORDERS[0], **attrs: Any) -> Array:
    """The float32 output of a kernel."""
    with np.errstate(all="ignore"):
        out = np.asarray(program(*(np.asarray(x, np.float32).view(kernel) for x in inputs), **attrs))
    assert out.dtype == np.float32, "the simulated kernel left float32"
    return out


def bound(program: Program, *inputs: Array, dtype: DType, rules: Rules, **attrs: Any) -> Any:
    return program(*(operand(x, dtype, rules) for x in inputs), **attrs)


def rules_for(kind: str, **declared: Any) -> Rules:
    return Rules(structured=kind in ("constant", "alternating"), **declared)


def admitted(expected: Any, out: Array, dtype: DType) -> NDArray[np.bool_]:
    """Per seed: every element of the output, once stored in `dtype`, is admitted."""
    good = admits(expected, round_to(out, dtype), dtype)
    return np.asarray(good.reshape(len(good), -1).all(axis=1))


# --------------------------------------------------------------------------------------------------------------- data
def data(kind: str, *shape: int, dtype: DType, seed: int = 0) -> Array:
    """[SEEDS, *shape], rounded to `dtype`."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    x: Array = rng.standard_normal((SEEDS, *shape))
    if kind == "uniform":
        x = rng.uniform(-5, 5, x.shape)
    elif kind == "outlier":
        x = x * np.where(rng.random((SEEDS,) + (1,) * (len(shape) - 1) + shape[-1:]) < 0.01, 1000.0, 1.0)
    elif kind == "tiny":
        x = x * 1e-3
    elif kind == "constant":
        x = np.repeat(x[..., :1], shape[-1], -1) * 3
    elif kind == "alternating":
        x = 100 * np.where(np.arange(shape[-1]) % 2, 1.0, -1.0) * (1 + 1e-3 * x)
    elif kind == "offset":
        x = x + 1000
    return round_to(x, dtype)


def tables(positions: int, width: int) -> tuple[Array, Array]:
    """Cosines and sines [positions, width / 2], representable in float32."""
    angle = np.arange(positions)[:, None] * 1e4 ** (-np.arange(width // 2) / (width // 2))
    return round_to(np.cos(angle), float32), round_to(np.sin(angle), float32)
