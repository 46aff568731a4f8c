"""What a backend declares about its arithmetic and a case about its data, and the error of sums that follows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import SettingsError
from xinheng.core.hal import ANY_ORDER, Arithmetic
from xinheng.core.ir.dtype import DType, float32, float64, round_to


@dataclass(frozen=True)
class Rules:
    """The declared arithmetic of a backend (and `structured`, which a case declares about its data).

    A narrower mode is declared here and then followed by the bound; it is never slack added to a bound.

    Attributes:
        compute: format of arithmetic and of accumulators.
        partial: narrower format in which partial sums are kept once every `chunk` terms.
        inputs: format to which both operands of a matmul are cut, such as `TF32`; rounded or truncated.
        structured: rounding errors of this data do not average out (constant or repeated rows).
        depth: longest chain of additions in a sum: a block size B (chain B + n/B), or a function of the term count;
            None promises nothing, so any order of summation is admitted.
        lam: confidence factor of the square-root law, 2 exp(-lam^2 / 2) per element.
        flush: subnormal operands and results may become zero.
        saturate: results beyond the range become the largest finite number, with their sign, instead of infinity.
        ulps: grade of exp, log, tanh, erf, sigmoid, sin and cos, in ulp.
        evaluate: follow the rounding of stored intermediates exactly; False bounds it instead.
        points: the rounding points of references at which the kernel keeps what it has in `storage`.
        storage: a format narrower than `compute`.

    Raises:
        SettingsError: a field has an impossible value.
    """

    compute: DType = float32
    partial: DType | None = None
    chunk: int = 1
    inputs: DType | None = None
    structured: bool = False
    depth: int | Callable[[int], int] | None = None
    lam: float = 4.0
    flush: bool = False
    saturate: bool = False
    ulps: float = 4.0
    evaluate: bool = True
    points: frozenset[str] = frozenset()
    storage: DType | None = None

    @classmethod
    def of(
        cls, arithmetic: Arithmetic | None, kind: DType = float32, structured: bool = False, stepwise: bool = False
    ) -> Rules:
        """The rules of a device's declaration for a case whose floats are `kind`; of none, the strictest of formats
        and any order of summation.

        `stepwise` says that the op runs decomposed: what its steps hand on is float32 at best, unless `kind` is wider.
        """
        compute = float64 if kind is float64 else float32
        if arithmetic is None:
            return cls(compute=compute, structured=structured)
        fixed = kind is float64 or (stepwise and arithmetic.accumulate.bits > compute.bits)
        return cls(
            compute=compute if fixed else arithmetic.accumulate,
            partial=arithmetic.partial,
            chunk=arithmetic.chunk,
            inputs=arithmetic.inputs if kind is float32 else None,
            structured=structured,
            depth=None if arithmetic.depth == ANY_ORDER else arithmetic.depth,
            flush=arithmetic.flush,
            saturate=arithmetic.saturate,
            ulps=arithmetic.ulps,
        )

    def __post_init__(self) -> None:
        for name in ("compute", "partial", "inputs", "storage"):
            kind: DType | None = getattr(self, name)
            if kind is not None and not kind.is_float:
                raise SettingsError(f"rules: {name} is {kind}, which is no float type; arithmetic needs one")
        for name in ("chunk", "lam", "ulps"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"rules: {name} is {getattr(self, name)}; it must be positive")
        if isinstance(self.depth, int) and self.depth < 1:
            raise SettingsError(f"rules: depth is a block of {self.depth} terms; it must be at least 1")

    @property
    def unit(self) -> float:
        """Relative error of one rounding, that of the float64 reference included."""
        return self.compute.unit_roundoff + float64.unit_roundoff

    @property
    def eta(self) -> float:
        """Absolute error of one rounding that underflows."""
        return self.compute.smallest_normal if self.flush else self.compute.eta

    @property
    def accumulator(self) -> DType:
        """Format that bounds the range of partial sums."""
        return self.partial or self.compute

    def kept(self, values: NDArray[np.float64], dtype: DType) -> NDArray[np.float64]:
        """Values as a kernel stores them in a format, but for subnormals that it may flush."""
        rounded = round_to(values, dtype)
        if not self.saturate:
            return rounded
        return np.where(np.isfinite(values), np.clip(rounded, -dtype.largest, dtype.largest), rounded)

    def longest(self, additions: int) -> int:
        """Longest chain among that many additions."""
        if self.depth is None:
            return additions
        chain = self.depth + -(-additions // self.depth) if isinstance(self.depth, int) else self.depth(additions)
        return min(additions, chain)

    def _chain(self, additions: int, unit: float, square_root: bool) -> float:
        if additions <= 0:
            return 0.0
        length: float = self.longest(additions)
        if square_root:
            length = min(length, self.lam * math.sqrt(additions))
        g = length * unit
        return g / (1 - g) if g < 1 else math.inf

    def _relative(self, terms: int, square_root: bool) -> float:
        if self.partial is None:
            return self._chain(terms - 1, self.unit, square_root)
        inner = self._chain(min(self.chunk, terms), self.unit, square_root)
        outer = self._chain(-(-terms // self.chunk), self.partial.unit_roundoff, square_root)
        return inner + outer + inner * outer

    def gamma(self, terms: int, total: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[Any]:
        """Error of sums of `terms` terms, as a share of `size`, the sum of their magnitudes.

        L u / (1 - L u) for a chain of L additions (Higham 2002, section 3.1). L = lam sqrt(n) where the terms cancel,
        |total| <= size / 2 (Higham and Mary 2019): errors of one sign do not average out, so sums of terms of one sign,
        which stagnate or drift, keep the length of the chain.
        """
        worst = self._relative(terms, False)
        if self.structured:
            return np.asarray(worst)
        return np.where(np.abs(total) <= size / 2, self._relative(terms, True), worst)

    def underflow(self, terms: int) -> float:
        """Absolute error of a sum: additions underflow exactly, unless results are flushed or cut to `partial`."""
        lost = terms * self.compute.smallest_normal if self.flush else 0.0
        if self.partial is not None:
            lost += -(-terms // self.chunk) * (self.partial.smallest_normal if self.flush else self.partial.eta)
        return lost
