"""Groups of 4-bit or 8-bit codes with a scale and a zero point each, and what GPTQ, AWQ and compressed-tensors store.

Scheme `int4_g128` codes 128 neighbouring values of a row as scale (float16), zero (int16) and 64 bytes, and means
scale * (q - zero) with q from 0 to 15; each run of 16 bytes holds 32 values, first the low nibbles, then the high ones,
as in Q4_0 of GGUF. `int8_g128` has a byte per code. Groups of 32 and 64 exist too, and with bfloat16 scales
(`int4_g128_bf16`). Checkpoints are brought into this one layout exactly: larger groups repeat their scale, 2-bit and
3-bit codes are held as 4-bit ones, and a zero point of 16, which the first GPTQ format can say, has room.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .decoder import Bytes, decoder, finite
from .scheme import Pack, Scheme, register

GROUPS = (128, 64, 32)
_SCALES = {"": np.dtype(np.float16), "_bf16": np.dtype(ml_dtypes.bfloat16)}
_HEAD = 4
"""Bytes of scale and zero point."""


def _fields(data: Bytes) -> Bytes:
    """The codes [..., 2 n] in bytes [..., n] of nibbles."""
    runs = data.reshape(*data.shape[:-1], -1, 1, 16)
    fields: Bytes = np.concatenate([runs & np.uint8(15), runs >> np.uint8(4)], axis=-2)
    return fields.reshape(*data.shape[:-1], -1)


def _nibbles(codes: Bytes) -> Bytes:
    """The inverse of `_fields`."""
    runs = codes.reshape(*codes.shape[:-1], -1, 2, 16)
    packed: Bytes = runs[..., 0, :] | (runs[..., 1, :] << np.uint8(4))
    return packed.reshape(*codes.shape[:-1], -1)


def _assembled(scale: NDArray[Any], zero: NDArray[Any], codes: Bytes, bits: int) -> Bytes:
    """Rows of bytes of scale and zero [rows, groups] and codes [rows, groups, group]."""
    head = [np.ascontiguousarray(part)[..., None].view(np.uint8) for part in (scale, zero.astype("<i2"))]
    blocks: Bytes = np.concatenate([*head, _nibbles(codes) if bits == 4 else codes], axis=-1)
    return blocks.reshape(len(codes), -1)


def _define(bits: int, group: int, suffix: str) -> None:
    name, kept = f"int{bits}_g{group}{suffix}", _SCALES[suffix]
    size, levels = _HEAD + group * bits // 8, 2**bits - 1

    def decode(_: Bytes, blocks: Bytes, dtype: Any) -> Any:
        scale = np.ascontiguousarray(blocks[..., :2]).view(kept).astype(dtype)
        zero = np.ascontiguousarray(blocks[..., 2:_HEAD]).view("<i2").astype(np.int32)
        codes = _fields(blocks[..., _HEAD:]) if bits == 4 else blocks[..., _HEAD:]
        return scale * (codes - zero).astype(dtype)

    def pack(values: NDArray[Any]) -> Bytes:
        """Scale and zero point of smallest and largest value, zero included, as GPTQ's quantizer finds them."""
        x = finite(name, group, values)
        low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
        low, high = np.where(low == high, -1, low), np.where(low == high, 1, high)
        with np.errstate(over="ignore"):
            scale = ((high - low) / np.float32(levels)).astype(kept)
        if not np.isfinite(scale.astype(np.float32)).all():
            raise ValueError(f"scheme {name!r} cannot scale values of this size: a scale overflows {kept.name}")
        wide = np.maximum(scale.astype(np.float32), np.float32(2.0**-24))
        scale = wide.astype(kept)
        zero = np.clip(np.rint(-low / wide), 0, levels)
        codes = np.clip(np.rint(x / wide[..., None]) + zero[..., None], 0, levels)
        packed = _assembled(scale, zero, codes.astype(np.uint8), bits)
        return packed.reshape(*np.shape(values)[:-1], packed.shape[-1])

    encode: Pack = pack
    register(Scheme(name, group, size, decoder(name, group, size, 0, decode), encode))


for _bits in (4, 8):
    for _group in GROUPS:
        for _suffix in _SCALES:
            _define(_bits, _group, _suffix)


class GroupWeight(NamedTuple):
    """A weight in one of these schemes: data uint8 [out, row_bytes].

    Where `order` int64 [in] is given, column j of the weight belongs to input order[j]: it multiplies x[..., order].
    """

    scheme: str
    data: Bytes
    order: NDArray[np.int64] | None = None


def unpack_words(words: NDArray[Any], bits: int, axis: int) -> Bytes:
    """Fields of `bits` bits in 32-bit words along an axis, lowest first, crossing words where 32 is no multiple."""
    if (words.shape[axis] * 32) % bits:
        raise ValueError(f"{words.shape[axis]} words do not hold fields of {bits} bits")
    along = np.moveaxis(np.ascontiguousarray(words).view(np.uint32), axis, -1)
    if 32 % bits == 0:
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        fields = ((along[..., None] >> shifts) & np.uint32(2**bits - 1)).astype(np.uint8)
    else:
        raw = np.ascontiguousarray(along).astype("<u4").view(np.uint8)
        each = np.unpackbits(raw, axis=-1, bitorder="little").reshape(*along.shape[:-1], -1, bits)
        fields = np.packbits(each, axis=-1, bitorder="little")
    return np.moveaxis(fields.reshape(*along.shape[:-1], -1), -1, axis)


