"""Packed weights on the device: the bytes of a scheme as planes, and their decoding by operators of MindSpore.

A plane holds one field of all blocks, such as the scales as float16 or the codes as bytes, so that no byte of a file is
expanded. Layouts are those of `core.schemes`; every product below has at most 24 significant bits, so that float32
holds it exactly and a value is rounded once, where a minimum is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops as msops
from numpy.typing import NDArray

from xinheng.core.schemes import scheme

from .tensors import Tensor, converted

Planes = tuple[Any, ...]
Bytes = NDArray[np.uint8]


def _halves(blocks: Bytes, start: int) -> Any:
    """The float16 at a byte of each block [rows, blocks, bytes], as a column."""
    return Tensor(np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16))


def _bytes(blocks: Bytes, start: int, stop: int, kind: Any = np.uint8) -> Any:
    return Tensor(np.ascontiguousarray(blocks[..., start:stop]).view(kind))


def _float(x: Any) -> Any:
    return converted(x, ms.float32)


def _across(x: Any, width: int) -> Any:
    """x [..., 1] repeated to [..., width]: the CPU target multiplies and adds tensors of one shape many times faster
    than it broadcasts."""
    return msops.tile(x, (*(1,) * (x.ndim - 1), width))


def _fields(codes: Any, bits: int, run: int) -> Any:
    """float32 [..., n * 8 / bits] of bytes [..., n]: `run` low fields, then the next `run`, as in `core.schemes`.

    In whole float32 numbers, whose arithmetic with a constant is faster than that of bits, and exact.
    """
    *lead, width = codes.shape
    above, parts = _float(codes).reshape((*lead, width // run, 1, run)), []
    for _ in range(8 // bits - 1):
        rest = msops.floor(above * 0.5**bits)
        parts.append(above - rest * 2.0**bits)
        above = rest
    return msops.cat((*parts, above), -2).reshape((*lead, width * 8 // bits))


def _grouped(factors: Any, values: Any) -> Any:
    """Factors [..., g] times values [..., g * k], as [..., g, k]."""
    values = _float(values.reshape((*factors.shape, -1)))
    return _across(_float(factors).expand_dims(-1), values.shape[-1]) * values


def _symmetric(planes: Planes) -> Any:
    d, q = planes
    codes = _fields(q, 4, 16)
    return _across(_float(d), codes.shape[-1]) * (codes - 8.0)


def _affine(planes: Planes) -> Any:
    d, m, q = planes
    codes = _fields(q, 4, 16)
    d, m = (_across(_float(x), codes.shape[-1]) for x in (d, m))
    return d * codes + m


def _scaled(planes: Planes) -> Any:
    d, q = planes
    return _across(_float(d), q.shape[-1]) * _float(q)


def _k_minima(planes: Planes) -> Any:
    """Q4_K and Q5_K: d s q - dmin m in eight groups of 32."""
    d, dmin, packed, q, *high = planes
    codes = _fields(q, 4, 32)
    if high:
        codes = codes + _fields(high[0], 1, 32) * 16
    first, second, third = (converted(packed[..., i : i + 4], ms.int32) for i in (0, 4, 8))
    low, top, nibble = (Tensor(mask, ms.int32) for mask in (0x3F, 0x30, 0x0F))
    two, four = (Tensor(count, ms.int32) for count in (2, 4))
    keep, right = msops.bitwise_and, msops.bitwise_right_shift
    scales = msops.cat((keep(first, low), keep(third, nibble) + keep(right(first, two), top)), -1)
    minima = msops.cat((keep(second, low), right(third, four) + keep(right(second, two), top)), -1)
    whole = _grouped(_float(d) * _float(scales), codes)
    return whole - _across((_float(dmin) * _float(minima)).expand_dims(-1), whole.shape[-1])


def _q6_k(planes: Planes) -> Any:
    d, scales, low, high = planes
    codes = _fields(low, 4, 64) + _fields(high, 2, 32) * 16 - 32
    return _grouped(_float(d) * _float(scales), codes)


def _group(planes: Planes) -> Any:
    """scale (q - zero) of `int4_g*` and `int8_g*`; nibbles are packed as in Q4_0."""
    scale, zero, q, *nibbles = planes
    codes = _fields(q, 4, 16) if nibbles else _float(q)
    scale, zero = (_across(_float(x), codes.shape[-1]) for x in (scale, zero))
    return scale * (codes - zero)


Split = Callable[[Bytes], Planes]
Decode = Callable[[Planes], Any]
_LAYOUTS: dict[str, tuple[Split, Decode]] = {
    "q4_0": (lambda b: (_halves(b, 0), _bytes(b, 2, 18)), _symmetric),
    "q4_1": (lambda b: (_halves(b, 0), _halves(b, 2), _bytes(b, 4, 20)), _affine),
    "q8_0": (lambda b: (_halves(b, 0), _bytes(b, 2, 34, np.int8)), _scaled),
    "q4_k": (lambda b: (_halves(b, 0), _halves(b, 2), _bytes(b, 4, 16), _bytes(b, 16, 144)), _k_minima),
    "q5_k": (
        lambda b: (_halves(b, 0), _halves(b, 2), _bytes(b, 4, 16), _bytes(b, 48, 176), _bytes(b, 16, 48)),
        _k_minima,
    ),
    "q6_k": (
        lambda b: (_halves(b, 208), _bytes(b, 192, 208, np.int8), _bytes(b, 0, 128), _bytes(b, 128, 192)),
        _q6_k,
    ),
}


def _groups(name: str) -> tuple[Split, Decode]:
    """The layout of a scheme of groups: scale, zero point, codes."""
    narrow = name.startswith("int4")

    def split(blocks: Bytes) -> Planes:
        scale: Any = _bytes(blocks, 0, 2, np.int16)
        scale = scale.view(ms.bfloat16 if name.endswith("_bf16") else ms.float16)
        return scale, _bytes(blocks, 2, 4, np.int16), _bytes(blocks, 4, blocks.shape[-1])

    def decode(planes: Planes) -> Any:
        return _group((*planes, True) if narrow else planes)

    return split, decode


for _name in [f"int{b}_g{g}{s}" for b in (4, 8) for g in (32, 64, 128) for s in ("", "_bf16")]:
    _LAYOUTS[_name] = _groups(_name)


def is_held(name: str) -> bool:
    """Whether weights of a scheme are held packed here."""
    return name in _LAYOUTS or name == "int8_row"


def planes_of(name: str, data: Bytes) -> Planes:
    """The planes of packed rows uint8 [rows, row_bytes], each with the rows as its first axis."""
    if name == "int8_row":
        return Tensor(np.ascontiguousarray(data[:, :4]).view("<f4")), _bytes(data, 4, data.shape[1], np.int8)
    size = scheme(name).block_bytes
    return _LAYOUTS[name][0](data.reshape(len(data), -1, size))


def decoded(name: str, planes: Planes) -> Any:
    """The values of rows as float32 [rows, columns]."""
    rows = planes[0].shape[0]
    made = _scaled(planes) if name == "int8_row" else _LAYOUTS[name][1](planes)
    return made.reshape((rows, -1))


def plane_bytes(planes: Planes) -> int:
    """How much memory planes take."""
    return sum(int(plane.nbytes) for plane in planes)


def rows_of(planes: Planes, start: int, stop: int) -> Planes:
    """Some rows of all planes."""
    return tuple(plane[start:stop] for plane in planes)
