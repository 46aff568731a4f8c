"""Packed weights as the signed codes of weight-only products, repacked without rounding.

A value there is code * scale, with a code of 4 or 8 bits and one scale per 64 to 512 columns or per row; there is no
zero point. Ours are scale * (q - zero): the difference is the code where it has room. So 4-bit codes with any zero
point fit into 8 bits, and into 4 where all zero points are 8, as those of symmetric GPTQ. 8-bit codes fit where zero
points are 128, or happen to leave room. Groups of 32, such as those of Q4_0 and Q8_0, are narrower than a group there.
The layout is that of vllm-mlu's GPTQ method: two codes of 4 bits share a byte, the even column in the low half.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from xinheng.core.hal import WeightPart
from xinheng.core.ir.dtype import DType, bfloat16, float16, float32
from xinheng.core.schemes.group import GROUPS

from .._torch.planes import Planes, fields, planes
from .chips import CODE_GROUPS

CHUNK = 1 << 24
"""Codes that are widened at a time."""
_GROUPED = {
    f"int{bits}_g{group}{suffix}": kind
    for bits in (4, 8)
    for group in sorted(CODE_GROUPS.intersection(GROUPS))
    for suffix, kind in (("", float16), ("_bf16", bfloat16))
}
ROWS = "int8_row"
"""The scheme with a scale per row, in float32."""


def taken(scheme: str, dtype: DType) -> bool | str:
    """Whether weights of a scheme can be repacked for activations of a dtype, as far as their values allow it."""
    if scheme == ROWS:
        return True
    scale = _GROUPED.get(scheme)
    if scale is None:
        return f"reads codes of 4 and 8 bits in groups of {', '.join(map(str, sorted(CODE_GROUPS)))}, not {scheme}"
    return scale == dtype or f"scales of {scheme} are {scale}, which must be the dtype of activations, {dtype}"


def known(scheme: str) -> bool:
    """Whether a scheme is one of those."""
    return scheme == ROWS or scheme in _GROUPED


def coded(part: WeightPart) -> tuple[int, NDArray[np.int8], NDArray[Any], DType] | None:
    """Bits, codes [rows, ...], scales and their dtype of rows; None where a difference has no room in 8 bits."""
    held = planes(part.scheme, part.load())
    pieces, bits = [], 4 if held.coding == "nibbles" else 8
    for wide in _differences(held):
        low, high = (int(wide.min()), int(wide.max())) if wide.size else (0, 0)
        if low < -128 or high > 127:
            return None
        bits = 8 if low < -8 or high > 7 else bits
        pieces.append(wide.astype(np.int8))
    codes = np.concatenate(pieces)
    if part.scheme == ROWS:
        return bits, codes, held.scale[:, 0].astype(np.float32), float32
    kind = bfloat16 if held.scale.dtype == np.dtype(ml_dtypes.bfloat16) else float16
    return bits, _halved(codes) if bits == 4 else codes, held.scale, kind


def _differences(held: Planes) -> Iterator[NDArray[np.int32]]:
    """q - zero of some rows after others, [rows, columns]."""
    rows = len(held.codes)
    height = max(1, CHUNK // max(1, held.codes.shape[1]))
    for at in range(0, max(rows, 1), height):
        some = slice(at, at + height)
        q = fields(held.codes[some], 4, held.run) if held.coding == "nibbles" else held.codes[some]
        wide = q.astype(np.int32)
        if held.zero is not None:
            wide = (wide.reshape(len(wide), -1, held.group) - held.zero[some, :, None]).reshape(wide.shape)
        yield wide


def _halved(codes: NDArray[np.int8]) -> NDArray[np.int8]:
    """Codes of 4 bits in pairs of neighbours, the even column in the low half."""
    bits = codes.view(np.uint8)
    packed: NDArray[np.int8] = ((bits[:, ::2] & np.uint8(15)) | (bits[:, 1::2] << np.uint8(4))).view(np.int8)
    return packed