def from_gptq(
    qweight: NDArray[Any],
    qzeros: NDArray[Any],
    scales: NDArray[Any],
    *,
    bits: int,
    g_idx: NDArray[Any] | None = None,
    true_zeros: bool = False,
) -> GroupWeight:
    """A weight of a GPTQ checkpoint, without loss.

    Args:
        qweight: int32 [in * bits / 32, out], packed along the input.
        qzeros: int32 [groups, out * bits / 32], packed along the output.
        scales: [groups, out].
        bits: 2, 3, 4 or 8.
        g_idx: the group of each input, [in]; None for groups of equal length in order.
        true_zeros: the file stores zero points (`checkpoint_format` gptq_v2), not zero points minus one (gptq, v1).

    Raises:
        ValueError: shapes do not fit each other, or groups are of different sizes.
    """
    codes = unpack_words(qweight, bits, 0).T
    zeros = unpack_words(qzeros, bits, 1).T.astype(np.int32) + (0 if true_zeros else 1)
    order = None
    if g_idx is not None:
        order = np.argsort(np.asarray(g_idx), kind="stable").astype(np.int64)
        if np.array_equal(order, np.arange(order.size)):
            order = None
        else:
            codes = codes[:, order]
        _require_equal_groups(np.asarray(g_idx), scales.shape[0])
    return _regrouped(codes, zeros, np.asarray(scales).T, bits, order)


def _require_equal_groups(g_idx: NDArray[Any], groups: int) -> None:
    counts = np.bincount(g_idx, minlength=groups)
    if len(counts) != groups or len(set(counts.tolist())) != 1:
        raise ValueError(f"g_idx does not put as many inputs into each of {groups} groups: {counts.tolist()[:8]}")


_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which nibble of a word, lowest first, AWQ keeps each of eight neighbouring outputs."""


def from_awq(qweight: NDArray[Any], qzeros: NDArray[Any], scales: NDArray[Any]) -> GroupWeight:
    """A 4-bit weight of an AWQ checkpoint (version gemm), without loss.

    qweight is int32 [in, out / 8], qzeros int32 [groups, out / 8] with true zero points, scales [groups, out]; all are
    packed along the output, in the order 0 2 4 6 1 3 5 7.

    Raises:
        ValueError: shapes do not fit each other.
    """
    codes, zeros = (
        unpack_words(words, 4, 1).reshape(words.shape[0], -1, 8)[..., _AWQ_ORDER].reshape(words.shape[0], -1).T
        for words in (qweight, qzeros)
    )
    return _regrouped(codes, zeros.astype(np.int32), np.asarray(scales).T, 4, None)


def from_compressed_tensors(
    packed: NDArray[Any], scale: NDArray[Any], zero_point: NDArray[Any] | None = None, *, bits: int
) -> GroupWeight:
    """A weight of a compressed-tensors checkpoint of format pack-quantized, without loss.

    weight_packed is int32 [out, in * bits / 32], weight_scale [out, groups], weight_zero_point int32
    [out * bits / 32, groups] or absent; codes and zero points are stored with 2^(bits - 1) added.

    Raises:
        ValueError: shapes do not fit each other.
    """
    half = 2 ** (bits - 1)
    zeros = np.full(scale.shape, half, np.int32)
    if zero_point is not None:
        zeros = unpack_words(zero_point, bits, 0)[: scale.shape[0]].astype(np.int32)
    return _regrouped(unpack_words(packed, bits, 1), zeros, np.asarray(scale), bits, None)


def _regrouped(
    codes: Bytes, zeros: NDArray[Any], scales: NDArray[Any], bits: int, order: NDArray[np.int64] | None
) -> GroupWeight:
    """Codes [out, in], zeros and scales [out, groups] in the scheme with the largest groups that fit."""
    rows, columns = codes.shape
    if zeros.shape != scales.shape or scales.shape[0] != rows or columns % max(scales.shape[1], 1):
        raise ValueError(
            f"codes {list(codes.shape)}, zero points {list(zeros.shape)} and scales {list(scales.shape)} of a grouped "
            "weight do not fit each other"
        )
    given = columns // scales.shape[1]
    group = next((size for size in GROUPS if given % size == 0), None)
    if group is None:
        raise ValueError(f"groups of {given} values are no multiple of 32; this weight has to be expanded")
    wide = scales.astype(np.float32)
    with np.errstate(over="ignore"):
        fitting = [s for s, kind in _SCALES.items() if np.array_equal(wide.astype(kind).astype(np.float32), wide)]
    if not fitting:
        raise ValueError("scales are neither float16 nor bfloat16 numbers; this weight has to be expanded")
    suffix, times, held = fitting[0], given // group, 8 if bits == 8 else 4
    scale = np.repeat(wide.astype(_SCALES[suffix]), times, axis=1)
    zero = np.repeat(zeros, times, axis=1)
    blocks = np.ascontiguousarray(codes).reshape(rows, columns // group, group)
    return GroupWeight(f"int{held}_g{group}{suffix}", _assembled(scale, zero, blocks, held), order)
