"""Weights of cases: numbers packed in the schemes of their rows, or random codes.

An encoder uses some codes only, such as none below -127, and some schemes are only read here and have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from xinheng.core.hal import WeightPart, WeightSource
from xinheng.core.schemes import scheme

from .draw import Shape, Stream, stream

Field = Callable[[Stream, Shape], NDArray[Any]]
"""Draws what all values of a block share, in the type it is stored in."""


def _factors(kind: Any, size: float = 0.01) -> Field:
    return lambda random, shape: random.normal(0, size, shape).astype(kind)


def _whole(low: int, high: int, kind: Any) -> Field:
    return lambda random, shape: random.integers(low, high, shape).astype(kind)


_HALF = _factors(np.float16)
_SCALES = {"": _HALF, "_bf16": _factors(ml_dtypes.bfloat16)}
FIELDS: Mapping[str, Mapping[int, Field]] = {
    **{name: {0: _HALF} for name in ("q4_0", "q5_0", "q8_0", "iq4_nl", "iq4_xs")},
    **{name: {0: _HALF, 2: _HALF} for name in ("q4_1", "q5_1", "q4_k", "q5_k")},
    "q2_k": {80: _HALF, 82: _HALF},
    "q3_k": {108: _HALF},
    "q6_k": {208: _HALF},
    "mxfp4": {0: _whole(122, 128, np.uint8)},
    "float8_e4m3_b128": {0: _factors("<f4")},
    **{
        f"int{bits}_g{group}{suffix}": {0: scale, 2: _whole(0, 2**bits + 1, "<i2")}
        for bits in (4, 8)
        for group in (32, 64, 128)
        for suffix, scale in _SCALES.items()
    },
}
"""The fields of a block that are not codes, by the byte at which they begin: scales, minima, zero points, exponents."""


def packed(name: str, data: NDArray[Any], parts: Sequence[tuple[str, int]]) -> WeightSource:
    """A weight [..., columns] whose rows hold `data` in the schemes of its parts (scheme, rows).

    Rows in a scheme without an encoder are random codes, with factors that keep their values near those of `data`.
    """
    first, made, flat = 0, [], data.reshape(-1, data.shape[-1])
    for coding, rows in parts:
        pack = scheme(coding).pack
        coded = pack(flat[first : first + rows]) if pack else codes(coding, rows, data.shape[-1])
        made.append(WeightPart(coding, rows, partial(np.asarray, coded)))
        first += rows
    return WeightSource(name, data.shape, tuple(made))


def coded(name: str, coding: str, shape: Shape) -> WeightSource:
    """A weight of random codes, of which every one occurs."""
    rows = int(np.prod(shape[:-1]))
    return WeightSource(name, shape, (WeightPart(coding, rows, partial(codes, coding, rows, shape[-1])),))


def codes(coding: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """Random rows of a packed scheme, with scales of ordinary size."""
    kind, random = scheme(coding), stream("codes", coding, rows, columns)
    shape = (rows, columns // kind.block)
    blocks = random.integers(0, 256, (*shape, kind.block_bytes)).astype(np.uint8)
    if coding.startswith("float8_e4m3"):
        blocks[(blocks & 127) == 127] -= 1  # no NaN
    for at, field in FIELDS.get(coding, {}).items():
        drawn = field(random, shape)[..., None].view(np.uint8)
        blocks[..., at : at + drawn.shape[-1]] = drawn
    head = _factors("<f4")(random, (rows,))[:, None].view(np.uint8)[:, : kind.header]
    return np.concatenate([head, blocks.reshape(rows, -1)], axis=-1)
