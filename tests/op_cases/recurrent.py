"""Cases of ops with a memory per sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xinheng.core.ir.dtype import float32

from .case import F, Slots, T, bools, case, ints, normal, rng


def _both(
    note: str,
    counts: Sequence[int],
    slots: Sequence[int],
    fresh: Sequence[bool],
    *,
    unused: int = 0,
    narrow: bool = False,
    activation: str | None = "silu",
) -> None:
    """A convolution and a delta rule over sequences of so many tokens, with states in six slots."""
    start = np.cumsum([0, *counts])
    tokens, sequences = int(start[-1]) + unused, (ints(start), ints(slots), bools(fresh))
    made, kept = rng("recurrent", note), None if narrow else float32
    bias = None if activation is None else normal(5)
    past = Slots(made.normal(size=(6, 5, 3)), kept)
    case("causal_conv1d", normal(tokens, 5), past, normal(5, 4), *sequences, bias, activation=activation, note=note)
    q, k = (made.normal(size=(tokens, 2, 4)) for _ in range(2))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    gate, beta = T(-made.uniform(0, 2, (tokens, 2)), float32), T(made.uniform(0.1, 1, (tokens, 2)), float32)
    memory = Slots(made.normal(size=(6, 2, 4, 3)), kept)
    case("gated_delta_rule", F(q), F(k), normal(tokens, 2, 3), gate, beta, memory, *sequences, note=note)


_both("decode", [1, 1, 1], [4, 0, 2], [False, False, True])
_both("prefill", [5, 2], [1, 3], [True, True])
_both("continued", [4, 1, 7], [5, 1, 0], [False, False, False], activation=None)
_both("narrow state", [3, 1], [2, 0], [False, True], narrow=True)
_both("no slot", [2, 3], [-1, 1], [False, False])
_both("no rows", [0, 2, 0], [3, 1, 2], [False, False, True])
_both("unused rows", [2], [0], [False], unused=3)
_both("nothing", [], [], [])
case(
    "causal_conv1d",
    *(normal(3, 2), Slots(rng("short").normal(size=(2, 2, 1)), float32), normal(2, 2), ints([0, 3]), ints([1])),
    bools([False]),
    note="width of two",
)
