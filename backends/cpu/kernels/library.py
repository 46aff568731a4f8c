"""The C functions of the compiled kernels with their argument types, and how tensors are described to them."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from xinheng.core.errors import DeviceError
from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.schemes import SCHEMES

from ..arrays import Array, address, contiguous, stride

if TYPE_CHECKING:
    from ..guarded import HostGuard

TYPES: dict[np.dtype[Any], int] = {float32.numpy: 0, bfloat16.numpy: 1, float16.numpy: 2}
"""Codes of element types; `Type` in csrc/numbers.h."""

_PART = struct.Struct("iiqQq")  # `Part` in csrc/weights.h
_INT, _LONG, _DOUBLE = ctypes.c_int32, ctypes.c_int64, ctypes.c_double
_POINTER, _TEXT = ctypes.c_void_p, ctypes.c_char_p

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "xh_set_threads": (_INT, (_INT,)),
    "xh_scheme": (_INT, (_TEXT,)),
    "xh_linear": (_INT, (_POINTER, _INT, _LONG, _LONG, _LONG, _TEXT, _INT, _POINTER, _INT, _POINTER)),
    "xh_embedding": (_LONG, (_POINTER, _INT, _LONG, _TEXT, _INT, _LONG, _INT, _POINTER)),
    "xh_dequantize": (_INT, (_TEXT, _INT, _LONG, _INT, _POINTER)),
    "xh_rms_norm": (_INT, (_POINTER, _INT, *[_LONG] * 5, _POINTER, _INT, _DOUBLE, _POINTER)),
    "xh_rotary": (_INT, (_POINTER, _INT, *[_LONG] * 5, _POINTER, _POINTER, _LONG, _INT, _POINTER)),
    "xh_gated": (_INT, (_INT, _POINTER, _POINTER, _INT, *[_LONG] * 4, _POINTER)),
    "xh_write_cache": (
        _LONG,
        (_POINTER, _INT, *[_LONG] * 5, _POINTER, _POINTER, _INT, _LONG, _LONG, _TEXT, _POINTER, _TEXT),
    ),
    "xh_paged_attention": (_LONG, (_TEXT,)),
    "xh_tile_source": (_INT, (_TEXT,)),
    "xh_tile_format": (_INT, (_INT,)),
    "xh_tiles_bytes": (_LONG, (_INT, _LONG, _LONG)),
    "xh_tile_step": (_LONG, (_INT, _LONG)),
    "xh_seal_tiles": (None, (_INT, _LONG, _LONG, _POINTER)),
    "xh_pack_tiles": (_INT, (_INT, _POINTER, _LONG, _LONG, _LONG, _POINTER)),
    "xh_tile_product": (_INT, (_POINTER, _INT, _LONG, _LONG, _LONG, _POINTER, _INT)),
    "xh_float_product": (_INT, (_POINTER, _INT, _LONG, _LONG, _LONG, _POINTER, _INT, _INT)),
    "xh_tile_rows": (_LONG, (_POINTER, _INT, _LONG, _POINTER, _INT, _INT, _POINTER)),
    "xh_argmax": (None, (_POINTER, _LONG, _LONG, _LONG, _POINTER)),
    "xh_random_uniform": (None, (_POINTER, _POINTER, _LONG, _POINTER)),
    "xh_sample": (None, (_POINTER, _LONG, _LONG, _LONG, *[_POINTER] * 6)),
    "xh_pointwise": (_INT, (_INT, _LONG, _LONG, *(_POINTER, _LONG, _LONG, _INT) * 2, _INT, _POINTER)),
    "xh_moe_gating": (_LONG, (_TEXT,)),
    "xh_moe_permute": (_LONG, (_POINTER, _LONG, _LONG, _POINTER, *[_LONG] * 3, *[_POINTER] * 3)),
    "xh_moe_unpermute": (_LONG, (_POINTER, _INT, _POINTER, _POINTER, *[_LONG] * 3, _POINTER)),
    "xh_grouped_linear": (_LONG, (_POINTER, _INT, *[_LONG] * 3, _POINTER, _LONG, _LONG, _POINTER, _INT, _POINTER)),
    "xh_fused_moe": (_LONG, (_TEXT,)),
    "xh_batched_linear": (_LONG, (_TEXT,)),
    "xh_latent_attention": (_LONG, (_TEXT,)),
    "xh_measure_read": (_DOUBLE, (_POINTER, _LONG)),
    "xh_measure_float32": (_DOUBLE, (_LONG,)),
    "xh_measure_bfloat16": (_DOUBLE, (_LONG,)),
    "xh_measure_int8": (_DOUBLE, (_LONG,)),
    "xh_run": (_LONG, (_POINTER, _LONG, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER)),
}


class Library:
    """A loaded object; each function is an attribute without the prefix `xh_`, and releases the GIL while it runs."""

    set_threads: Callable[[int], int]
    scheme: Callable[[bytes], int]
    linear: Callable[..., int]
    embedding: Callable[..., int]
    dequantize: Callable[..., int]
    rms_norm: Callable[..., int]
    rotary: Callable[..., int]
    gated: Callable[..., int]
    write_cache: Callable[..., int]
    paged_attention: Callable[[bytes], int]
    tile_source: Callable[[bytes], int]
    tile_format: Callable[[int], int]
    tiles_bytes: Callable[[int, int, int], int]
    tile_step: Callable[[int, int], int]
    seal_tiles: Callable[[int, int, int, int], None]
    pack_tiles: Callable[..., int]
    tile_product: Callable[..., int]
    float_product: Callable[..., int]
    tile_rows: Callable[..., int]
    argmax: Callable[..., None]
    random_uniform: Callable[..., None]
    sample: Callable[..., None]
    pointwise: Callable[..., int]
    moe_gating: Callable[[bytes], int]
    moe_permute: Callable[..., int]
    moe_unpermute: Callable[..., int]
    grouped_linear: Callable[..., int]
    fused_moe: Callable[[bytes], int]
    batched_linear: Callable[[bytes], int]
    latent_attention: Callable[[bytes], int]
    measure_read: Callable[[int, int], float]
    measure_float32: Callable[[int], float]
    measure_bfloat16: Callable[[int], float]
    measure_int8: Callable[[int], float]
    run: Callable[..., int]

    def __init__(self, loaded: ctypes.CDLL) -> None:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("xh_"), function)
        codes = {name: self.scheme(name.encode()) for name in SCHEMES}
        self.schemes: dict[str, int] = {name: code for name, code in codes.items() if code >= 0}
        """Codes of the weight schemes that the kernels read."""
        self.guard: HostGuard | None = None
        """Who watches the memory of the device, if somebody does."""

    def empty(self, shape: int | Sequence[int], kind: DTypeLike) -> Array:
        """Room for a result, uninitialised; while somebody watches, in guarded memory."""
        made = np.empty(shape, kind)
        return made if self.guard is None else self.guard.moved(made, filled=False)

    def pack(self, weight: Any) -> bytes:
        """The parts of a `HostWeight` as an array of `Part`; valid while the weight lives.

        Raises:
            DeviceError: a scheme has no native reader.
        """
        packed = b""
        for part in weight.parts:
            code = self.schemes.get(part.scheme)
            if code is None:
                raise DeviceError(f"no native kernel reads weights in scheme {part.scheme!r}; use the torch kernel")
            data = part.data
            packed += _PART.pack(code, 0, part.rows, address(data), stride(data, 0) * data.itemsize)
        return packed


def type_code(tensor: Array) -> int:
    """The code of a tensor's element type; DeviceError if native kernels do not take it."""
    code = TYPES.get(tensor.dtype)
    if code is None:
        raise DeviceError(f"native kernels take float32, bfloat16, float16, not {tensor.dtype}; use the torch kernel")
    return code


