"""Eight-bit floats with scales: one per row (or per weight), or one per tile of 128 by 128 values.

`float8_e4m3_row` is a float32 scale and a byte per value; `float8_e4m3_b128` codes 128 neighbouring values of a row as
a float32 scale and a byte each, so that the scale of a tile is repeated in each of its rows. The scale multiplies, also
where a checkpoint calls it `weight_scale_inv`.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..ir.dtype import float8_e4m3fn, round_to
from .decoder import Bytes, decoder, finite
from .int8 import rows_with_scale
from .scheme import Scheme, register

_HEAD, _TILE = 4, 128


def _decode_row(head: Bytes, blocks: Bytes, dtype: Any) -> Any:
    return head.view("<f4").astype(dtype) * blocks[..., 0].view(ml_dtypes.float8_e4m3fn).astype(dtype)


def _decode_block(_: Bytes, blocks: Bytes, dtype: Any) -> Any:
    scale = np.ascontiguousarray(blocks[..., :_HEAD]).view("<f4").astype(dtype)
    return scale * blocks[..., _HEAD:].view(ml_dtypes.float8_e4m3fn).astype(dtype)


def _coded(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Codes of values and the scale of each run of the last axis: its largest magnitude / 448, or 1 for zeros."""
    top = np.max(np.abs(x), axis=-1, keepdims=True, initial=0)
    scale = np.where(top > 0, top / np.float32(float8_e4m3fn.largest), np.float32(1)).astype(np.float32)
    scale = np.where(scale > 0, scale, np.finfo(np.float32).smallest_subnormal).astype(np.float32)
    near = np.clip(x.astype(np.float64) / scale, -float8_e4m3fn.largest, float8_e4m3fn.largest)
    return round_to(near, float8_e4m3fn).astype(ml_dtypes.float8_e4m3fn), scale


def _pack_row(values: NDArray[Any]) -> Bytes:
    codes, scale = _coded(finite("float8_e4m3_row", 1, values)[..., 0])
    packed = from_rows(codes, scale)
    return packed.reshape(*np.shape(values)[:-1], packed.shape[-1])


def _pack_block(values: NDArray[Any]) -> Bytes:
    """A scale for each 128 values of each row; `from_tiles` takes scales that rows share."""
    codes, scale = _coded(finite("float8_e4m3_b128", _TILE, values))
    packed = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=-1)
    return packed.reshape(*np.shape(values)[:-1], packed.shape[-2] * packed.shape[-1])


def _bytes(codes: NDArray[Any]) -> Bytes:
    if codes.dtype not in (np.uint8, ml_dtypes.float8_e4m3fn) or codes.ndim != 2:
        raise ValueError(f"codes must be float8_e4m3fn [rows, columns] or their bytes, not {codes.dtype}")
    return np.ascontiguousarray(codes).view(np.uint8)


def from_rows(codes: NDArray[Any], scale: NDArray[Any]) -> Bytes:
    """Rows of scheme `float8_e4m3_row` from codes [rows, columns] and a scale of one, [rows] or [rows, 1] elements.

    Raises:
        ValueError: codes or scale have another shape or dtype.
    """
    return rows_with_scale(_bytes(codes), scale)


def from_tiles(codes: NDArray[Any], scale: NDArray[Any], tile: tuple[int, int] = (_TILE, _TILE)) -> Bytes:
    """Rows of scheme `float8_e4m3_b128` from codes [rows, columns] and the scale of each tile.

    scale is [ceil(rows / tile rows), ceil(columns / tile columns)] (`weight_scale_inv` and `weight_block_size`).

    Raises:
        ValueError: columns or tiles are no multiple of 128 wide, or shapes do not fit.
    """
    data = _bytes(codes)
    rows, columns = data.shape
    if columns % _TILE or tile[1] % _TILE:
        raise ValueError(f"tiles {list(tile)} of {columns} columns are no multiple of {_TILE} wide; expand this weight")
    wanted = (-(-rows // tile[0]), -(-columns // tile[1]))
    if scale.shape != wanted:
        raise ValueError(f"a weight of {rows} x {columns} has scales {list(wanted)}, not {list(scale.shape)}")
    spread = np.repeat(np.repeat(scale.astype("<f4"), tile[0], axis=0)[:rows], tile[1] // _TILE, axis=1)
    head = np.ascontiguousarray(spread[:, : columns // _TILE])[..., None].view(np.uint8)
    blocks: Bytes = np.concatenate([head, data.reshape(rows, -1, _TILE)], axis=-1)
    return blocks.reshape(rows, -1)


register(Scheme("float8_e4m3_row", 1, 1, decoder("float8_e4m3_row", 1, 1, _HEAD, _decode_row), _pack_row, header=_HEAD))
_BLOCK_BYTES = _HEAD + _TILE
_UNPACK = decoder("float8_e4m3_b128", _TILE, _BLOCK_BYTES, 0, _decode_block)
register(Scheme("float8_e4m3_b128", _TILE, _BLOCK_BYTES, _UNPACK, _pack_block))
