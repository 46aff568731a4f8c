"""Buffers of the MindSpore runtime: tensors, weights and caches, and the way of numpy arrays into tensors and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from numpy.typing import NDArray

from xinheng.core.ir.dtype import DType, bfloat16, cast_to, dtype

Tensor = ms.Tensor

DTYPES: dict[DType, Any] = {
    dtype(name): getattr(ms, "bool_" if name == "bool" else name)
    for name in [
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint64",
        "uint32",
        "uint16",
        "uint8",
        "bool",
    ]
}
"""Our element types as MindSpore's. float64 is left out because the chips have none; kernels here use it inside."""

NAMES: dict[Any, DType] = {value: key for key, value in DTYPES.items()}


def to_tensor(array: NDArray[Any], kind: DType) -> Any:
    """A copy of an array as a tensor of `kind`, rounded once."""
    if array.dtype != kind.numpy:
        array = cast_to(array, kind)
    plain = np.ascontiguousarray(array).reshape(array.shape)
    # MindSpore knows the numpy bfloat16 only of some versions of ml_dtypes and numpy, so that the bits cross
    return Tensor(plain.view(np.int16)).view(ms.bfloat16) if kind is bfloat16 else Tensor(plain)


def blank(shape: tuple[int, ...], kind: Any) -> Any:
    """A tensor of one of MindSpore's dtypes whose values are not set."""
    if kind == ms.bfloat16:
        return Tensor(np.empty(shape, np.int16)).view(ms.bfloat16)
    return Tensor(np.empty(shape, np.float64 if kind == ms.float64 else NAMES[kind].numpy))


def to_array(tensor: Any) -> NDArray[Any]:
    """A copy of a tensor as an array of its own dtype."""
    if tensor.dtype == ms.bfloat16:
        bits: NDArray[Any] = np.array(tensor.view(ms.int16).asnumpy())
        return bits.view(bfloat16.numpy)
    return np.array(tensor.asnumpy())


@dataclass(frozen=True, slots=True)
class MindSporeWeight:
    """A weight as a float32 tensor of the shape of its source; `layout` says what became of the stored form."""

    values: Any
    layout: str


@dataclass(frozen=True, slots=True)
class MindSporePagedKV:
    """A paged cache: k [blocks, block_size, heads, k_dim] and v [blocks, block_size, heads, v_dim].

    `kind` is the dtype that its values are rounded to. The CPU target cannot write into bfloat16 tensors by index, so
    that a bfloat16 cache is held in float32.
    """

    k: Any
    v: Any
    kind: DType
