"""Tensors of MindSpore: their dtypes, and the way of numpy arrays into them and back."""

from __future__ import annotations

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


def converted(x: Any, kind: Any) -> Any:
    """A tensor in another of MindSpore's dtypes, by the rule of `cast`.

    This is what `astype` does; but its operator takes almost a millisecond whatever the size, a copy a hundredth of it.
    """
    if x.dtype == kind:
        return x
    made = blank(x.shape, kind)
    if x.size:
        made.copy_(x)
    return made
