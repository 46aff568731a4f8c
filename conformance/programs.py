"""The programs a kernel may implement: where an op leaves open what is rounded when, each choice is one of them.

A kernel passes if one program admits all of its results, and the report names that program. Most are the op's own
reference with some of its rounding points (`numeric.point`) kept in the dtype of the op's floats. The others compute
something else, so they are admitted only where a device declares them in `Arithmetic.programs`. No program widens a
bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from xinheng.core.errors import DeviceError, nearest
from xinheng.core.ir import DType, WeightType, numeric
from xinheng.core.ir.dtype import bfloat16, float16, int8
from xinheng.core.ops import OPSET, dynamic_quant, grouped_linear, moe_permute, moe_unpermute, silu_and_mul
from xinheng.core.schemes import scheme

from .bounds import Rules
from .call import Call

REFERENCE = "reference"
"""The program every op has: its reference, each result rounded once."""
BLOCK = 32
"""How many activations share a scale in the eight-bit programs."""


@dataclass(frozen=True)
class Program:
    """A way to compute an op.

    Attributes:
        text: what it does, for reports.
        points: the rounding points of the reference at which it rounds.
        function: what it computes instead of the reference, with the same parameters.
        declared: it is admitted only where a device declares it.
    """

    text: str
    points: frozenset[str] = frozenset()
    function: Callable[..., Any] | None = None
    declared: bool = False

    def differs(self, call: Call, rules: Rules) -> bool:
        """Whether it rounds anything of this call that the reference does not."""
        if not self.points:
            return True
        packed = any(
            scheme(name).dense is None for kind in call.types_of(WeightType).values() for name, _ in kind.parts
        )
        return call.kind.bits < rules.compute.bits and (packed or "weights" not in self.points)

    def results(self, call: Call, rules: Rules) -> tuple[Any, ...]:
        """The results of a call with their bounds."""
        if self.points:
            rules = replace(rules, points=self.points, storage=call.kind)
        return call.bounded(rules, self.function)


POINTS = {
    "weights": "packed weights are expanded to the dtype of the activations",
    "sum": "the sum is normed as it is stored",
    "normed": "normed values are stored before they meet the weight",
    "activated": "the activated gate is stored before it meets the other factor",
    "probs": "exponentials are stored before they meet the values",
    "products": "both products of the input are stored",
    "inner": "gated activations are stored",
    "outer": "the result of each expert is stored before the sum",
}
"""The rounding points of references, and what rounding there means."""

_ROUNDED: dict[str, tuple[str, ...]] = {
    "rms_norm": ("normed",),
    "add_rms_norm": ("sum", "normed"),
    "layer_norm": ("normed",),
    "kv_norm_rope_cache": ("normed",),
    "silu_and_mul": ("activated",),
    "gelu_and_mul": ("activated",),
    "paged_attention": ("probs",),
    "sdpa_varlen": ("probs",),
    "mla_attention": ("probs",),
    "linear": ("weights",),
    "batched_linear": ("weights",),
    "grouped_linear": ("weights",),
    "matmul_all_reduce": ("weights",),
    "fused_moe": ("products", "inner", "outer", "activated", "weights"),
}
"""The points at which a kernel of an op may round, each or not."""

_RARE = {"fused_moe": {"activated", "weights"}}
"""Points that few kernels round at, of ops whose kernels round at most of the others."""


def _rounding(op: str) -> dict[str, Program]:
    """The programs that round at some of the points of an op."""
    points, rare = _ROUNDED.get(op, ()), _RARE.get(op, set())
    chosen = [some for count in range(1, len(points) + 1) for some in combinations(points, count)]
    chosen.sort(key=lambda some: (len(rare.intersection(some)), -len(some) if rare else len(some)))
    return {"+".join(some): Program("; ".join(POINTS[p] for p in some), frozenset(some)) for some in chosen}


def _coded(x: Any, scale: DType | None = None) -> Any:
    """Activations as codes of eight bits, with a scale for each run of `BLOCK` of them."""
    columns = x.shape[-1]
    rest = np.zeros((*x.shape[:-1], -columns % BLOCK))
    rows = np.reshape(np.concatenate([x, rest], axis=-1), (*x.shape[:-1], -1, BLOCK))
    codes, d = dynamic_quant.reference(rows, dtype=int8)
    coded = np.reshape(codes * numeric.store(d, scale), (*x.shape[:-1], columns + rest.shape[-1]))
    return coded[..., :columns]


def _eight_bit(op: str, scale: DType | None, x: Any, *operands: Any, **attributes: Any) -> Any:
    """The op on activations that are codes of eight bits."""
    return OPSET[op].reference(_coded(x, scale), *operands, **attributes)


def _eight_bit_rows(op: str, x: Any, *operands: Any, **attributes: Any) -> Any:
    """The op on activations that are codes of eight bits, with one scale for each row."""
    codes, scale = dynamic_quant.reference(x, dtype=int8)
    return OPSET[op].reference(codes * scale, *operands, **attributes)


def _eight_bit_experts(x: Any, weights: Any, experts: Any, gate: Any, up: Any, down: Any) -> Any:
    """`fused_moe` whose three products read activations as codes of eight bits."""
    rows, order, counts = moe_permute.reference(x, experts, num_experts=gate.shape[0])
    given = _coded(rows)
    gated, lifted = (numeric.point(grouped_linear.reference(given, w, counts), "products") for w in (gate, up))
    inner = numeric.point(silu_and_mul.reference(gated, lifted), "inner")
    outer = numeric.point(grouped_linear.reference(_coded(inner), down, counts), "outer")
    return moe_unpermute.reference(outer, order, weights)


def _bfloat16(op: str, x: Any, *operands: Any, **attributes: Any) -> Any:
    """The op on activations that were rounded to bfloat16."""
    return OPSET[op].reference(numeric.store(x, bfloat16), *operands, **attributes)


def _one_pass(x: Any, weight: Any = None, bias: Any = None, *, eps: float) -> Any:
    """`layer_norm` with mean(x^2) - mean(x)^2 as variance, which cancels where the mean is large."""
    mean = np.mean(x, axis=-1, keepdims=True)
    variance = np.maximum(np.mean(x * x, axis=-1, keepdims=True) - mean * mean, 0.0)
    y = (x - mean) * numeric.rsqrt(variance + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


_EIGHT_BIT = (
    "activations become codes of eight bits, each run of 32 with its largest magnitude / 127 as scale; products of"
)
_EIGHT_BIT += " codes are exact"
_INSTEAD: dict[str, dict[str, Program]] = {
    op: {
        "int8-activations": Program(_EIGHT_BIT, function=partial(_eight_bit, op, None), declared=True),
        "int8-activations-float16-scales": Program(
            f"{_EIGHT_BIT}, and scales are stored in float16", function=partial(_eight_bit, op, float16), declared=True
        ),
        "int8-activations-by-row": Program(
            "activations become codes of eight bits, each row with its largest magnitude / 127 as scale; products of"
            " codes are exact",
            function=partial(_eight_bit_rows, op),
            declared=True,
        ),
        "bfloat16-activations": Program(
            "activations are rounded to bfloat16", function=partial(_bfloat16, op), declared=True
        ),
    }
    for op in ("linear", "batched_linear", "grouped_linear", "matmul_all_reduce")
}
_INSTEAD["fused_moe"] = {
    "int8-activations": Program(_EIGHT_BIT, function=_eight_bit_experts, declared=True),
}
_INSTEAD["layer_norm"] = {
    "one-pass-variance": Program("the variance is mean(x^2) - mean(x)^2", function=_one_pass, declared=True)
}

_PLAIN = {REFERENCE: Program("as the op says; each result is rounded once")}
PROGRAMS: Mapping[str, Mapping[str, Program]] = {
    op: {**_PLAIN, **_rounding(op), **_INSTEAD.get(op, {})} for op in OPSET
}
"""The programs of each op by name, the strictest first."""


def check_declared(declared: Mapping[str, tuple[str, ...]]) -> None:
    """Demand that all programs which a device declares are known.

    Raises:
        DeviceError: there is no such op, or no such program of it.
    """
    for op, names in declared.items():
        if op not in PROGRAMS:
            raise DeviceError(
                f"the device declares programs of op {op!r}, which does not exist{nearest(op, [*PROGRAMS])}"
            )
        for name in names:
            if name not in PROGRAMS[op]:
                raise DeviceError(
                    f"the device declares program {name!r} of op {op!r}, which conformance does not know"
                    f"{nearest(name, [*PROGRAMS[op]])}; known: {', '.join(PROGRAMS[op])}"
                )


def programs(
    call: Call, rules: Rules, declared: Mapping[str, tuple[str, ...]] | None = None
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The admissible programs of a call, with their results, the strictest first and each evaluated when asked for.

    `declared` is what the `Arithmetic.programs` of the device says.

    Raises:
        DeviceError: a declared program is not known.
    """
    check_declared(declared or {})
    wanted = (declared or {}).get(call.op, ())
    for name, program in PROGRAMS[call.op].items():
        if (name in wanted or not program.declared) and program.differs(call, rules):
            yield name, program.results(call, rules)


__all__ = ["POINTS", "PROGRAMS", "REFERENCE", "Program", "check_declared", "programs"]
