"""What block formats share: checking bytes and dtypes, and cutting rows into their header and blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scheme import Unpack

Bytes = NDArray[np.uint8]
Decode = Callable[[Bytes, Bytes, Any], Any]
"""From headers uint8 [rows, header] and blocks uint8 [rows, blocks, block_bytes] to values of a dtype."""


def decoder(name: str, block: int, block_bytes: int, header: int, decode: Decode) -> Unpack:
    """The `unpack` of a scheme."""

    def unpack(data: Bytes, dtype: Any = np.float32) -> NDArray[Any]:
        target = np.dtype(dtype)
        if target not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"scheme {name!r} decodes to float32 or float64, not {target}")
        inside = data.shape[-1] - header if data.ndim else -1
        if data.dtype != np.uint8 or inside < 0 or inside % block_bytes:
            wanted = f"{header} + n * {block_bytes}" if header else f"n * {block_bytes}"
            raise ValueError(f"scheme {name!r} decodes uint8 [..., {wanted}], not {data.dtype} {list(data.shape)}")
        count = inside // block_bytes
        rows = np.ascontiguousarray(data).reshape(-1, data.shape[-1])
        blocks = np.ascontiguousarray(rows[:, header:]).reshape(len(rows), count, block_bytes)
        with np.errstate(all="ignore"):
            values = decode(np.ascontiguousarray(rows[:, :header]), blocks, target)
        return np.asarray(values, target).reshape(*data.shape[:-1], count * block)

    return unpack


def finite(name: str, block: int, values: NDArray[Any]) -> NDArray[np.float32]:
    """Values to encode as float32 [rows, blocks, block]; ValueError if they are not finite or do not fill blocks."""
    x = np.ascontiguousarray(values, np.float32)
    if x.ndim == 0 or x.shape[-1] % block:
        raise ValueError(f"scheme {name!r} encodes [..., n * {block}], not {list(x.shape)}")
    if not np.isfinite(x).all():
        raise ValueError(f"scheme {name!r} encodes finite values only")
    return x.reshape(-1, x.shape[-1] // block, block)
