"""Memory of weights: large areas handed out in pieces, and file pages that are let go."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from xinheng.backends.cpu.memory import ALIGNMENT, PREFETCHED, SLAB, Slabs, forget
from xinheng.engine.weights.file_map import FileMap


def test_arrays_of_a_slab_are_zero_aligned_and_apart() -> None:
    slabs = Slabs()
    made = [slabs.zeros(size) for size in (1, 100_000, 3, SLAB // 2, SLAB // 2, SLAB + 5, 7)]
    starts = [x.ctypes.data for x in made]
    assert all(start % ALIGNMENT == 0 for start in starts)
    for i, x in enumerate(made):
        x[:64] = i + 1
        x[-64:] = i + 1
    assert [int(x[0]) for x in made] == [int(x[-1]) for x in made] == [1, 2, 3, 4, 5, 6, 7]
    ends = sorted((start, start + x.nbytes + PREFETCHED) for start, x in zip(starts, made, strict=True))
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    assert not made[1][64:-64].any()


def resident() -> int:
    """Bytes of file pages this process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_view_of_a_file_gives_its_pages_back_and_stays_readable(tmp_path: Path) -> None:
    content = np.random.default_rng(1).integers(0, 256, 32 << 20, np.uint8)
    content.tofile(tmp_path / "weights")
    rows = FileMap.open(tmp_path / "weights").view(12345, 30 << 20).reshape(30, -1)[2:]
    total, before = int(rows.sum(dtype=np.int64)), resident()
    forget(rows)
    assert before - resident() > 24 << 20
    assert int(rows.sum(dtype=np.int64)) == total == int(content[12345 + (2 << 20) :][: 28 << 20].sum(dtype=np.int64))


def test_what_is_no_read_only_file_is_left_alone(tmp_path: Path) -> None:
    own = np.full(1 << 20, 7, np.uint8)
    slab = Slabs().zeros(1 << 20)
    slab[:] = 7
    (tmp_path / "small").write_bytes(b"7" * (1 << 20))
    scattered = FileMap.open(tmp_path / "small").view(0, 1 << 20).reshape(1024, 1024)[:, 5:9]
    for array in (own, slab, own[100:], scattered, np.empty(0, np.uint8)):
        forget(array)
    assert (own == 7).all()
    assert (slab == 7).all()
    assert (scattered == ord("7")).all()
