"""Mutants of readers of packed weights: nibbles, scales, zero points, groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.hal import WeightPart, WeightSource
from xinheng.core.ops import OPSET
from xinheng.core.schemes import Scheme, scheme

from ..call import Call
from .mutant import given, having

Bytes = NDArray[np.uint8]
READERS = "linear embedding dequantize"
SCALES = {"q4_0": 2, "q8_0": 2, "int4_g32": 2, "int8_g64_bf16": 2}
"""Bytes of the scale at the head of each block."""
ZEROS = {"int4_g32": (2, 4), "int8_g64_bf16": (2, 4)}
"""Where the zero point of a block is."""
NIBBLES = {"q4_0": 2, "int4_g32": 4}
"""Where the nibbles of a block begin."""


def _blocks(part: WeightPart) -> Bytes:
    kind = scheme(part.scheme)
    rows = np.array(part.load())[:, kind.header :]
    return rows.reshape(rows.shape[0], -1, kind.block_bytes)


def _reading(change: Callable[[Bytes, Scheme], Bytes | None]) -> Callable[[Call], Call | None]:
    """A call whose packed weights are read as if their blocks [rows, blocks, bytes] were others."""

    def read(part: WeightPart) -> WeightPart | None:
        kind = scheme(part.scheme)
        changed = None if kind.dense else change(_blocks(part), kind)
        if changed is None:
            return None
        rows = np.concatenate([part.load()[:, : kind.header], changed.reshape(part.rows, -1)], axis=1)
        return replace(part, load=lambda: rows)

    def changed(call: Call) -> Call | None:
        others: dict[str, Any] = {}
        for source in call.sources:
            parts = [read(part) for part in source.parts]
            if any(part is not None for part in parts):
                kept = tuple(new or old for new, old in zip(parts, source.parts, strict=True))
                name = OPSET[call.op].operands[int(source.name[1:])].name
                others[name] = WeightSource(source.name, source.shape, kept).unpack(np.float64)
        return having(call, **others) if others else None

    return changed


def _nibbles(blocks: Bytes, kind: Scheme) -> Bytes | None:
    if kind.name not in NIBBLES:
        return None
    moved, first = blocks.copy(), NIBBLES[kind.name]
    moved[..., first:] = blocks[..., first:] << np.uint8(4) | blocks[..., first:] >> np.uint8(4)
    return moved


def _scales(blocks: Bytes, kind: Scheme, last: bool) -> Bytes | None:
    """The scale of the block before, in all blocks or in the last one of each row only."""
    if kind.name not in SCALES or blocks.shape[1] < 2:
        return None
    moved = blocks.copy()
    end = SCALES[kind.name]
    which = np.s_[-1:] if last else np.s_[1:]
    moved[:, which, :end] = np.roll(blocks[..., :end], 1, axis=1)[:, which]
    return moved


def _zero_off(by: int) -> Callable[[Bytes, Scheme], Bytes | None]:
    def change(blocks: Bytes, kind: Scheme) -> Bytes | None:
        if kind.name not in ZEROS:
            return None
        moved = blocks.copy()
        where = np.s_[..., slice(*ZEROS[kind.name])]
        zeros = np.ascontiguousarray(blocks[where]).view("<i2") + np.int16(by)
        moved[where] = zeros.view(np.uint8)
        return moved

    return change


def _unsigned(blocks: Bytes, kind: Scheme) -> Bytes | None:
    """Codes of signed bytes without their sign bit."""
    if kind.name != "q8_0":
        return None
    moved = blocks.copy()
    moved[..., 2:] &= np.uint8(127)
    return moved


given(READERS, "nibble order", "reads the high nibble of each byte first", _reading(_nibbles))
given(READERS, "scales shifted", "reads the scale of the block before", _reading(lambda b, s: _scales(b, s, False)))
given(
    READERS,
    "last scale shifted",
    "reads the scale of the block before in the last block of each row only",
    _reading(lambda b, s: _scales(b, s, True)),
)
given("linear embedding", "zero + 1", "adds one to zero points, as the first GPTQ format does", _reading(_zero_off(1)))
given("linear embedding", "zero - 1", "takes one from zero points", _reading(_zero_off(-1)))
given(READERS, "sign lost", "reads signed codes as unsigned ones", _reading(_unsigned))


def _values(change: Callable[[Any], Any]) -> Callable[[Call], Call | None]:
    """A call whose packed weights have other values."""

    def changed(call: Call) -> Call | None:
        packed = [s for s in call.sources if any(scheme(p.scheme).dense is None for p in s.parts)]
        names = {OPSET[call.op].operands[int(s.name[1:])].name: s for s in packed}
        return having(call, **{n: change(s.unpack(np.float64)) for n, s in names.items()}) if names else None

    return changed


def _rows_moved(values: Any) -> Any:
    return np.roll(values, 1, axis=-2)


given(READERS, "packed rows", "reads packed rows one off", _values(_rows_moved))
given("linear", "doubled", "applies a scale of two twice", _values(lambda v: 2 * v))
