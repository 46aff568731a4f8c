"""How nodes become commands of a native program: one encoder per native kernel."""

from __future__ import annotations

from . import attention, elementwise, latent, linear, moe, norm, selection, views  # noqa: F401  (they enter their encoders)
from .encoder import ENCODERS
from .linear import TILE_PRODUCTS

__all__ = ["ENCODERS", "TILE_PRODUCTS"]
