"""Calls that follow from a case: other numbers of the same types, so that what is left over from the first shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..call import Call
from ..case import Case
from ..operands import KV, F, Latent, Slots, W

OTHER_SEED = 1_000_003
"""Added to the seed of a case: far from the seeds of any tier."""


def other_numbers(case: Case) -> Call:
    """The call of a case with other free numbers, and with its given floats in another order along the first axis.

    States, and floats with NaN of cases that are not about NaN, are negated instead: it is where nothing may be read,
    and has to stay there. What decides sizes and places, such as lengths, slots and ids, is the same; so are weights.
    """
    call = replace(case, seed=case.seed + OTHER_SEED).call
    values = list(call.values)
    for i, declared in enumerate(case.sample.operands):
        if isinstance(declared, W):
            values[i] = case.call.values[i]
        elif isinstance(declared, F):
            values[i] = _moved(values[i], keep=not case.sample.special)
        elif isinstance(declared, KV | Latent | Slots):
            values[i] = type(values[i])(*(-pages for pages in values[i]))
    return replace(call, id=f"{case.id} with other numbers", values=tuple(values), sources=case.call.sources)


def _moved(x: NDArray[Any], keep: bool) -> NDArray[Any]:
    """Other numbers of the same kind; with `keep`, NaN stays where it is."""
    if keep and np.isnan(x).any():
        return np.asarray(-x)
    return np.roll(x, 1, axis=0) if np.ndim(x) else x
