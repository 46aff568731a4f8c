"""How calls of PyTorch become calls of our ops: one function per counterpart, with the signature that PyTorch gives it.

Tensors are `T`s and dtypes are ours, so that nothing here needs PyTorch. A function returns what to call our op with,
or raises `Uncovered` where the op does not mean the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xinheng.core.ir import DType
from xinheng.core.ir.dtype import bool_, float32, int32, int64

from ..operands import T, W


class Uncovered(Exception):
    """Our op does not cover a call; the message is the reason, the same for all calls of the kind."""


def _same(out: Any) -> Any:
    return out


@dataclass(frozen=True)
class Given:
    """Operands and attributes of a call of ours, and how the results of PyTorch are laid out as ours are.

    `results` takes what PyTorch returned, as an array or a tuple of arrays; None among its results is not compared.
    `fixed` are arguments that PyTorch has to be given too, since it would choose them by the dtype.
    """

    operands: Sequence[Any]
    attributes: dict[str, Any]
    results: Callable[[Any], Any] = _same
    fixed: dict[str, Any] = field(default_factory=dict)


Convert = Callable[..., Given]


def covered(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Uncovered(otherwise)


def _tensor(x: Any, like: T | None = None) -> T:
    """A tensor, or a number as a tensor of the dtype it takes beside `like`."""
    if isinstance(x, T):
        return x
    kind = like.dtype if like is not None else float32
    fits = kind.is_float or isinstance(x, bool) or (isinstance(x, int) and kind is not bool_)
    covered(isinstance(x, int | float) and fits, "a number changes the dtype")
    return T(np.asarray(x, np.float64 if kind.is_float else kind.numpy), kind)


def _pair(a: Any, b: Any) -> tuple[T, T]:
    a = _tensor(a, b if isinstance(b, T) else None)
    b = _tensor(b, a)
    covered(a.dtype is b.dtype, "operands of several dtypes")
    return a, b


def _axis(x: T, dim: int) -> int:
    covered(x.data.ndim > 0, "folds a scalar")
    return dim


def _kept(x: T, dtype: DType | None) -> None:
    covered(dtype is None or dtype is x.dtype, "computes in another dtype")


# ---------------------------------------------------------------------------------------------------- elementwise
def unary(x: T, *, inplace: bool = False) -> Given:
    return Given((x,), {})


def rounded(x: T, *, decimals: int = 0) -> Given:
    covered(decimals == 0, "rounds to decimals")
    return Given((x,), {})


def gelu(x: T, *, approximate: str = "none") -> Given:
    return Given((x,), {"approximate": approximate})


def binary(a: Any, b: Any, *, alpha: float = 1, rounding_mode: str | None = None) -> Given:
    covered(alpha == 1, "scales an operand")
    return Given(_pair(a, b), {})


def remainder(a: Any, b: Any) -> Given:
    a, b = _pair(a, b)
    covered(a.dtype.is_float or bool(np.all(b.data != 0)), "divides integers by zero")
    return Given((a, b), {})


def trunc_div(a: Any, b: Any, *, rounding_mode: str) -> Given:
    return remainder(a, b)


def power(a: Any, b: Any) -> Given:
    a, b = _pair(a, b)
    covered(a.dtype.is_float or bool(np.all(b.data >= 0)), "a negative power of an integer")
    return Given((a, b), {})


def chosen(x: Any, condition: T, other: Any) -> Given:
    return Given((condition, *_pair(x, other)), {})


def clamp(x: T, min: Any = None, max: Any = None) -> Given:
    if isinstance(min, T) or isinstance(max, T):
        raise Uncovered("bounds are tensors")
    covered(min is None or max is None or min <= max, "the bounds are crossed")
    covered(min is not None or max is not None, "there are no bounds")
    return Given((x,), {"low": min, "high": max})


def hardtanh(x: T, *, min_val: float = -1.0, max_val: float = 1.0) -> Given:
    whole = x.dtype.is_integer
    return clamp(x, int(min_val) if whole else min_val, int(max_val) if whole else max_val)


def shift(sign: int) -> Convert:
    def convert(x: Any, bits: Any) -> Given:
        x = _tensor(x, bits if isinstance(bits, T) else None)
        number = bits.data if isinstance(bits, T) else np.asarray(bits)
        covered(number.ndim == 0, "shifts each element by its own number of bits")
        covered(0 <= int(number) < x.dtype.bits, "shifts by a number of bits that the dtype does not have")
        return Given((x,), {"bits": sign * int(number)})

    return convert


def cast(dtype: DType) -> Convert:
    def convert(x: T, *, memory_format: Any = None) -> Given:
        if dtype.is_integer:
            least, most = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
            whole = np.trunc(x.data.astype(np.float64))
            covered(bool(np.all((whole >= least) & (whole <= most))), "converts what is out of range")
        return Given((x,), {"dtype": dtype})

    return convert


# ---------------------------------------------------------------------------------------------------- movement
def full(shape: Sequence[int], value: Any, *, dtype: DType = float32, device: str = "") -> Given:
    return Given((), {"shape": tuple(shape), "value": value, "dtype": dtype})


def arange(
    start: float, end: float | None = None, step: float = 1, *, dtype: DType | None = None, device: str = ""
) -> Given:
    start, end = (0, start) if end is None else (start, end)
    covered(start == 0 and step == 1, "does not count from 0 by 1")
    if dtype is None:
        raise Uncovered("the dtype is left open")
    covered(dtype.is_float or float(end).is_integer(), "counts integers to a fraction")
    return Given((), {"size": math.ceil(end), "dtype": dtype})


def reshape(x: T, shape: Sequence[int]) -> Given:
    return Given((x,), {"shape": np.reshape(x.data, shape).shape})


def permute(x: T, dims: Sequence[int]) -> Given:
    return Given((x,), {"axes": tuple(d % len(dims) for d in dims)})


def expand(x: T, shape: Sequence[int]) -> Given:
    old = (1,) * (len(shape) - x.data.ndim) + x.data.shape
    return Given((x,), {"shape": tuple(b if a == -1 else a for a, b in zip(shape, old, strict=True))})


def concat(xs: Sequence[T], dim: int = 0) -> Given:
    covered(len({x.dtype for x in xs}) == 1, "operands of several dtypes")
    covered(len({x.data.ndim for x in xs}) == 1, "joins tensors of several numbers of axes")
    return Given(tuple(xs), {"axis": dim})


def split(x: T, sizes: Sequence[int], dim: int = 0) -> Given:
    return Given((x,), {"sizes": tuple(sizes), "axis": dim})


def narrow(x: T, dim: int, start: Any, length: int) -> Given:
    first = int(start.data if isinstance(start, T) else start)
    first += x.data.shape[dim] if first < 0 else 0
    return Given((x,), {"axis": dim, "start": first, "stop": first + length})


def sliced(x: T, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Given:
    first, last, step = slice(start, end, step).indices(x.data.shape[dim])
    return Given((x,), {"axis": dim, "start": first, "stop": max(first, last), "step": step})


def index_select(x: T, dim: int, index: T) -> Given:
    covered(x.data.ndim > 0, "selects from a scalar")
    return Given((x, index), {"axis": dim}, lambda out: out if index.data.ndim else np.squeeze(out, dim))


def gather(x: T, dim: int, index: T, *, sparse_grad: bool = False) -> Given:
    covered(x.data.ndim > 0, "selects from a scalar")
    others = [i for i in range(x.data.ndim) if i != dim % x.data.ndim]
    fits = index.data.ndim == x.data.ndim and all(index.data.shape[i] == x.data.shape[i] for i in others)
    covered(fits, "gathers from a part of the other axes")
    return Given((x, index), {"axis": dim})


def scatter(x: T, dim: int, index: T, source: Any, reduce: str = "none", *, include_self: bool = True) -> Given:
    words = {"none": "none", "add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}
    covered(reduce in words, "means are not combined")
    covered(include_self, "leaves out what is there")
    covered(x.data.ndim > 0 and index.data.ndim == x.data.ndim, "writes to a scalar")
    updates = source.data[tuple(map(slice, index.data.shape))] if isinstance(source, T) else _tensor(source, x).data
    updates = np.broadcast_to(updates, index.data.shape)
    if words[reduce] == "none":
        places = list(np.indices(index.data.shape))
        places[dim] = index.data
        written = np.ravel_multi_index(tuple(places), x.data.shape).reshape(-1)
        covered(np.unique(written).size == written.size, "writes twice to one place")
    return Given((x, index, T(updates, x.dtype)), {"axis": dim, "reduction": words[reduce]})


def scatter_add(x: T, dim: int, index: T, source: T) -> Given:
    return scatter(x, dim, index, source, "add")


def nonzero(x: T, *, as_tuple: bool = False) -> Given:
    covered(not as_tuple, "returns a tuple")
    return Given((x,), {}, np.transpose)


# ---------------------------------------------------------------------------------------------------- reduction
def folded(x: T, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Given:
    """Several axes are folded as one: they are moved to the end and joined."""
    _kept(x, dtype)
    covered(x.data.ndim > 0, "folds a scalar")
    if isinstance(dim, int):
        return Given((x,), {"axis": dim, "keepdims": keepdim})
    axes = sorted(d % x.data.ndim for d in dim) if dim else list(range(x.data.ndim))
    moved = np.moveaxis(x.data, axes, range(-len(axes), 0))
    shape = moved.shape[: moved.ndim - len(axes)]
    joined = T(moved.reshape(*shape, math.prod(moved.shape[len(shape) :])), x.dtype)
    return Given((joined,), {"axis": -1}, lambda out: np.reshape(out, shape))


def added(x: T, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Given:
    covered(x.dtype.is_float or x.dtype is int64, "integers are added in int64")
    return folded(x, dim, keepdim, dtype=dtype)


def running(x: T, dim: int, *, dtype: DType | None = None) -> Given:
    _kept(x, dtype)
    covered(x.dtype.is_float or x.dtype is int64, "integers are added in int64")
    return Given((x,), {"axis": _axis(x, dim)})


def argmax(x: T, dim: Any = None, keepdim: bool = False) -> Given:
    covered(x.data.ndim > 0, "folds a scalar")
    if dim is None:
        return Given((T(x.data.reshape(-1), x.dtype),), {"axis": 0}, lambda out: np.reshape(out, ()))
    return Given((x,), {"axis": dim}, (lambda out: np.squeeze(out, dim)) if keepdim else _same)


def topk(x: T, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Given:
    covered(largest and sorted, "takes the smallest, or in any order")
    covered(x.data.ndim > 0, "folds a scalar")
    return Given(
        (T(np.swapaxes(x.data, dim, -1), x.dtype),), {"k": k}, lambda out: (np.swapaxes(out[0], dim, -1), None)
    )


def softmax(x: T, dim: int, dtype: DType | None = None) -> Given:
    _kept(x, dtype)
    covered(x.data.shape[_axis(x, dim)] > 0, "folds an empty axis")
    return Given((x,), {"axis": dim})


# ---------------------------------------------------------------------------------------------------- contraction
def linear(x: T, weight: T, bias: T | None = None) -> Given:
    covered(weight.data.ndim == 2, "the weight is no matrix")
    return Given((x, _weight(weight), bias), {})


def _weight(x: T) -> W:
    rows = math.prod(x.data.shape[:-1])
    covered(rows > 0 and x.data.shape[-1] > 0, "the weight is empty")
    return W(np.asarray(x.data, np.float64), ((x.dtype.name, rows),))


def embedding(weight: T, indices: T, **options: Any) -> Given:
    covered(options.get("max_norm") is None, "renormalises the weight")
    return Given((indices, _weight(weight)), {"dtype": weight.dtype})


def per_head(a: T, b: T) -> Given:
    turned = T(np.ascontiguousarray(np.swapaxes(a.data, 0, 1)), a.dtype)
    return Given((turned, _weight(b)), {"transposed": True}, lambda out: np.swapaxes(out, 0, 1))


# ---------------------------------------------------------------------------------------------------- layers
def normed(
    x: T, shape: Sequence[int], weights: Sequence[T | None], eps: float, fixed: dict[str, Any] | None = None
) -> Given:
    """Several axes are normalised as one."""
    covered(eps > 0, "eps is negative")
    lead, width = x.data.shape[: x.data.ndim - len(shape)], math.prod(shape)
    rows = T(x.data.reshape(*lead, width), x.dtype)
    flat = [w if w is None else T(w.data.reshape(width), w.dtype) for w in weights]
    return Given((rows, *flat), {"eps": eps}, lambda out: np.reshape(out, (*lead, width)), fixed or {})


def rms_norm(x: T, normalized_shape: Sequence[int], weight: T | None = None, eps: float | None = None) -> Given:
    eps = 2 * x.dtype.unit_roundoff if eps is None else eps
    gain = T(np.ones(normalized_shape), x.dtype) if weight is None else weight
    return normed(x, normalized_shape, [gain], eps, {"eps": eps})


def layer_norm(
    x: T, normalized_shape: Sequence[int], weight: T | None = None, bias: T | None = None, eps: float = 1e-5
) -> Given:
    return normed(x, normalized_shape, [weight, bias], eps)


def attention(
    q: T,
    k: T,
    v: T,
    attn_mask: T | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Given:
    """[batch, heads, length, width] become sequences side by side."""
    covered(dropout_p == 0, "drops at random")
    covered(min(x.data.ndim for x in (q, k, v)) > 2, "has no axis of heads")
    lead = np.broadcast_shapes(*(x.data.shape[:-3] for x in (q, k, v)))
    full = [np.broadcast_to(x.data, (*lead, *x.data.shape[-3:])).reshape(-1, *x.data.shape[-3:]) for x in (q, k, v)]
    batch, heads, rows, width = full[0].shape
    keys = full[1].shape[2]
    covered(not is_causal or rows == keys, "counts causal positions from the first key")
    bias = None
    if attn_mask is not None:
        mask = np.where(attn_mask.data, 0.0, -np.inf) if attn_mask.dtype is bool_ else attn_mask.data
        mask = np.broadcast_to(mask, (batch, heads, rows, keys))
        bias = T(mask.transpose(0, 2, 1, 3).reshape(batch * rows, heads, keys), q.dtype)
    flat = [T(x.transpose(0, 2, 1, 3).reshape(-1, x.shape[1], x.shape[3]), q.dtype) for x in full]
    starts = [T(np.arange(batch + 1) * n, int32) for n in (rows, keys)]

    def results(out: Any) -> Any:
        out = np.reshape(out, (-1, *np.shape(out)[-3:]))
        return out.transpose(0, 2, 1, 3).reshape(batch * rows, heads, -1), None

    attributes = {"scale": width**-0.5 if scale is None else scale, "causal": is_causal}
    return Given((*flat, *starts, None, bias), attributes, results)
