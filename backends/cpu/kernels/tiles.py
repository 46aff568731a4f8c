"""Weights in tiles: sixteen rows side by side, made from packed rows or rows of floats without rounding."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError
from xinheng.core.hal import WeightSource
from xinheng.core.ir.dtype import DType

from ..arrays import Array, address, contiguous
from ..memory import Slabs, forget, prefault
from .library import TYPES, Library, check, integers_of, matrix_of, type_code

TILE = 16
"""Rows of a tile; `TILE` in csrc/tiles.h."""
CHUNK = 1 << 20
"""Bytes of packed rows that are brought into tiles at a time: so many stay in a cache of the processor."""
FLOAT_FORMATS = 64
"""Codes from here on are formats of floats; `FLOAT_FORMATS` in csrc/float_tiles.h."""


class _Tiles(ctypes.Structure):
    """`Tiles` in csrc/tiles.h."""

    _fields_ = (
        ("format", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("data", ctypes.c_void_p),
    )


class _Job(ctypes.Structure):
    """`TileJob` in csrc/tile_product.h."""

    _fields_ = (
        ("tiles", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("bias_type", ctypes.c_int32),
        ("type", ctypes.c_int32),
    )


@dataclass(frozen=True)
class TiledWeight:
    """A weight [rows, columns] in runs of rows, each with the code of its format and its tiles."""

    shape: tuple[int, ...]
    schemes: tuple[str, ...]
    rows: tuple[int, ...]
    formats: tuple[int, ...]
    tiles: tuple[NDArray[np.uint8], ...]

    @cached_property
    def table(self) -> ctypes.Array[_Tiles]:
        """One `Tiles` per run, for the C side; valid while the weight lives."""
        columns = self.shape[-1]
        runs = zip(self.formats, self.rows, self.tiles, strict=True)
        return (_Tiles * len(self.rows))(*(_Tiles(f, 0, n, columns, data.ctypes.data) for f, n, data in runs))

    @property
    def nbytes(self) -> int:
        return sum(data.nbytes for data in self.tiles)


def tileable(library: Library, parts: tuple[tuple[str, int], ...], columns: int, *, floats: bool = False) -> str | None:
    """Why rows of these schemes cannot be brought into tiles, or None if they can; `floats` admits tiles of floats."""
    for scheme, rows in parts:
        code = library.tile_source(scheme.encode())
        if code < 0 or (code >= FLOAT_FORMATS and not floats):
            return f"no tiles for scheme {scheme!r}"
        if library.tiles_bytes(code, rows, columns) == 0:
            return f"{columns} columns do not fill the blocks of {scheme}"
    return None


def tiled(library: Library, source: WeightSource, slabs: Slabs | None = None) -> TiledWeight:
    """The tiles of a weight, in memory of `slabs` if given; of the file, only what is being read stays resident.

    Raises:
        DeviceError: a run cannot be tiled; see `tileable`.
    """
    columns, tiles, formats, slabs = source.shape[-1], [], [], slabs or Slabs()
    for part in source.parts:
        code = library.tile_source(part.scheme.encode())
        size = library.tiles_bytes(code, part.rows, columns) if code >= 0 else 0
        if size == 0:
            raise DeviceError(f"weight {source.name!r}: rows of {columns} values in {part.scheme} cannot be tiled")
        tiles.append(slabs.zeros(size))
        _pack(library, code, part.load(), columns, tiles[-1])
        formats.append(library.tile_format(code))
    schemes, rows = tuple(p.scheme for p in source.parts), tuple(p.rows for p in source.parts)
    return TiledWeight(source.shape, schemes, rows, tuple(formats), tuple(tiles))


def _pack(library: Library, code: int, given: NDArray[np.uint8], columns: int, to: NDArray[np.uint8]) -> None:
    """Pack rows [rows, row_bytes] piece by piece, so that little of a file is resident besides the tiles."""
    rows = len(given)
    row_bytes = given.nbytes // rows
    step = max(CHUNK // (row_bytes * TILE), 1) * TILE
    group_bytes = library.tile_step(code, columns)
    for first in range(0, rows, step):
        piece = given[first : first + step]
        prefault(piece)
        data = np.ascontiguousarray(piece)
        at = to.ctypes.data + first // TILE * group_bytes
        check(library.pack_tiles(code, data.ctypes.data, row_bytes, len(data), columns, at), "tiles")
        forget(piece)
    library.seal_tiles(code, rows, columns, to.ctypes.data)


def tile_linear_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `linear` with int8 activations."""
    return product_kernel(library, library.tile_product)


def product_kernel(library: Library, product: Callable[..., int]) -> Callable[..., Array]:
    """The kernel of `linear` over tiles by a function with the arguments of `xh_tile_product`."""

    def linear(x: Array, weight: TiledWeight, bias: Array | None = None) -> Array:
        rows, columns = weight.shape
        if x.shape[-1] != columns:
            raise DeviceError(f"linear: x has {x.shape[-1]} columns, the weight has {columns}")
        kind = type_code(x)
        flat, tokens, stride = matrix_of(x)
        out = library.empty((*x.shape[:-1], rows), x.dtype)
        added = None if bias is None else contiguous(bias)
        added_kind = 0 if added is None else type_code(added)
        jobs, first = (_Job * len(weight.rows))(), 0
        for i, count in enumerate(weight.rows):
            at = 0 if added is None else address(added) + first * added.itemsize
            y = address(out) + first * out.itemsize
            table = ctypes.addressof(weight.table) + i * ctypes.sizeof(_Tiles)
            jobs[i] = _Job(table, at, y, rows, added_kind, kind)
            first += count
        result = product(address(flat), kind, tokens, columns, stride, ctypes.addressof(jobs), len(weight.rows))
        check(result, "linear")
        return out

    return linear


def tile_embedding_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `embedding` for tiled weights."""

    def embedding(indices: Array, weight: TiledWeight, *, dtype: DType) -> Array:
        kind, flat = dtype.numpy, integers_of(indices)
        out = library.empty((*indices.shape, weight.shape[1]), kind)
        table, wide = ctypes.addressof(weight.table), int(flat.dtype == np.int64)
        bad = library.tile_rows(address(flat), wide, flat.size, table, len(weight.rows), TYPES[kind], address(out))
        if bad >= 0:
            raise DeviceError(f"embedding: index {int(flat.reshape(-1)[bad])} is outside the {weight.shape[0]} rows")
        check(bad + 1, "embedding")
        return out

    return embedding
