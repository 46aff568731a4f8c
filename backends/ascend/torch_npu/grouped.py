"""Packed weights of groups, repacked exactly into what `npu_weight_quant_batchmatmul` reads.

A value there is (code + offset) * scale, with signed codes. Ours are scale * (q - zero): the code is q - 2^(bits - 1)
and the offset 2^(bits - 1) - zero. Both are small integers, which the dtype of activations holds exactly; it holds the
scales too, as the kernel runs only where activations have their dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.ir.dtype import DType, bfloat16, float16

COLUMNS = 65535
"""The most columns of a weight."""
ROWS = 65504
"""Rows that one product takes, a multiple of 32; wider weights are divided."""

Codes = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]
"""Signed codes [rows, columns], scales [rows, groups] and offsets like them."""


def scale_dtype(name: str, rows: int, columns: int) -> DType | str:
    """What activations must be for a weight of a scheme, or why it cannot be repacked."""
    coding = _CODINGS.get(name)
    if coding is None:
        return f"reads groups of 4 and 8 bits with a scale of 16 bits, not {name}"
    if columns > COLUMNS:
        return f"takes weights of at most {COLUMNS} columns, not {columns}"
    if coding.bits == 4 and rows % 8:
        return f"takes 4-bit weights of a multiple of 8 rows, not {rows}"
    return coding.dtype


def fits(name: str, rows: int, columns: int) -> bool:
    """Whether rows of a scheme can be repacked."""
    return not isinstance(scale_dtype(name, rows, columns), str)


class Coding:
    """How rows of a scheme are codes, scales and zeros."""

    def __init__(self, bits: int, group: int, dtype: DType, unpack: Callable[[NDArray[Any]], Codes]) -> None:
        self.bits, self.group, self.dtype, self._unpack = bits, group, dtype, unpack

    def unpack(self, data: NDArray[np.uint8]) -> Codes:
        """Rows of bytes as codes, scales and offsets."""
        return self._unpack(data)


def coding_of(name: str) -> Coding | None:
    """The coding of a scheme, if it is one of groups."""
    return _CODINGS.get(name)


def _nibbles(data: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Bytes [..., n] as 4-bit codes [..., 2 n]: in each run of 16 bytes first the low halves, then the high ones."""
    runs = data.reshape(*data.shape[:-1], -1, 1, 16)
    both = np.concatenate([runs & np.uint8(15), runs >> np.uint8(4)], axis=-2)
    codes: NDArray[np.int16] = both.reshape(*data.shape[:-1], -1).astype(np.int16)
    return codes


def _grouped(bits: int, group: int, kept: DType) -> Callable[[NDArray[Any]], Codes]:
    """Blocks of scale, zero point (int16) and unsigned codes."""

    def unpack(data: NDArray[Any]) -> Codes:
        blocks = np.ascontiguousarray(data).reshape(len(data), -1, 4 + group * bits // 8)
        scale = np.ascontiguousarray(blocks[..., :2]).view(kept.numpy)[..., 0]
        zero = np.ascontiguousarray(blocks[..., 2:4]).view("<i2")[..., 0].astype(np.int32)
        fields = _nibbles(blocks[..., 4:]) if bits == 4 else blocks[..., 4:].astype(np.int16)
        half = 2 ** (bits - 1)
        return (fields - half).astype(np.int8).reshape(len(data), -1), scale, (half - zero).astype(np.float32)

    return unpack


def _q4_0(data: NDArray[Any]) -> Codes:
    blocks = np.ascontiguousarray(data).reshape(len(data), -1, 18)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    return (_nibbles(blocks[..., 2:]) - 8).astype(np.int8).reshape(len(data), -1), scale, None


def _q8_0(data: NDArray[Any]) -> Codes:
    blocks = np.ascontiguousarray(data).reshape(len(data), -1, 34)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    return blocks[..., 2:].view(np.int8).reshape(len(data), -1), scale, None


_CODINGS = {"q4_0": Coding(4, 32, float16, _q4_0), "q8_0": Coding(8, 32, float16, _q8_0)} | {
    f"int{bits}_g{group}{suffix}": Coding(bits, group, kept, _grouped(bits, group, kept))
    for bits in (4, 8)
    for group in (32, 64, 128)
    for suffix, kept in (("", float16), ("_bf16", bfloat16))
}
