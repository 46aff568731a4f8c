"""Experiments on the arithmetic of a device: operands made so that each way to compute gives another result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.ir import DType
from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ops import OPSET

from ..bounds import Rules, check, operand
from ..draw import stream
from .summation import NoTree, reveal
from .traits import UNKNOWN, Accumulator, Grade, Summation, Trait, format_name
from .workbench import Array, Workbench, fused

TERMS = 1024
"""Terms of the long sums; blocks longer than half of it are not seen."""

Sums = Callable[[DType, Array], Array]
"""From a dtype and rows to the sums of the rows."""


def accumulator(sums: Sums, kind: DType) -> Accumulator:
    """How many bits of a small term survive beside a large one that is taken away again, whatever is added first.

    Neighbouring places tell of the format of sums, places far apart also of a narrower one that partial sums are
    rounded to.
    """
    large, most = (2.0**15, 29) if kind is float16 else (1.0, 60)
    near = _surviving(sums, kind, large, most, (0, 1, 2))
    far = _surviving(sums, kind, large, most, (0, TERMS // 2, TERMS - 1))
    told = f"1 + 2^-{near} - 1 is 2^-{near} in every order" + ("" if near == most else f", and 2^-{near + 1} is lost")
    bits, exact = near + 1, near == most
    name = f"at least {bits} bits" if exact else format_name(bits)
    if far >= near:
        return Accumulator(value=name, evidence=told, bits=bits, exact=exact)
    chunk = _chunk(sums, kind, large, far + 1)
    every = f" every {chunk} terms" if chunk else ""
    told += f"; in places far apart 2^-{far + 1} is lost"
    return Accumulator(
        value=f"{name}, {format_name(far + 1)}{every}",
        evidence=told,
        bits=bits,
        exact=exact,
        partial=far + 1,
        chunk=chunk,
    )


def _surviving(sums: Sums, kind: DType, large: float, most: int, places: tuple[int, int, int]) -> int:
    """The largest k up to `most` so that 2^-k, and all larger ones, survive in every order."""
    orders = list(permutations((0, 1, 2)))
    rows = np.zeros((most, len(orders), TERMS))
    for k in range(1, most + 1):
        for n, order in enumerate(orders):
            rows[k - 1, n, [places[i] for i in order]] = large, large * 2.0**-k, -large
    made = sums(kind, rows.reshape(-1, TERMS)).reshape(most, len(orders))
    kept = np.all(made == large * 2.0 ** -np.arange(1.0, most + 1)[:, None], axis=1)
    return int(np.argmin(kept)) if not kept.all() else most


def _chunk(sums: Sums, kind: DType, large: float, lost: int) -> int | None:
    """From which distance on a term of `lost` bits below is gone: terms between two roundings of partial sums."""
    rows = np.zeros((TERMS - 2, TERMS))
    rows[:, 0], rows[:, 1] = large, large * 2.0**-lost
    rows[np.arange(TERMS - 2), np.arange(2, TERMS)] = -large
    kept = sums(kind, rows) == large * 2.0**-lost
    return None if kept.all() or not kept[0] else 2 + int(np.argmin(kept))


def summation(sums: Sums, kept: Accumulator) -> Summation:
    """The order of additions of float32 terms, where `kept` says what sums are kept in."""
    bits = kept.partial or kept.bits
    if bits is None:
        return Summation(value=UNKNOWN, evidence=f"the format of its sums is unknown: {kept.evidence}")
    # the units must be counted exactly in that format, and all of them be lost beside the huge number
    terms = min(TERMS, 2 ** (bits - 1))
    huge, unit = (2.0**15, 2.0**-9) if 8 < bits <= 11 else (2.0**100, 1.0)
    try:
        shape = reveal(lambda rows: sums(float32, rows), terms, huge, unit)
    except NoTree as reason:
        return Summation(value=UNKNOWN, evidence=f"it is no tree of additions: {reason}")
    if shape is None:
        return Summation(value="exact", evidence=f"of {terms} terms none was lost beside 2^100 and -2^100")
    told = f"chains of up to {shape.depth} additions in a sum of {terms} terms"
    return Summation(value=shape.family, evidence=told, depth=shape.depth, terms=terms)


def inputs(bench: Workbench, kept: Accumulator) -> Trait:
    """How many bits of float32 operands a matrix product reads; `kept` says what its sums are kept in."""
    if kept.bits is None or kept.bits < float32.precision:
        return Trait(value=UNKNOWN, evidence=f"its sums tell no more bits than they keep: {kept.value}")
    names = {24: "none", 12: "HF32", 11: "TF32", 8: "bfloat16"}
    ks = np.arange(1.0, 24)
    small = 2.0**-ks
    # 1 is taken away again, so that all bits of the sum are there to show what is left of the number
    pairs = np.stack([1 + small, -np.ones(len(ks))], axis=1)
    left = bench.matmul(float32, pairs, [1.0, 1.0]) == small
    right = np.array([bench.matmul(float32, [[1.0, -1.0]], [1 + x, 1.0])[0] == x for x in small])
    bits = 1 + min(_leading(left), _leading(right))
    told = "all 24 bits of an operand reach the product" if bits == 24 else f"1 + 2^-{bits} reaches the product as 1"
    return Trait(value=names.get(bits, f"{bits} bits"), evidence=told)


def _leading(kept: NDArray[np.bool_]) -> int:
    return len(kept) if kept.all() else int(np.argmin(kept))


def contraction(bench: Workbench) -> Trait:
    """Whether a * b + c as two ops is rounded once: a device may fuse them."""
    a = np.full(64, 1 + 2.0**-13)
    got = bench.run(fused, float32, a, a, np.full(64, -(1 + 2.0**-12)))
    return _rounded_once(got, "mul and add")


def products(bench: Workbench, cut: Trait) -> Trait:
    """Whether a matrix product rounds each product before it is added; `cut` says what it reads of its operands."""
    if cut.value != "none":
        return Trait(value=UNKNOWN, evidence=f"operands cut to {cut.value} make no product of more than 24 bits")
    count, factor = 256, 1 + 2.0**-13
    rows = np.zeros((count - 1, count))
    rows[:, 0] = -(1 + 2.0**-12)
    rows[np.arange(count - 1), np.arange(1, count)] = factor
    column = np.full(count, factor)
    column[0] = 1.0
    return _rounded_once(bench.matmul(float32, rows, column), "matmul")


def _rounded_once(got: Array, what: str) -> Trait:
    told = f"(1 + 2^-13)^2 - (1 + 2^-12) by {what}"
    once = bool((got == 2.0**-26).any())
    if once or (got == 0).any():
        return Trait(value="yes" if once else "no", evidence=f"{told} is {'2^-26' if once else '0'}")
    return Trait(value=UNKNOWN, evidence=f"{told} is {float(got[0]):.3g}, neither 0 nor 2^-26")


def agreed(found: Mapping[str, str], evidence: str) -> Trait:
    """One value for several ops, the exceptions by name."""
    usual = Counter(found.values()).most_common(1)[0][0]
    others = [f"{value} in {op}" for op, value in found.items() if value != usual]
    return Trait(value=", but ".join([usual, *([", ".join(others)] if others else [])]), evidence=evidence)


def flush_inputs(bench: Workbench, kind: DType) -> Trait:
    """Whether subnormal operands count as zero."""
    small, up = kind.smallest_normal / 2, 8.0
    got = {
        "mul": bench.run(ops.mul, kind, np.full(64, small), np.full(64, up))[0],
        "matmul": bench.matmul(kind, [[small]], [up])[0],
    }
    return _flushed(got, small * up, f"{small:.3g} times {up:g}")


def flush_results(bench: Workbench, kind: DType) -> Trait:
    """Whether subnormal results become zero."""
    tiny, half = kind.smallest_normal, np.full(64, 0.5)
    got = {
        "mul": bench.run(ops.mul, kind, np.full(64, tiny), half)[0],
        "add": bench.run(ops.add, kind, np.full(64, 1.5 * tiny), np.full(64, -tiny))[0],
        "matmul": bench.matmul(kind, [[tiny]], [0.5])[0],
    }
    return _flushed(got, tiny / 2, f"results of {tiny / 2:.3g}")


def _flushed(got: Mapping[str, float], wanted: float, what: str) -> Trait:
    words = {op: "no" if x == wanted else "yes" if x == 0 else UNKNOWN for op, x in got.items()}
    return agreed(words, f"{what}: {_listed(got)}")


def overflow(bench: Workbench, kind: DType) -> Trait:
    """What results beyond the largest number become."""
    most = np.full(64, kind.largest)
    got = {
        "mul": bench.run(ops.mul, kind, most, np.full(64, 2.0))[0],
        "add": bench.run(ops.add, kind, most, most)[0],
        "matmul": bench.matmul(kind, [[kind.largest]], [2.0])[0],
    }
    if kind is not float32:
        got["cast"] = bench.cast(float32, kind, np.full(64, min(4 * kind.largest, float32.largest)))[0]
    names = {float("inf"): "infinity", kind.largest: "saturate"}
    words = {op: names.get(x, "nan" if np.isnan(x) else UNKNOWN) for op, x in got.items()}
    return agreed(words, f"twice {kind.largest:.4g}: {_listed(got)}")


def rounding(bench: Workbench, kind: DType, kept: Accumulator) -> Trait:
    """How results between two numbers of a dtype are rounded when they are stored; `kept` is about its products."""
    half = 2.0**-kind.precision
    at = np.array([1.0, 3.0, 1.5, 5.0, 0.5, 7.0])
    at = np.concatenate([at, -at])  # halves of a unit above 1, and the same below -1
    sign = np.sign(at)
    base, rest = sign * (1 + 2 * half * np.floor(np.abs(at) / 2)), np.abs(at) % 2 * half * sign
    got = {"add": bench.run(ops.add, kind, base, rest)}
    if kind.precision + 2 <= (kept.partial or kept.bits or 0):  # otherwise it is the sum that rounds, not the store
        got["matmul"] = bench.matmul(kind, np.stack([base, rest], axis=1), [1.0, 1.0])
    if kind is not float32:
        got["cast"] = bench.cast(float32, kind, base + rest)
    halves = {op: (np.abs(made) - 1) / half * np.sign(made) for op, made in got.items()}
    words = {op: _mode(made, at) for op, made in halves.items()}
    seen = dict(zip(words.values(), halves.values(), strict=True))
    told = "; ".join(f"{mode} {', '.join(f'{x:g}' for x in made[:6])}" for mode, made in seen.items())
    return agreed(words, f"1 and 1, 3, 1.5, 5, 0.5, 7 halves of a unit in the last place are stored as 1 and {told}")


def _mode(got: Array, at: Array) -> str:
    """The rounding mode that takes `at` halves of a unit to `got`."""
    modes: dict[str, Callable[[Array], Array]] = {
        "half-even": np.rint,
        "half-up": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
        "truncate": np.trunc,
        "down": np.floor,
        "up": np.ceil,
    }
    return next((name for name, mode in modes.items() if np.array_equal(got, 2 * mode(at / 2))), UNKNOWN)


def _listed(got: Mapping[str, float]) -> str:
    return ", ".join(f"{x:.4g} by {op}" for op, x in got.items())


GRADED = ("exp", "log", "tanh", "erf", "sigmoid", "sin", "cos")
"""The functions that `Arithmetic.ulps` is about."""
BEST_GRADE, WORST_GRADE = 0.5, 2.0**20


def grade(bench: Workbench, op: str) -> Grade:
    """The smallest grade in float32 whose error bound admits all results of a sample of 4,096 numbers.

    They are spread over magnitudes from 2^-20 to 2^6; those of exp to 1, since its bound grows with its operand.
    """
    g = stream("fingerprint", op)
    x = np.exp2(g.uniform(-20, 0 if op == "exp" else 6, 4096)) * (1 if op == "log" else 2 * g.integers(0, 2, 4096) - 1)
    x = x.astype(np.float32).astype(np.float64)
    got = bench.run(OPSET[op], float32, x)

    def admitted(ulps: float) -> bool:
        return check(OPSET[op].reference(operand(x, float32, Rules(ulps=ulps))), got, float32).ok

    if not admitted(WORST_GRADE):
        return Grade(value="wrong", evidence=f"no grade up to {WORST_GRADE:g} ulp admits all results", ulps=np.inf)
    if admitted(BEST_GRADE):
        return Grade(value=f"under {BEST_GRADE:g} ulp", evidence="no larger grade is needed", ulps=BEST_GRADE)
    low, high = BEST_GRADE, WORST_GRADE
    while high > 1.05 * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if admitted(middle) else (middle, high)
    return Grade(value=f"{high:.2g} ulp", evidence=f"what the bound of {len(x):,} results has to allow", ulps=high)


SIXTEEN = (float16, bfloat16)
"""The dtypes beside float32 whose arithmetic is looked at."""
