"""Cases of the rarer transcendental functions."""

from __future__ import annotations

import numpy as np

from ..case import case
from ..operands import floats, magnitude, normal, positive
from .sizes import unary

_EDGES = floats([0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-3, -0.25, 60.0, -60.0, 12.0, -12.0, 6e-8])

for _name in ("atan", "expm1"):
    case(_name, normal(3, 5, scale=3))
    case(_name, normal(17, 33, scale=0.01), note="small")
    case(_name, normal(), note="scalar")
case("log1p", positive(3, 5))
case("log1p", normal(5, 7, scale=0.01), note="small")
for _name in ("atan", "expm1", "log1p"):
    case(_name, normal(0, 4), note="empty")
    case(_name, _EDGES, note="edges", special=True)
unary("atan")
unary("expm1", scale=0.5, data=("normal", "uniform", "tiny", "outliers", "constant", "alternating"))
unary("log1p", magnitude)
