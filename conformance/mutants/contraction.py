"""Mutants of matrix products: terms lost, accumulators too narrow, operands cut, rows and groups mixed up."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.hal import TF32
from xinheng.core.ir import DType
from xinheng.core.ir.dtype import bfloat16, float16, float32, round_to
from xinheng.core.ops import OPSET

from ..selftests.simulated import narrow
from .mutant import faulty, given, having, operand, summed, wrong

PRODUCTS = "matmul linear grouped_linear batched_linear conv fused_moe matmul_all_reduce"

summed(PRODUCTS, "bf16 sums", "keeps partial sums in bfloat16", narrow(bfloat16))
summed(PRODUCTS, "f16 sums", "keeps partial sums in float16", narrow(float16), (float32, bfloat16))


def _cut(kind: DType) -> Any:
    """Both operands of a product in another format."""

    def change(call: Any) -> Any:
        x, weight = (n for n in ("a", "b", "x", "weight") if n in {o.name for o in OPSET[call.op].operands})
        values = {name: operand(call, name) for name in (x, weight)}
        if any(v.dtype.kind != "f" for v in values.values()):
            return None
        return having(call, **{name: round_to(v, kind) for name, v in values.items()})

    return change


given("matmul linear conv", "tf32 inputs", "cuts inputs to 11 bits without saying so", _cut(TF32), (float32,))
given("matmul linear conv", "bf16 inputs", "cuts inputs to bfloat16", _cut(bfloat16), (float32, float16))


def _terms(a: Any, b: Any, kept: slice) -> Any:
    return np.matmul(a[..., kept], b[..., kept, :])


def _linear(x: Any, weight: Any, bias: Any = None, *, kept: slice = np.s_[:]) -> Any:
    y = np.matmul(x[..., kept], np.swapaxes(weight, -1, -2)[..., kept, :])
    return y if bias is None else y + bias


def _whole(size: int, block: int) -> slice:
    """As many of `size` terms as fill whole blocks, if there are any."""
    return np.s_[: size - size % block] if size > block else np.s_[:]


wrong("matmul", "last of K", "leaves the last term of each sum out", lambda a, b: _terms(a, b, np.s_[:-1]))
wrong("matmul", "first of K", "starts sums at the second term", lambda a, b: _terms(a, b, np.s_[1:]))
wrong("matmul", "last 16 of K", "leaves the last 16 terms out", lambda a, b: _terms(a, b, np.s_[: -16 or None]))
wrong(
    "matmul",
    "tail of K",
    "leaves out what follows the last whole block of 32 terms",
    lambda a, b: _terms(a, b, _whole(a.shape[-1], 32)),
)
wrong(
    "linear",
    "tail of K",
    "leaves out what follows the last whole block of 256 terms",
    lambda x, weight, bias=None: _linear(x, weight, bias, kept=_whole(x.shape[-1], 256)),
)
wrong("linear", "last of K", "leaves the last term out", lambda x, w, b=None: _linear(x, w, b, kept=np.s_[:-1]))
wrong("linear", "bias ignored", "never adds the bias", lambda x, weight, bias=None: _linear(x, weight))
wrong(
    "linear", "bias twice", "adds the bias in both halves of a split sum", lambda x, w, b=None: _linear(x, w, _twice(b))
)


def _twice(bias: Any) -> Any:
    return None if bias is None else bias + bias


def _transposed(a: Any, b: Any) -> Any:
    return np.matmul(a, np.swapaxes(b, -1, -2) if b.shape[-1] == b.shape[-2] else b)


def _first_batch(a: Any, b: Any) -> Any:
    """The second operand of the first batch for all batches."""
    first = b[(np.s_[:1],) * (b.ndim - 2)] if b.ndim > 2 and b.shape[0] else b
    return np.matmul(a, np.broadcast_to(first, b.shape))


def _zeros_skipped(a: Any, b: Any) -> Any:
    """Rows that meet a zero are not multiplied, so that infinities are not seen."""
    return np.matmul(np.where(np.isfinite(a), a, 0.0), np.where(np.isfinite(b), b, 0.0))


wrong("matmul", "transposed", "reads a square second operand by columns", _transposed)
wrong("matmul", "first batch", "takes the second operand of the first batch for all", _first_batch)
wrong("matmul", "infinities lost", "skips what is zero, or not finite", _zeros_skipped)
wrong("matmul", "scaled", "multiplies by 1 / sqrt(K) as well", lambda a, b: np.matmul(a, b) * a.shape[-1] ** -0.5)


def _grouped(x: Any, weight: Any, counts: Any, *, fault: str) -> Any:
    pieces, start = [], 0
    counts = np.asarray(counts).tolist()
    for group, count in enumerate(counts):
        rows, chosen = x[start : start + count], group
        if fault == "empty groups skipped":
            chosen = sum(1 for c in counts[:group] if c)
        if fault == "last group" and group == len(counts) - 1:
            chosen = max(group - 1, 0)
        product = np.matmul(rows, np.swapaxes(weight[chosen], -1, -2))
        pieces.append(product * 0 if fault == "one row" and count == 1 else product)
        start += count
    return np.concatenate(pieces, axis=0)


def _ends_for_counts(x: Any, weight: Any, counts: Any) -> Any:
    """Counts taken as where groups end: each row goes to the first group whose count exceeds it."""
    owner = [next((g for g, c in enumerate(counts) if row < c), 0) for row in range(x.shape[0])]
    rows = [np.matmul(x[r : r + 1], np.swapaxes(weight[g], -1, -2)) for r, g in enumerate(owner)]
    return np.concatenate(rows or [x[:, :0] @ np.zeros((0, weight.shape[1]))], axis=0)


faulty(
    "grouped_linear",
    _grouped,
    {
        "empty groups skipped": "counts groups without rows out",
        "last group": "multiplies the last group by the weight before its own",
        "one row": "takes groups of one row for empty ones",
    },
)
wrong("grouped_linear", "counts as ends", "takes counts for running sums", _ends_for_counts)


def _batched(x: Any, weight: Any, *, transposed: bool = False, fault: str) -> Any:
    heads = np.transpose(x, (1, 0, 2))
    w = weight if transposed else np.swapaxes(weight, -1, -2)
    w = np.broadcast_to(w[:1], w.shape) if fault == "first head" else np.flip(w, axis=0)
    return np.transpose(np.matmul(heads, w), (1, 0, 2))


faulty(
    "batched_linear",
    _batched,
    {"first head": "takes the weight of the first head for all", "reversed": "reverses heads"},
)


def _bias_per_rank(x: Any, weight: Any, bias: Any = None, *, group: str, size: int) -> Any:
    """The bias before the sum over ranks, so that each of them adds it."""
    return OPSET["all_reduce"].reference(_linear(x, weight, bias), group=group, size=size)


wrong("matmul_all_reduce", "bias per rank", "adds the bias on every rank, before the sum", _bias_per_rank)
