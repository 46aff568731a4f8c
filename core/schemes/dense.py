"""Dense schemes: every element type of whole bytes is also a weight scheme, one little-endian number per value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.dtype import DTYPES, DType, cast_to, from_numpy
from .scheme import Pack, Scheme, Unpack, register


def _unpacker(stored: DType) -> Unpack:
    def unpack(data: NDArray[np.uint8], dtype: Any = np.float32) -> NDArray[Any]:
        """Reinterpret uint8 [..., n * itemsize] and convert to any numpy `dtype` with at most one rounding; a copy."""
        values = np.ascontiguousarray(data, np.uint8).view(stored.numpy)
        if values.dtype == np.dtype(dtype):
            return values.copy()
        return cast_to(values, from_numpy(dtype))

    return unpack


def _packer(stored: DType) -> Pack:
    def pack(values: NDArray[Any]) -> NDArray[np.uint8]:
        """Convert to the stored type with a single rounding: [..., n] to uint8 [..., n * itemsize]."""
        return np.ascontiguousarray(cast_to(np.asarray(values), stored)).view(np.uint8)

    return pack


for _stored in DTYPES.values():
    if _stored.bits % 8 == 0:
        register(Scheme(_stored.name, 1, _stored.bits // 8, _unpacker(_stored), _packer(_stored), _stored))
