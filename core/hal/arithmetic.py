"""What a vendor declares about the arithmetic of a device; error bounds are computed from it, never widened by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import DeviceError
from ..ir.dtype import DType, float32

TF32 = DType("tfloat32", 32, "float", 11, -126, 127)
"""What matrix units that cut float32 operands to 11 bits keep of them."""
HF32 = DType("hfloat32", 32, "float", 12, -126, 127)
"""What matrix units that cut float32 operands to 12 bits keep of them."""

ANY_ORDER = 0
"""As `depth`: sums may be chains as long as they have terms, as those of a sequential loop are."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How the kernels of a device compute.

    Attributes:
        depth: block of terms in which long sums are added, so that no chain of additions is longer than the block plus
            the number of blocks; `ANY_ORDER` promises nothing. There is no default, since bounds depend on it.
        accumulate: format of sums of 16-bit and float32 terms.
        partial: narrower format in which partial sums are kept once every `chunk` terms.
        inputs: format to which float32 operands of matrix products are cut, such as `TF32`.
        flush: subnormal operands and results may become zero.
        saturate: results beyond the range become the largest finite number instead of infinity.
        ulps: grade of exp, log, tanh, erf, sigmoid, sin and cos in float32, in units in the last place.
        programs: further programs by op, by the names that the conformance suite gives them, such as
            `{"linear": ("int8-activations",)}`: a rounder kernel is another program, not slack in a bound.
        determinism: the highest level the device promises: D0 nothing, D1 a repeated call has the same bits, D2 also in
            another process and after other work, D3 also row by row of a batch, D4 also from a captured graph.

    Raises:
        DeviceError: a field has an impossible value.
    """

    depth: int
    accumulate: DType = float32
    partial: DType | None = None
    chunk: int = 1
    inputs: DType | None = None
    flush: bool = False
    saturate: bool = False
    ulps: float = 4.0
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    determinism: str = "D1"

    def __post_init__(self) -> None:
        for name in ("accumulate", "partial", "inputs"):
            kind: DType | None = getattr(self, name)
            if kind is not None and not kind.is_float:
                raise DeviceError(f"arithmetic: {name} is {kind}, which is no float type")
        if self.depth < 0 or self.chunk < 1 or not self.ulps > 0:
            raise DeviceError(
                f"arithmetic: depth {self.depth}, chunk {self.chunk} and ulps {self.ulps} must be positive"
            )
        if self.determinism not in ("D0", "D1", "D2", "D3", "D4"):
            raise DeviceError(f"arithmetic: determinism is {self.determinism!r}; it is one of D0, D1, D2, D3, D4")
