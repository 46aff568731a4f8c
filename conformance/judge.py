"""Whether results of a call are those of a correct kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from xinheng.core.ir import DType, StateType, TensorType
from xinheng.core.ir.types import Type

from .bounds import Check, Rules, check
from .call import Call
from .choices import CHOICES, Choice
from .programs import REFERENCE, programs

SIGNED_ZERO = frozenset(
    (
        *("neg", "abs", "square", "reciprocal", "sqrt", "rsqrt", "floor", "round", "cast", "silu", "gelu"),
        *("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "atan", "erf", "sigmoid"),
        *("add", "sub", "mul", "div", "fmod", "pow", "prod", "cumprod", "where", "full"),
        *("reshape", "permute", "expand", "concat", "split", "slice", "index_select", "gather"),
    )
)
"""Ops of which arithmetic defines the sign of a zero (IEEE 754-2019, sections 5 to 9), or which move it."""
USELESS = 0.2
"""Largest share of elements whose bound may say nothing; above it the case proves too little and fails as a case."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What there is to say about the results of a call.

    Attributes:
        ok: one admissible program admits all of them.
        defect: `numbers`, `specials`, `shape` or `dtype` if not.
        program: the program that does, or the one that comes closest.
        worst: largest error in units of the bound of that program.
        useless: largest share, over the results, of elements whose bound says nothing.
        message: which element of which result is off by how much.
    """

    ok: bool
    defect: str = ""
    program: str = ""
    worst: float = 0.0
    useless: float = 0.0
    message: str = ""

    @property
    def vacuous(self) -> bool:
        """So much of the bound says nothing that the results prove nothing; fine for special values only."""
        return self.useless > USELESS


def judge(
    call: Call, made: tuple[Any, ...], rules: Rules, declared: Mapping[str, tuple[str, ...]] | None = None
) -> Judgement:
    """Judge the results `made`: arrays in order, states as their pages.

    Args:
        rules: the declared arithmetic.
        declared: further programs by op that the device declares.

    Raises:
        DeviceError: a declared program is not known.
    """
    wrong = _misshapen(call, made)
    if wrong is not None:
        return wrong
    choice = CHOICES[call.op](call, made, rules) if call.op in CHOICES else None
    if choice is not None:
        return _chosen(call, choice, made)
    tried = []
    for name, expected in programs(call, rules, declared):
        tried.append(against(name, call, expected, made))
        if tried[-1].ok:
            return tried[-1]
    return min(tried, key=lambda j: j.worst)


def _chosen(call: Call, choice: Choice, made: tuple[Any, ...]) -> Judgement:
    bad = np.argwhere(~choice.admissible)
    if not bad.size:
        return against(REFERENCE, call, choice.expected, made)
    row, expected = tuple(map(int, bad[0])), call.reference()
    pairs = zip(made, expected, strict=True)
    results = ", ".join(f"{_short(got[row])} where {_short(want[row])} was expected" for got, want in pairs)
    message = f"{len(bad)} of {choice.admissible.size} choices are not admissible; row {list(row)} has {results}"
    return Judgement(False, "numbers", REFERENCE, np.inf, message=message)


def _misshapen(call: Call, made: tuple[Any, ...]) -> Judgement | None:
    """A result of the wrong dtype or shape; sizes that only a run tells are compared with the reference's later on."""
    if len(made) != len(call.result_types):
        return Judgement(False, "shape", message=f"returned {len(made)} results, not {len(call.result_types)}")
    for i, (got, promised) in enumerate(zip(made, call.result_types, strict=True)):
        if isinstance(promised, TensorType):
            if got.dtype != promised.dtype.numpy:
                return Judgement(False, "dtype", message=f"result {i} is {got.dtype}, not {promised}")
            known = all(isinstance(size, int) for size in promised.shape)
            if got.ndim != len(promised.shape) or (known and got.shape != promised.shape):
                return Judgement(False, "shape", message=f"result {i} has shape {got.shape}, not {promised}")
    return None


def against(program: str, call: Call, expected: tuple[Any, ...], made: tuple[Any, ...]) -> Judgement:
    """Judge the results of a call by what one program expects: results with bounds, in order."""
    worst, useless, failed, special = 0.0, 0.0, "", True
    for what, want, got, kind in _parts(expected, made, call.result_types):
        if np.shape(got) != np.shape(want.v if hasattr(want, "v") else want):
            return Judgement(False, "shape", program, np.inf, message=f"{what} has shape {np.shape(got)}")
        verdict = check(want, got.astype(np.float64) if kind.is_float else got, kind, call.op in SIGNED_ZERO)
        if not verdict.ok and verdict.worst_ratio >= worst:
            failed = _told(what, verdict, want, got)
        special &= verdict.ok or verdict.special
        worst, useless = max(worst, verdict.worst_ratio), max(useless, verdict.useless_share)
    defect = "" if not failed else "specials" if special else "numbers"
    return Judgement(not failed, defect, program, worst, useless, failed)


def _parts(
    expected: tuple[Any, ...], made: tuple[Any, ...], types: tuple[Type, ...]
) -> Iterator[tuple[str, Any, Any, DType]]:
    for i, (want, got, promised) in enumerate(zip(expected, made, types, strict=True)):
        if isinstance(promised, StateType):
            for part, w, g in zip(promised.parts, want, got, strict=True):
                yield f"state {part.name}", w, np.asarray(g), part.dtype
        elif isinstance(promised, TensorType):
            yield f"result {i}" if len(made) > 1 else "the result", want, np.asarray(got), promised.dtype


def _told(what: str, verdict: Check, want: Any, got: Any) -> str:
    at = verdict.worst_index or ()
    values = want.v if hasattr(want, "v") else np.asarray(want)
    error = f" ± {float(want.e[at]):.3g}" if hasattr(want, "e") else ""
    count = f"{verdict.failed_count} of {verdict.count} elements of {what} are outside their bounds"
    return f"{count}; at {list(at)} got {got[at]!s}, expected {values[at]!s}{error} ({verdict.worst_ratio:.3g} bounds)"


def _short(x: Any) -> str:
    return np.array2string(np.asarray(x), threshold=16)
