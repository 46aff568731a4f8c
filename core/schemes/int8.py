"""Rows of signed bytes with one scale each: the weights of W8A8 checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decoder import Bytes, decoder, finite
from .scheme import Scheme, register

_HEAD = 4
"""Bytes of the scale in front of a row, float32."""


def _decode(head: Bytes, blocks: Bytes, dtype: Any) -> Any:
    return head.view("<f4").astype(dtype) * blocks[..., 0].view(np.int8).astype(dtype)


def _pack(values: NDArray[Any]) -> Bytes:
    """scale = largest magnitude / 127 (1 for a row of zeros), codes = value / scale, halves to the even one."""
    x = finite("int8_row", 1, values)[..., 0]
    top = np.max(np.abs(x), axis=-1, keepdims=True, initial=0)
    scale = np.where(top > 0, top / np.float32(127), np.float32(1)).astype(np.float32)
    # a scale that underflows leaves nothing to divide by
    scale = np.where(scale > 0, scale, np.finfo(np.float32).smallest_subnormal)
    packed = from_rows(np.clip(np.rint(x / scale), -127, 127).astype(np.int8), scale)
    return packed.reshape(*np.shape(values)[:-1], packed.shape[-1])


def from_rows(codes: NDArray[Any], scale: NDArray[Any]) -> Bytes:
    """Rows of scheme `int8_row` from codes int8 [rows, columns] and a scale of one, [rows] or [rows, 1] elements.

    Raises:
        ValueError: the scale has another shape.
    """
    return rows_with_scale(np.ascontiguousarray(codes, np.int8).view(np.uint8), scale)


def rows_with_scale(codes: Bytes, scale: NDArray[Any]) -> Bytes:
    """Rows of bytes behind a float32 scale each."""
    if np.size(scale) not in (1, codes.shape[0]):
        raise ValueError(f"a weight of {codes.shape[0]} rows has one scale or one per row, not {list(np.shape(scale))}")
    column = np.broadcast_to(np.asarray(scale).astype("<f4").reshape(-1, 1), (codes.shape[0], 1))
    return np.concatenate([np.ascontiguousarray(column).view(np.uint8), codes], axis=1)


register(Scheme("int8_row", 1, 1, decoder("int8_row", 1, 1, _HEAD, _decode), _pack, header=_HEAD))
