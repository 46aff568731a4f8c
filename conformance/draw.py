"""The numbers of a case: drawn from a counter-based stream that its id determines, so nothing needs to be stored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Shape = tuple[int, ...]
Size = int | Sequence[int]


class Stream:
    """Random numbers whose every bit follows from a key: on every machine, in every process, under every numpy.

    Only raw words of Philox4x64-10 are taken from numpy, which keeps those the same for ever, and what is computed from
    them needs no function of a mathematical library. The methods are those of numpy's own generators.
    """

    def __init__(self, key: bytes) -> None:
        self._words = np.random.Philox(key=np.frombuffer(key, np.uint64))

    def _raw(self, count: int) -> NDArray[np.uint64]:
        return np.asarray(self._words.random_raw(count), np.uint64)

    def random(self, size: Size = ()) -> Array:
        """Multiples of 2^-53 in [0, 1)."""
        shape = _shape(size)
        return np.ldexp((self._raw(math.prod(shape)) >> np.uint64(11)).astype(np.float64), -53).reshape(shape)

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Size = ()) -> Array:
        return low + (high - low) * self.random(size)

    def normal(self, mean: float = 0.0, sigma: float = 1.0, size: Size = ()) -> Array:
        """Sums of twelve uniform numbers less their mean: near enough to normal, and none beyond 6 sigma."""
        shape = _shape(size)
        count = math.prod(shape)
        total = self._raw(6 * count).view(np.uint32).reshape(12, count).sum(0, dtype=np.uint64)
        centred: Array = np.ldexp(total.astype(np.float64), -32) - 6
        return mean + sigma * centred.reshape(shape)

    def integers(self, low: int, high: int, size: Size = ()) -> NDArray[np.int64]:
        """Integers from `low` to `high` - 1."""
        shape = _shape(size)
        within = self._raw(math.prod(shape)) % np.uint64(high - low)
        return (within.astype(np.int64) + low).reshape(shape)

    def permutation(self, x: int | NDArray[Any]) -> NDArray[Any]:
        """The numbers below `x`, or the elements of `x` along its first axis, in any order."""
        items = np.arange(x) if isinstance(x, int) else np.asarray(x)
        return items[np.argsort(self._raw(len(items)), kind="stable")]


def _shape(size: Size) -> Shape:
    return (size,) if isinstance(size, int) else tuple(size)


def stream(*key: object) -> Stream:
    """The numbers that belong to these words."""
    return Stream(hashlib.blake2b("\0".join(map(str, key)).encode(), digest_size=16).digest())


@dataclass(frozen=True)
class Distribution:
    """How the free numbers of a case are distributed.

    Attributes:
        draw: from a stream and a shape to numbers of scale 1.
        structured: rounding errors of such data do not average out, so sums keep the bound of their chain.
        text: for reports.
    """

    text: str
    draw: Callable[[Stream, Shape], Array]
    structured: bool = False


def _outliers(g: Stream, shape: Shape) -> Array:
    """Outlier channels of a thousand times the usual size, as inputs of norms in language models have them."""
    x = g.normal(size=shape)
    if not x.ndim or not x.size:
        return x
    channels = g.random(shape[-1]) < 0.001
    channels[g.integers(0, shape[-1])] = True
    return np.where(channels, 1000.0 * x, x)


def _constant(g: Stream, shape: Shape) -> Array:
    return 3 * np.broadcast_to(g.normal(size=(*shape[:-1], 1) if shape else ()), shape).copy()


def _alternating(g: Stream, shape: Shape) -> Array:
    sign = np.where(np.arange(shape[-1]) % 2, 1.0, -1.0) if shape else 1.0
    return 100 * sign * (1 + 1e-3 * g.normal(size=shape))


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": Distribution("normal numbers", lambda g, shape: g.normal(size=shape)),
    "uniform": Distribution("uniform between -5 and 5", lambda g, shape: g.uniform(-5, 5, shape)),
    "tiny": Distribution("normal numbers times 1e-3", lambda g, shape: 1e-3 * g.normal(size=shape)),
    "outliers": Distribution("normal numbers, one channel in a thousand times 1000", _outliers),
    "constant": Distribution("each row one number", _constant, structured=True),
    "alternating": Distribution("near 100 with alternating sign, so that sums cancel", _alternating, structured=True),
    "offset": Distribution("normal numbers plus 1000", lambda g, shape: 1000 + g.normal(size=shape), True),
}
"""What the free operands of a case may look like; the third part of its id. Others are `given` by the sample."""

GIVEN = "given"
"""The distribution of a sample without free numbers."""
SPECIALS = "specials"
"""That of a sample of extreme values: infinities, NaN, the ends of the range, subnormals."""

USUAL: Sequence[str] = ("normal",)
"""The default of a sample."""
EVERY: Sequence[str] = tuple(DISTRIBUTIONS)
MODERATE: Sequence[str] = ("normal", "uniform", "tiny", "outliers")
"""Those that leave no overflow and no total cancellation, which make bounds useless in attention and the like."""
