"""Native CPU kernels: the C++ functions of `csrc` behind the ops' own signatures."""

from __future__ import annotations

from .library import Library
from .moe import by_group
from .native import register_native
from .threads import available_threads
from .tiles import TiledWeight, tileable, tiled

__all__ = [
    "Library",
    "TiledWeight",
    "available_threads",
    "by_group",
    "register_native",
    "tileable",
    "tiled",
]
