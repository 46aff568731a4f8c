"""Cases of collectives in a group of one rank; what several ranks do is tested where they can be reached."""

from __future__ import annotations

from typing import Any

from .case import W, case, ints, normal, rng

_ALONE: dict[str, Any] = {"group": "alone", "size": 1}
case("all_reduce", normal(3, 5), **_ALONE)
case("all_reduce", normal(3, 5), reduction="max", note="max", **_ALONE)
case("all_reduce", ints([[1, 2], [3, 4]]), note="int32", **_ALONE)
case("all_reduce", normal(0, 5), note="empty", **_ALONE)
case("all_gather", normal(3, 5), axis=-1, **_ALONE)
case("all_gather", ints([1, 2]), axis=0, note="int32", **_ALONE)
case("reduce_scatter", normal(4, 5), axis=0, **_ALONE)
case("all_to_all", normal(4, 5), **_ALONE)

_WEIGHT = W(rng("sharded").normal(0, 1, (5, 64)), (("float32", 5),))
_PACKED = W(rng("packed").normal(0, 1, (5, 64)), (("q8_0", 5),))
case("matmul_all_reduce", normal(3, 64), _WEIGHT, **_ALONE)
case("matmul_all_reduce", normal(2, 3, 64), _PACKED, normal(5), note="bias", **_ALONE)
case("matmul_all_reduce", normal(0, 64), _WEIGHT, normal(5), note="empty", **_ALONE)
