"""Packed weights as planes: codes side by side in one tensor, scales in another, so that both are read in whole words.

All packed schemes have the form s (q - z) - m with codes q of four or eight bits. s and m belong to a group of columns
and are one number, or the product of one per group and one per 256 columns. Nothing is rounded: the values are those of
`Scheme.unpack`. Codes of two, three, five and six bits are kept as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from xinheng.core.schemes import scheme
from xinheng.core.schemes.gguf import IQ4_VALUES, MXFP4_VALUES

Bytes = NDArray[np.uint8]
SUPER = 256
"""Columns that share an outer factor."""


@dataclass(frozen=True)
class Planes:
    """The planes of some rows; arrays are [rows, ...] along columns, groups or runs of 256.

    Attributes:
        coding: "nibbles" (byte j of each run holds columns j and j + run), "bytes", "signed" or "e4m3".
        codes: uint8 or int8.
        scale: s, or its inner factor.
        group: columns per scale; 0 for one per row.
        run: bytes of a run of nibbles.
        offset: z where it is the same everywhere.
        outer: the outer factor of s.
        zero: z by group, int16.
        low: m by group, or its inner factor.
        outer_low: the outer factor of m.
    """

    coding: str
    codes: NDArray[Any]
    scale: NDArray[Any]
    group: int
    run: int = 16
    offset: int = 0
    outer: NDArray[Any] | None = None
    zero: NDArray[Any] | None = None
    low: NDArray[Any] | None = None
    outer_low: NDArray[Any] | None = None


def _number(blocks: Bytes, at: int, kind: Any) -> NDArray[Any]:
    """The number at byte `at` of each block, [rows, blocks]."""
    size = np.dtype(kind).itemsize
    column: NDArray[Any] = np.ascontiguousarray(blocks[..., at : at + size]).view(kind)
    return column[..., 0]


def _codes(blocks: NDArray[Any]) -> NDArray[Any]:
    """The codes of all blocks of a row side by side."""
    joined: NDArray[Any] = np.ascontiguousarray(blocks).reshape(len(blocks), -1)
    return joined


def fields(data: Bytes, bits: int, run: int) -> Bytes:
    """Fields of bytes [..., n] in runs: the lowest fields of a run, then the next, as bytes [..., n 8 / bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = data.reshape(*data.shape[:-1], -1, 1, run)
    found: Bytes = (runs >> shifts) & np.uint8(2**bits - 1)
    return found.reshape(*data.shape[:-1], -1)


def _word(blocks: Bytes, at: int) -> Bytes:
    """The 32 bits of the word at byte `at`."""
    return np.unpackbits(np.ascontiguousarray(blocks[..., at : at + 4]), axis=-1, bitorder="little")


def _q4_0(b: Bytes) -> Planes:
    return Planes("nibbles", _codes(b[..., 2:]), _number(b, 0, "<f2"), 32, offset=8)


def _q4_1(b: Bytes) -> Planes:
    return Planes("nibbles", _codes(b[..., 4:]), _number(b, 0, "<f2"), 32, low=-_number(b, 2, "<f2"))


def _q5_0(b: Bytes) -> Planes:
    return Planes("bytes", _codes(fields(b[..., 6:], 4, 16) | _word(b, 2) << 4), _number(b, 0, "<f2"), 32, offset=16)


def _q5_1(b: Bytes) -> Planes:
    codes = _codes(fields(b[..., 8:], 4, 16) | _word(b, 4) << 4)
    return Planes("bytes", codes, _number(b, 0, "<f2"), 32, low=-_number(b, 2, "<f2"))


def _q8_0(b: Bytes) -> Planes:
    return Planes("signed", _codes(b[..., 2:]).view(np.int8), _number(b, 0, "<f2"), 32)


def _q2_k(b: Bytes) -> Planes:
    return Planes(
        "bytes", _codes(fields(b[..., 16:80], 2, 32)), _codes(b[..., :16] & 15), 16, outer=_number(b, 80, "<f2"),
        low=_codes(b[..., :16] >> 4), outer_low=_number(b, 82, "<f2"),
    )  # fmt: skip


def _q3_k(b: Bytes) -> Planes:
    codes = fields(b[..., 32:96], 2, 32).astype(np.int8) - ((fields(b[..., :32], 1, 32) ^ 1) << 2).astype(np.int8)
    scales = fields(b[..., 96:104], 4, 8) | fields(b[..., 104:108], 2, 4) << 4
    signed = _codes(scales.astype(np.int8) - np.int8(32))
    return Planes("signed", _codes(codes), signed, 16, outer=_number(b, 108, "<f2"))


def _six_bits(b: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and minima of Q4_K and Q5_K, 8 of six bits per block."""
    first, second, third = b[..., 4:8], b[..., 8:12], b[..., 12:16]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=-1)
    return _codes(scales), _codes(minima)


def _q4_k(b: Bytes) -> Planes:
    scale, low = _six_bits(b)
    outer, outer_low = _number(b, 0, "<f2"), _number(b, 2, "<f2")
    return Planes("nibbles", _codes(b[..., 16:]), scale, 32, 32, outer=outer, low=low, outer_low=outer_low)


def _q5_k(b: Bytes) -> Planes:
    scale, low = _six_bits(b)
    codes = _codes(fields(b[..., 48:], 4, 32) | fields(b[..., 16:48], 1, 32) << 4)
    outer, outer_low = _number(b, 0, "<f2"), _number(b, 2, "<f2")
    return Planes("bytes", codes, scale, 32, outer=outer, low=low, outer_low=outer_low)


def _q6_k(b: Bytes) -> Planes:
    codes = fields(b[..., :128], 4, 64) | fields(b[..., 128:192], 2, 32) << 4
    scale = _codes(b[..., 192:208]).view(np.int8)
    return Planes("bytes", _codes(codes), scale, 16, offset=32, outer=_number(b, 208, "<f2"))


def _iq4_nl(b: Bytes) -> Planes:
    levels = np.asarray(IQ4_VALUES, np.int8)[fields(b[..., 2:], 4, 16)]
    return Planes("signed", _codes(levels), _number(b, 0, "<f2"), 32)


def _iq4_xs(b: Bytes) -> Planes:
    scales = fields(b[..., 4:8], 4, 1) | fields(b[..., 2:4], 2, 1) << 4
    levels = np.asarray(IQ4_VALUES, np.int8)[fields(b[..., 8:], 4, 16)]
    signed = _codes(scales.astype(np.int8) - np.int8(32))
    return Planes("signed", _codes(levels), signed, 32, outer=_number(b, 0, "<f2"))


def _mxfp4(b: Bytes) -> Planes:
    doubled = np.asarray(MXFP4_VALUES, np.int8)[fields(b[..., 1:], 4, 16)]
    return Planes("signed", _codes(doubled), np.ldexp(np.float32(1), b[..., 0].astype(np.int32) - 128), 32)


def _grouped(bits: int, group: int, kind: Any) -> Callable[[Bytes], Planes]:
    coding = "nibbles" if bits == 4 else "bytes"

    def planes(b: Bytes) -> Planes:
        return Planes(coding, _codes(b[..., 4:]), _number(b, 0, kind), group, zero=_number(b, 2, "<i2"))

    return planes


def _float8(b: Bytes) -> Planes:
    return Planes("e4m3", _codes(b[..., 4:]), _number(b, 0, "<f4"), 128)


_BLOCKS: dict[str, Callable[[Bytes], Planes]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_nl": _iq4_nl,
    "iq4_xs": _iq4_xs,
    "mxfp4": _mxfp4,
    "float8_e4m3_b128": _float8,
    **{
        f"int{bits}_g{group}{suffix}": _grouped(bits, group, kind)
        for bits in (4, 8)
        for group in (32, 64, 128)
        for suffix, kind in (("", "<f2"), ("_bf16", ml_dtypes.bfloat16))
    },
}
_ROWS = {"int8_row": "signed", "float8_e4m3_row": "e4m3"}
SCHEMES = frozenset({*_BLOCKS, *_ROWS})
"""The packed schemes that have planes."""


def planes(coding: str, data: Bytes) -> Planes:
    """The planes of rows uint8 [rows, row_bytes] in one of `SCHEMES`."""
    rows = np.ascontiguousarray(data)
    if coding in _ROWS:
        scale = np.ascontiguousarray(rows[:, :4]).view("<f4")
        codes = np.ascontiguousarray(rows[:, 4:])
        return Planes(_ROWS[coding], codes.view(np.int8) if _ROWS[coding] == "signed" else codes, scale, 0)
    return _BLOCKS[coding](rows.reshape(len(rows), -1, scheme(coding).block_bytes))
