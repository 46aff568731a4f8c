"""The packed block formats of GGUF files, decoded exactly and, for the plain ones, encoded like the reference.

Source of every layout: ggml's `ggml-common.h` (structs) and `ggml-quants.c` (`dequantize_row_*`, `quantize_row_*_ref`),
and the `gguf` package's `quants.py`, whose float32 results are reproduced bit for bit. `d` and `m` (or `dmin`) are
float16 factors. Every product below has at most 24 significant bits, so float32 arithmetic is exact up to the final
subtraction of the minimum, and float64 arithmetic is exact throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scheme import Pack, Scheme, Unpack, register

Bytes = NDArray[np.uint8]
Values = Any  # an array of the working float type; numpy's annotations turn arithmetic on it into Any

CHUNK = 1 << 20  # values decoded at a time, to keep temporaries in the cache
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the e2m1 value


def _halves(blocks: Bytes, start: int, dtype: Any) -> Values:
    """The float16 at byte `start` of each block, as a column [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(dtype)


def _fields(data: Bytes, bits: int, run: int) -> Bytes:
    """Split bytes [n, m] into `bits`-wide fields, lowest first, in runs: `run` low fields, then the next `run`, …"""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    fields = (data.reshape(len(data), -1, 1, run) >> shifts) & np.uint8((1 << bits) - 1)
    return fields.reshape(len(data), -1)


def _bits(blocks: Bytes, start: int) -> Bytes:
    """The 32 bits of the little-endian word at byte `start`, [n, 32]."""
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")


def _groups(factor: Values, values: Values) -> Values:
    """Multiply factors [n, g] into values [n, g * k]."""
    shaped = values.reshape(*factor.shape, -1).astype(factor.dtype)
    return np.multiply(shaped, factor[:, :, None], out=shaped)


def _q4_0(blocks: Bytes, dtype: Any) -> Values:
    """d, 16 bytes: d (q - 8); low nibbles are values 0-15, high nibbles 16-31."""
    return _halves(blocks, 0, dtype) * (_fields(blocks[:, 2:], 4, 16).astype(np.int8) - np.int8(8))


def _q4_1(blocks: Bytes, dtype: Any) -> Values:
    """d, m, 16 bytes: d q + m."""
    return _halves(blocks, 0, dtype) * _fields(blocks[:, 4:], 4, 16) + _halves(blocks, 2, dtype)


def _q5_0(blocks: Bytes, dtype: Any) -> Values:
    """d, 32 high bits, 16 bytes: d (q - 16)."""
    q = _fields(blocks[:, 6:], 4, 16) | (_bits(blocks, 2) << np.uint8(4))
    return _halves(blocks, 0, dtype) * (q.astype(np.int8) - np.int8(16))


def _q5_1(blocks: Bytes, dtype: Any) -> Values:
    """d, m, 32 high bits, 16 bytes: d q + m."""
    q = _fields(blocks[:, 8:], 4, 16) | (_bits(blocks, 4) << np.uint8(4))
    return _halves(blocks, 0, dtype) * q + _halves(blocks, 2, dtype)


def _q8_0(blocks: Bytes, dtype: Any) -> Values:
    """d, 32 signed bytes: d q."""
    return _halves(blocks, 0, dtype) * blocks[:, 2:].view(np.int8)


def _q2_k(blocks: Bytes, dtype: Any) -> Values:
    """16 bytes of scale (low nibble) and minimum (high), 64 bytes of two-bit fields, d, dmin: d s q - dmin m."""
    scales = blocks[:, :16]
    values = _groups(_halves(blocks, 80, dtype) * (scales & np.uint8(15)), _fields(blocks[:, 16:80], 2, 32))
    return values - (_halves(blocks, 82, dtype) * (scales >> np.uint8(4)))[:, :, None]


def _q3_k(blocks: Bytes, dtype: Any) -> Values:
    """32 bytes of high bits, 64 bytes of two-bit fields, 12 of six-bit scales, d: d (s - 32) (q - 4 unless bit)."""
    high = _fields(blocks[:, :32], 1, 32)
    q = _fields(blocks[:, 32:96], 2, 32).astype(np.int8) - ((high ^ np.uint8(1)) << np.uint8(2)).astype(np.int8)
    scales = _fields(blocks[:, 96:104], 4, 8) | (_fields(blocks[:, 104:108], 2, 4) << np.uint8(4))
    return _groups(_halves(blocks, 108, dtype) * (scales.astype(np.int8) - np.int8(32)), q)


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight six-bit scales and eight six-bit minima from the 12 bytes of Q4_K and Q5_K; each [n, 8]."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    low, top = np.uint8(0x3F), np.uint8(0x30)
    scales = np.concatenate([first & low, (third & np.uint8(15)) | ((first >> np.uint8(2)) & top)], axis=1)
    minima = np.concatenate([second & low, (third >> np.uint8(4)) | ((second >> np.uint8(2)) & top)], axis=1)
    return scales, minima


def _q4_k(blocks: Bytes, dtype: Any) -> Values:
    """d, dmin, 12 bytes of scales and minima, 128 bytes: d s q - dmin m; 32 bytes hold two groups of 32."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    values = _groups(_halves(blocks, 0, dtype) * scales, _fields(blocks[:, 16:], 4, 32))
    return values - (_halves(blocks, 2, dtype) * minima)[:, :, None]


def _q5_k(blocks: Bytes, dtype: Any) -> Values:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles: bit g of byte i belongs to value i of group g."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    q = _fields(blocks[:, 48:], 4, 32) | (_fields(blocks[:, 16:48], 1, 32) << np.uint8(4))
    values = _groups(_halves(blocks, 0, dtype) * scales, q)
    return values - (_halves(blocks, 2, dtype) * minima)[:, :, None]


def _q6_k(blocks: Bytes, dtype: Any) -> Values:
    """128 bytes of nibbles, 64 bytes of two-bit fields, 16 signed scales, d: d s (q - 32) in groups of 16."""
    q = _fields(blocks[:, :128], 4, 64) | (_fields(blocks[:, 128:192], 2, 32) << np.uint8(4))
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return _groups(_halves(blocks, 208, dtype) * scales, q.astype(np.int8) - np.int8(32))


def _iq4_nl(blocks: Bytes, dtype: Any) -> Values:
    """d, 16 bytes: d times a table of 16 levels; nibble order as Q4_0."""
    return _halves(blocks, 0, dtype) * np.asarray(IQ4_VALUES, np.int8)[_fields(blocks[:, 2:], 4, 16)]


def _iq4_xs(blocks: Bytes, dtype: Any) -> Values:
    """d, 16 bits of high scale bits, 4 bytes of low scale bits, 128 bytes: d (s - 32) times the table of IQ4_NL."""
    # A nibble stream is in plain order when each run is a single byte.
    scales = _fields(blocks[:, 4:8], 4, 1) | (_fields(blocks[:, 2:4], 2, 1) << np.uint8(4))
    levels = np.asarray(IQ4_VALUES, np.int8)[_fields(blocks[:, 8:], 4, 16)]
    return _groups(_halves(blocks, 0, dtype) * (scales.astype(np.int8) - np.int8(32)), levels)


def _mxfp4(blocks: Bytes, dtype: Any) -> Values:
    """An exponent byte e, 16 bytes: 2^(e - 127) times an e2m1 value; e = 255 is an ordinary exponent, as in ggml."""
    factor = np.ldexp(np.ones(1, np.float64), blocks[:, :1].astype(np.int32) - 128)
    return (factor * np.asarray(MXFP4_VALUES, np.int8)[_fields(blocks[:, 1:], 4, 16)]).astype(dtype)


def _unpacker(name: str, decode: Callable[[Bytes, Any], Values], block: int, block_bytes: int) -> Unpack:
    def unpack(data: Bytes, dtype: Any = np.float32) -> Values:
        target = np.dtype(dtype)
        if target not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"scheme {name!r} decodes to float32 or float64, not {target}")
        if data.dtype != np.uint8 or data.ndim == 0 or data.shape[-1] % block_bytes:
            raise ValueError(
                f"scheme {name!r} decodes uint8 [..., n * {block_bytes}], not {data.dtype} {list(data.shape)}"
            )
        blocks = np.ascontiguousarray(data).reshape(-1, block_bytes)
        out = np.empty((len(blocks), block), target)
        step = CHUNK // block
        with np.errstate(all="ignore"):
            for start in range(0, len(blocks), step):
                part = blocks[start : start + step]
                out[start : start + step] = decode(part, target).reshape(len(part), block)
        return out.reshape(*data.shape[:-1], data.shape[-1] // block_bytes * block)

    return unpack


def _packer(name: str, encode: Callable[[Values], tuple[Values, ...]], block: int) -> Pack:
    def pack(values: Values) -> Bytes:
        x = np.ascontiguousarray(values, np.float32)
        if x.ndim == 0 or x.shape[-1] % block:
            raise ValueError(f"scheme {name!r} encodes [..., n * {block}], not {list(x.shape)}")
        if not np.isfinite(x).all():
            raise ValueError(f"scheme {name!r} encodes finite values only")
        blocks = x.reshape(-1, block)
        with np.errstate(all="ignore"):
            *factors, q = encode(blocks)
            halves = [factor.astype(np.float16) for factor in factors]
        if not all(np.isfinite(half).all() for half in halves):
            raise ValueError(f"scheme {name!r} cannot scale values of this size: a factor overflows float16")
        coded: Bytes = np.concatenate([*(half.view(np.uint8) for half in halves), q], axis=1)
        return coded.reshape(*x.shape[:-1], x.shape[-1] // block * coded.shape[1])

    return pack


def _inverse(d: Values) -> Values:
    return np.where(d == 0, np.float32(0), np.float32(1) / d)


def _nibbles(q: Bytes) -> Bytes:
    """Values [n, 32] to nibbles [n, 16]: 0-15 low, 16-31 high; bits above the nibble are dropped."""
    return (q[:, :16] & np.uint8(15)) | (q[:, 16:] << np.uint8(4))


def _symmetric(x: Values, levels: int) -> tuple[Values, Bytes]:
    """d = (signed value of largest magnitude) / -levels, q = trunc(x / d + levels + 1/2) capped at 2 levels - 1."""
    d = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1) / np.float32(-levels)
    q = np.trunc(x * _inverse(d) + np.float32(levels + 0.5))
    return d, q.astype(np.uint8).clip(0, 2 * levels - 1)


def _affine(x: Values, levels: int) -> tuple[Values, Values, Bytes]:
    """m = smallest value, d = (largest - m) / levels, q = trunc((x - m) / d + 1/2)."""
    m = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - m) / np.float32(levels)
    q = np.trunc((x - m) * _inverse(d) + np.float32(0.5))
    return d, m, q.astype(np.uint8).clip(0, levels)


def _with_high_bits(q: Bytes) -> Bytes:
    return np.concatenate([np.packbits(q >> np.uint8(4), axis=1, bitorder="little"), _nibbles(q)], axis=1)


def _pack_q4_0(x: Values) -> tuple[Values, ...]:
    d, q = _symmetric(x, 8)
    return d, _nibbles(q)


def _pack_q4_1(x: Values) -> tuple[Values, ...]:
    d, m, q = _affine(x, 15)
    return d, m, _nibbles(q)


def _pack_q5_0(x: Values) -> tuple[Values, ...]:
    d, q = _symmetric(x, 16)
    return d, _with_high_bits(q)


def _pack_q5_1(x: Values) -> tuple[Values, ...]:
    d, m, q = _affine(x, 31)
    return d, m, _with_high_bits(q)


def _pack_q8_0(x: Values) -> tuple[Values, ...]:
    """d = largest magnitude / 127, q = x / d rounded half away from zero."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(d)
    q = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    return d, q.astype(np.int8).view(np.uint8)


def _register(name: str, block: int, size: int, decode: Callable[[Bytes, Any], Values], encode: Any = None) -> None:
    packer = None if encode is None else _packer(name, encode, block)
    register(Scheme(name, block, size, _unpacker(name, decode, block, size), packer))


_register("q4_0", 32, 18, _q4_0, _pack_q4_0)
_register("q4_1", 32, 20, _q4_1, _pack_q4_1)
_register("q5_0", 32, 22, _q5_0, _pack_q5_0)
_register("q5_1", 32, 24, _q5_1, _pack_q5_1)
_register("q8_0", 32, 34, _q8_0, _pack_q8_0)
_register("q2_k", 256, 84, _q2_k)
_register("q3_k", 256, 110, _q3_k)
_register("q4_k", 256, 144, _q4_k)
_register("q5_k", 256, 176, _q5_k)
_register("q6_k", 256, 210, _q6_k)
_register("iq4_nl", 32, 18, _iq4_nl)
_register("iq4_xs", 256, 136, _iq4_xs)
_register("mxfp4", 32, 17, _mxfp4)
