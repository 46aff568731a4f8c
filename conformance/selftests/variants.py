"""Other correct kernels: programs that are equal in exact arithmetic to the reference of their op, as kernels are.

A bound that were tied to the formula of the reference would reject them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xinheng.core.ir.numeric import erf, point
from xinheng.core.ops import OPSET
from xinheng.core.ops.attention import attend

from .simulated import rebuilt

BLOCK = 16
"""Keys that blocked attention takes at once."""
Program = Callable[..., Any]


def _softmax(x: Any, *, axis: int = -1) -> Any:
    """Powers of two, and one reciprocal per row."""
    z = np.exp2((x - np.max(x, axis=axis, keepdims=True)) * math.log2(math.e))
    return z * (1 / np.sum(z, axis=axis, keepdims=True))


def _rms_norm(x: Any, weight: Any, *, eps: float) -> Any:
    """The factor of each row goes into the weight; the mean is a product."""
    mean = np.sum(x * x, axis=-1, keepdims=True) * (1 / max(x.shape[-1], 1))
    return x * (1 / np.sqrt(mean + eps) * weight)


def _layer_norm(x: Any, weight: Any = None, bias: Any = None, *, eps: float) -> Any:
    """Divided by the root instead of multiplied by its reciprocal."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    y = centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
    y = y if weight is None else weight * y
    return y if bias is None else y + bias


def _silu_and_mul(gate: Any, up: Any) -> Any:
    return gate / (1 + np.exp(-gate)) * up


def _gelu(x: Any, *, approximate: str = "none") -> Any:
    """Halves taken inside; the tanh form as a logistic function."""
    if approximate == "tanh":
        inner = 2 * math.sqrt(2 / math.pi) * (x * (1 + 0.044715 * (x * x)))
        return x / (1 + np.exp(-inner))
    return x * (0.5 + 0.5 * erf(x / math.sqrt(2)))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Two halves of the columns one after the other, the bias first."""
    half = x.shape[-1] // 2
    columns = np.swapaxes(weight, -1, -2)
    y = np.matmul(x[..., :half], columns[:half])
    y = y if bias is None else y + bias
    return y + np.matmul(x[..., half:], columns[half:])


def _online(
    q: Any, k: Any, v: Any, positions: Any, keys: Any, sinks: Any, bias: Any,
    *, scale: float, window: int | None, softcap: float | None, causal: bool,
) -> Any:  # fmt: skip
    """Blocks of keys with a running maximum (Milakov and Gimelshein 2018; Dao et al. 2022), queries scaled first."""
    n, heads, group = q.shape[0], q.shape[1], q.shape[1] // k.shape[1]
    seen = (keys <= positions[:, None]) if causal else np.ones((n, keys.size), bool)
    seen = seen & (positions[:, None] - keys < (window or np.inf)) & (positions >= 0)[:, None]
    q = np.transpose(q, (1, 0, 2)) * scale
    k, v = (np.repeat(np.transpose(x, (1, 0, 2)), group, axis=0) for x in (k, v))
    top = np.full((heads, n, 1), -1e30, np.float32) if sinks is None else np.reshape(sinks, (heads, 1, 1))
    total, out = (0.0 if sinks is None else 1.0) + 0 * top, np.zeros((heads, n, v.shape[-1]), np.float32)
    for i in range(0, keys.size, BLOCK):
        part = np.s_[i : i + BLOCK]
        s = np.matmul(q, np.swapaxes(k[:, part], -1, -2))
        s = np.tanh(s / softcap) * softcap if softcap else s
        s = s if bias is None else s + np.transpose(bias[..., keys[part]], (1, 0, 2))
        s = np.where(seen[:, part], s, -np.inf)
        new = np.maximum(np.max(s, axis=-1, keepdims=True), top)
        p, kept = np.exp(s - new), np.exp(top - new)
        total, top = total * kept + np.sum(p, axis=-1, keepdims=True), new
        out = out * kept + np.matmul(point(p, "probs"), v[:, part])
    some = np.any(seen, axis=-1)[:, None]
    total = np.where(some, total, 1.0)
    out, lse = np.where(some, out / total, 0.0), np.where(some, top + np.log(total), -np.inf)
    return np.transpose(out, (1, 0, 2)), np.transpose(np.broadcast_to(lse, (heads, n, 1))[..., 0], (1, 0))


def _split(q: Any, k: Any, v: Any, positions: Any, keys: Any, sinks: Any, bias: Any, **how: Any) -> Any:
    """Two runs of keys apart, put together by their log-sum-exps, as kernels for long contexts do."""
    if keys.size < 2:
        return attend(q, k, v, positions, keys, sinks, bias, **how)
    half = keys.size // 2
    parts = [attend(q, k[s], v[s], positions, keys[s], None, bias, **how) for s in (np.s_[:half], np.s_[half:])]
    sums = [np.expand_dims(lse, -1) for _, lse in parts]
    top = np.maximum(np.maximum(*sums), -1e30 if sinks is None else np.reshape(sinks, (-1, 1)))
    shares = [np.exp(lse - top) for lse in sums]
    total = shares[0] + shares[1]
    unseen = np.maximum(*sums) == -np.inf
    total = total if sinks is None else total + np.exp(np.reshape(sinks, (-1, 1)) - top)
    weighed = [np.where(share > 0, out * share, 0.0) for (out, _), share in zip(parts, shares, strict=True)]
    out = (weighed[0] + weighed[1]) / np.where(unseen, 1.0, total)
    return out, np.where(unseen, -np.inf, top + np.log(total))[..., 0]


_ATTENTION = {
    op: {how: rebuilt(OPSET[op].reference, attend=f) for how, f in (("online", _online), ("split", _split))}
    for op in ("paged_attention", "sdpa_varlen", "mla_attention")
}
VARIANTS: Mapping[str, Mapping[str, Program]] = {
    "softmax": {"powers of two": _softmax},
    "rms_norm": {"weight scaled": _rms_norm},
    "layer_norm": {"divided": _layer_norm},
    "silu_and_mul": {"divided": _silu_and_mul},
    "gelu": {"halves inside": _gelu},
    "sigmoid": {"one-sided": _sigmoid},
    "linear": {"in halves": _linear},
    **_ATTENTION,
}
"""By op, programs with the signature of its reference; some leave the range of float32 where special values do not."""
