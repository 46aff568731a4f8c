"""Sizes that kernels stumble over, and the samples that every function of one or two float tensors has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xinheng.core.ir.dtype import bfloat16, float16

from ..case import Tier, case
from ..draw import EVERY
from ..layout import Layout
from ..operands import Drawn, Patterns, normal, special_pair, specials

TAILS = (1, 31, 33, 63, 65, 127, 129, 320, 321)
"""One element, one over and one under tiles of 32, 64 and 128, long rows with and without a rest."""
VECTORS = (1, 31, 65, 129, 1031)
"""Lengths of vectors for functions of single elements, with a prime."""
TILES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
"""Rows and columns around the tiles of matrix units."""
HIDDEN = (576, 2048, 4096)
"""Widths of the hidden states of real models."""
BATCHES = (1, 2, 3, 4, 5, 7, 8)
"""Rows of a decoding step."""
VIEWS = (Layout.SLICED, Layout.TRANSPOSED)
PATTERNS = 4096
"""How many bit patterns are sampled."""
SHORT: dict[str, Any] = {"kinds": (float16, bfloat16), "tier": Tier.EXHAUSTIVE, "seeds": (1, 1)}
"""Of samples that go through all of the 65,536 numbers of a dtype."""

Draw = Callable[..., Drawn]


def unary(
    op: str, draw: Draw = normal, scale: float = 1.0, data: Sequence[str] = EVERY, seeds: int = 1, **attributes: Any
) -> None:
    """Samples of a function of one float tensor: sizes, distributions, layouts, special values, bit patterns."""
    for size in VECTORS:
        case(op, draw(size, scale=scale), **attributes)
    case(op, draw(7, 1536, scale=scale), data=data, seeds=(seeds, 4), **attributes)
    case(op, draw(33, 4096, scale=scale), data=data, tier=Tier.FULL, **attributes)
    for layout in VIEWS:
        case(op, draw(3, 5, 33, scale=scale), layout=layout, **attributes)
    case(op, specials(), label="specials", special=True, **attributes)
    case(op, Patterns(PATTERNS), label="patterns", special=True, **attributes)
    case(op, Patterns(1 << 16), label="all", special=True, **SHORT, **attributes)


def binary(op: str, left: Draw = normal, right: Draw = normal, data: Sequence[str] = EVERY) -> None:
    """Samples of a function of two float tensors: sizes, broadcasts, distributions, layouts, special values, bits."""
    for size in VECTORS:
        case(op, left(size), right(size))
    case(op, left(7, 1536), right(7, 1536), data=data)
    case(op, left(33, 4096), right(33, 4096), data=data, tier=Tier.FULL)
    case(op, left(7, 576), right(576))
    case(op, left(5, 129), right(5, 1))
    case(op, left(129, 1), right(1, 65))
    case(op, left(2, 1, 33), right(3, 1, 1, 33))
    for layout in VIEWS:
        case(op, left(17, 65), right(17, 65), layout=layout)
        case(op, left(3, 5, 33), right(5, 1), layout=layout)
    case(op, special_pair(0), special_pair(1), label="specials", special=True)
    case(op, Patterns(PATTERNS), Patterns(PATTERNS), label="patterns", special=True, seeds=(2, 8))
