"""Memory for weights in huge pages, and file pages that are let go once their content has moved there."""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
import threading
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

HUGE = 2 << 20
"""Bytes of a huge page."""
SLAB = 64 << 20
"""Bytes of address space asked for at a time; what is not touched takes no memory."""
PREFETCHED = 8192
"""Bytes behind an array that kernels may fetch but never use."""
ALIGNMENT = 64
POPULATE_READ, COLLAPSE = 22, 25
"""`MADV_POPULATE_READ` and `MADV_COLLAPSE` of Linux, which the module `mmap` does not name."""


class Slabs:
    """Hands out zeroed memory from large areas, which `settle` moves to huge pages; small weights share pages.

    An area lives as long as an array in it.
    """

    def __init__(self) -> None:
        self._area: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0
        self._filled: list[NDArray[np.uint8]] = []

    def zeros(self, size: int) -> NDArray[np.uint8]:
        """Zeroed bytes, uint8 [size], aligned to a cache line."""
        room = -(-(size + PREFETCHED) // ALIGNMENT) * ALIGNMENT
        if self._used + room > len(self._area):
            self._filled.append(self._area[: self._used])
            self._area, self._used = _area(max(room, SLAB)), 0
        start = self._used
        self._used += room
        return self._area[start : start + size]

    def settle(self) -> None:
        """Move what was handed out to huge pages, on a thread of its own.

        Asked for before memory is written, they would be found one by one in the middle of the load, which may then
        have to wait for the system to clear up; so nobody waits.
        """
        filled, self._filled = [*self._filled, self._area[: self._used]], []
        self._area, self._used = self._area[self._used :][:0], 0
        if sys.platform == "linux" and any(map(len, filled)):
            threading.Thread(target=_collapse, args=(filled,), name="huge-pages", daemon=True).start()


def _collapse(areas: list[NDArray[np.uint8]]) -> None:
    """Move whole huge pages of areas; a system that cannot, such as Linux before 6.1, is asked for them eventually."""
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for area in areas:
        start, stop = area.ctypes.data, area.ctypes.data + len(area) // HUGE * HUGE
        advise(start, stop - start, mmap.MADV_HUGEPAGE)
        for page in range(start, stop, HUGE):
            if advise(page, HUGE, COLLAPSE) and ctypes.get_errno() != errno.EAGAIN:
                break


def _area(size: int) -> NDArray[np.uint8]:
    if sys.platform != "linux":
        return np.zeros(size, np.uint8)
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    flat = np.frombuffer(memory, np.uint8)
    start = -flat.ctypes.data % HUGE
    return flat[start : start + size]


def forget(rows: NDArray[np.uint8]) -> None:
    """Let the system take the pages behind a view of a read-only file map; other arrays are left alone.

    The view stays valid: what is read again comes from the file.
    """
    found = _mapped(rows)
    if found is None:
        return
    owner, start = found
    first, last = -(-start // mmap.PAGESIZE), (start + rows.nbytes) // mmap.PAGESIZE
    if last > first:
        owner.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)


def prefault(rows: NDArray[np.uint8]) -> None:
    """Map the pages behind a view of a read-only file map in one call, which is cheaper than a fault for each few."""
    found = _mapped(rows)
    if found is None:
        return
    owner, start = found
    first, last = start // mmap.PAGESIZE, -(-(start + rows.nbytes) // mmap.PAGESIZE)
    with suppress(OSError):  # Linux before 5.14
        owner.madvise(POPULATE_READ, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)


def _mapped(rows: NDArray[np.uint8]) -> tuple[mmap.mmap, int] | None:
    """The read-only file map that contiguous rows are a view of, and where in it they begin; None for other arrays."""
    owner: object = rows
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or not hasattr(owner, "madvise") or not rows.size:
        return None
    whole = np.frombuffer(owner, np.uint8)
    if whole.flags.writeable or not rows.flags.c_contiguous:
        return None
    return owner, rows.ctypes.data - whole.ctypes.data
