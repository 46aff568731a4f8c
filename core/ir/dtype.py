"""Element types: one immutable object each, with the constants that error analysis needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError, nearest

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Float types carry their format: `precision` significant bits (the hidden one included) and the exponents `emin`
    and `emax` of the smallest and the largest normal number (IEEE 754-2019, section 3.3). `finite_largest` is set where
    the format gives up its top code for NaN instead of a whole exponent.
    """

    name: str
    bits: int
    kind: Kind
    precision: int = 0
    emin: int = 0
    emax: int = 0
    finite_largest: float = 0.0

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type, from `ml_dtypes` where numpy has none of its own."""
        return np.dtype(getattr(ml_dtypes, self.name) if hasattr(ml_dtypes, self.name) else self.name)

    @property
    def itemsize(self) -> float:
        """Bytes per element in memory; a fraction for types below one byte."""
        return self.bits / 8

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding, 2^-precision."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.emin

    @property
    def eta(self) -> float:
        """Half the smallest subnormal: the largest absolute error of a rounding that underflows.

        Half of that of float64 is no float64 number; there it is all of it.
        """
        return 2.0 ** max(self.emin - self.precision, -1074)

    @property
    def largest(self) -> float:
        """Largest finite value."""
        if self.finite_largest:
            return self.finite_largest
        return float((2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.emax)


float64 = DType("float64", 64, "float", 53, -1022, 1023)
float32 = DType("float32", 32, "float", 24, -126, 127)
float16 = DType("float16", 16, "float", 11, -14, 15)
bfloat16 = DType("bfloat16", 16, "float", 8, -126, 127)
float8_e4m3fn = DType("float8_e4m3fn", 8, "float", 4, -6, 8, 448.0)
float8_e5m2 = DType("float8_e5m2", 8, "float", 3, -14, 15)
float8_e4m3fnuz = DType("float8_e4m3fnuz", 8, "float", 4, -7, 7)
float8_e5m2fnuz = DType("float8_e5m2fnuz", 8, "float", 3, -15, 15)
float8_e8m0fnu = DType("float8_e8m0fnu", 8, "float", 1, -127, 127)
float4_e2m1fn = DType("float4_e2m1fn", 4, "float", 2, 0, 2)
int64 = DType("int64", 64, "int")
int32 = DType("int32", 32, "int")
int16 = DType("int16", 16, "int")
int8 = DType("int8", 8, "int")
int4 = DType("int4", 4, "int")
uint64 = DType("uint64", 64, "uint")
uint32 = DType("uint32", 32, "uint")
uint16 = DType("uint16", 16, "uint")
uint8 = DType("uint8", 8, "uint")
uint4 = DType("uint4", 4, "uint")
bool_ = DType("bool", 1, "bool")

DTYPES: dict[str, DType] = {value.name: value for value in list(globals().values()) if isinstance(value, DType)}


def dtype(name: str | DType) -> DType:
    """The element type called `name`.

    Raises:
        GraphError: there is no such type; the message names the nearest one.
    """
    if isinstance(name, DType):
        return name
    if name not in DTYPES:
        raise GraphError(f"unknown dtype {name!r}{nearest(name, list(DTYPES))}; known: {', '.join(DTYPES)}")
    return DTYPES[name]


def from_numpy(kind: np.dtype[Any] | type) -> DType:
    """The element type of a numpy dtype; GraphError where there is none."""
    return dtype(np.dtype(kind).name)


def round_to(x: NDArray[Any] | float, target: DType, flush: bool = False) -> NDArray[np.float64]:
    """Round float64 values once to the grid of `target`, ties to even, overflow to infinity; the result stays float64.

    A cast through an intermediate type would round twice, as `ml_dtypes` does from float64 to bfloat16.
    `flush` sends subnormal results to zero.
    """
    values = np.asarray(x, np.float64)
    if target.name == "float64":
        return values
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(values)[1] - 1, target.emin)
        quantum = np.ldexp(1.0, exponent - target.precision + 1)
        rounded = np.rint(values / quantum) * quantum
        rounded = np.where(np.isfinite(values), rounded, values)
        rounded = np.where(np.abs(rounded) > target.largest, np.copysign(np.inf, rounded), rounded)
        if flush:
            rounded = np.where(np.abs(rounded) < target.smallest_normal, np.copysign(0.0, rounded), rounded)
    return rounded


def cast_to(x: NDArray[Any], target: DType) -> NDArray[Any]:
    """Convert an array to `target` with a single rounding (see `round_to`), in the numpy type of `target`."""
    twice = x.dtype.kind in "fiu" and x.dtype.itemsize >= 4 and x.dtype != np.float32
    if twice and target.is_float and target.name not in ("float64", "float32", "float16"):
        with np.errstate(over="ignore"):
            return round_to(x, target).astype(target.numpy)
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(target.numpy)