def cache_code(pages: Array) -> int:
    """The code of the element type of a cache, which may hold int8 codes."""
    return 3 if pages.dtype == np.int8 else type_code(pages)


def rows_of(x: Array) -> tuple[Array, tuple[int, int, int, int]]:
    """`x` with a contiguous last axis, and its rows: outer, inner, outer stride, inner stride, strides in values."""
    dims = x.ndim
    if dims == 0 or dims > 3 or stride(x, -1) != 1:
        x = contiguous(x.reshape(math.prod(x.shape[:-1]), x.shape[-1] if dims else 1))
        dims = 2
    if dims == 3:
        return x, (x.shape[0], x.shape[1], stride(x, 0), stride(x, 1))
    if dims == 2:
        return x, (x.shape[0], 1, stride(x, 0), 0)
    return x, (1, 1, 0, 0)


def matrix_of(x: Array) -> tuple[Array, int, int]:
    """`x` with a contiguous last axis, the number of its rows, and the stride from row to row in values."""
    if x.ndim != 2 or stride(x, 1) != 1:
        x = contiguous(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))
    return x, x.shape[0], stride(x, 0)


def int32_of(x: Array) -> Array:
    """`x` as contiguous int32; itself if it is that already."""
    return contiguous(x.astype(np.int32, copy=False))


def integers_of(x: Array) -> Array:
    """`x` as contiguous int32 or int64; itself if it is that already."""
    return contiguous(x if x.dtype in (np.int32, np.int64) else x.astype(np.int64))


def check(result: int, kernel: str) -> None:
    """DeviceError if a kernel reported an element type or scheme that it does not know."""
    if result:
        raise DeviceError(f"native kernel {kernel} does not know this element type or scheme (code {result})")
