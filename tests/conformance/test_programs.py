"""Programs: each is told from the others by its results, declared ones need their declaration, and all have a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.conformance.bounds import Bounded, Rules
from xinheng.conformance.bounds.bounded import WORDS
from xinheng.conformance.call import Call
from xinheng.conformance.cases import SAMPLES, find
from xinheng.conformance.judge import Judgement, judge
from xinheng.conformance.programs import POINTS, PROGRAMS, REFERENCE, check_declared, programs
from xinheng.core.errors import DeviceError
from xinheng.core.ir import StateType
from xinheng.core.ir.dtype import bfloat16, cast_to, float16

RULES = Rules()
EIGHT = ("int8-activations", "int8-activations-float16-scales", "int8-activations-by-row")


def stored(call: Call, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a device gives back that computes these results without any error but the last rounding."""

    def each(x: Any, kind: Any) -> NDArray[Any]:
        return cast_to(x.v if isinstance(x, Bounded) else np.asarray(x), kind)

    pairs = zip(results, call.result_types, strict=True)
    return tuple(
        type(x)(*(each(y, part.dtype) for part, y in zip(kind.parts, x, strict=True)))
        if isinstance(kind, StateType)
        else each(x, kind.dtype)  # type: ignore[union-attr]
        for x, kind in pairs
    )


def found(call: Call, results: tuple[Any, ...], declared: dict[str, tuple[str, ...]] | None = None) -> Judgement:
    return judge(call, stored(call, results), RULES, declared)


CASES = {
    "rms_norm": "T7xD320_all/normal/0",
    "add_rms_norm": "T7xD320_all/normal/0",
    "layer_norm": "T7xD320_all/normal/0",
    "kv_norm_rope_cache": "wide/normal/0",
    "silu_and_mul": "T7xF1536/normal/0",
    "gelu_and_mul": "T7xF1536_erf/normal/0",
    "paged_attention": "head-of-128/normal/0",
    "sdpa_varlen": "head-of-128/normal/0",
    "mla_attention": "wide/normal/0",
    "linear": "q8_0_T4xN17xK1024/normal/0",
    "batched_linear": "q8_0/normal/0",
    "grouped_linear": "q8_0_long/normal/0",
    "matmul_all_reduce": "alone_q8_0_bias/normal/0",
    "fused_moe": "q8_0_unused/normal/1",
}
"""A case of each op with rounding points that has enough results to tell its programs."""


def test_every_op_with_programs_is_tried() -> None:
    assert {op for op, known in PROGRAMS.items() if any(p.points for p in known.values())} == set(CASES)
    assert all(next(iter(known)) == REFERENCE for known in PROGRAMS.values())
    assert all(program.text for known in PROGRAMS.values() for program in known.values())


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_each_program_is_named(op: str, kind: str) -> None:
    call = find(f"{op}/{kind}/{CASES[op]}").call
    for name, results in programs(call, RULES):
        verdict = found(call, results)
        assert verdict.ok, name
        # exponentials are rounded by a scale that is not known, so that this program is only bounded
        assert verdict.program == name or "probs" in name, name


@pytest.mark.parametrize("op", CASES)
def test_wide_types_have_one_program(op: str) -> None:
    call = find(f"{op}/f32/{CASES[op]}").call
    assert [name for name, _ in programs(call, RULES)] == [REFERENCE]


def seen_points(call: Call, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    seen: set[str] = set()

    def note(x: Any, name: str, known: bool = True) -> Any:
        seen.add(name)
        return x

    monkeypatch.setitem(WORDS, "point", note)
    call.bounded(RULES)
    return seen


def test_programs_use_the_points_of_references_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    named: set[str] = set()
    for op, samples in SAMPLES.items():
        label = CASES.get(op)
        call = find(f"{op}/bf16/{label}").call if label else samples[0].in_dtype(bfloat16)
        seen = seen_points(call, monkeypatch)
        # a composite of composites rounds where its parts do, if it does so at all
        inner = {"add_rms_norm_quant": {"normed"}, "silu_and_mul_quant": {"activated"}}.get(op, set())
        assert {p for program in PROGRAMS[op].values() for p in program.points} == seen - inner, op
        named |= seen
    assert named == set(POINTS)


@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("id", ["linear/f32/q8_0_T4xN17xK1024/normal/0", "linear/bf16/int8_row_T3xN5xK321/normal/0"])
def test_activations_of_eight_bits_are_admitted_where_declared(name: str, id: str) -> None:
    call = find(id).call
    results = PROGRAMS["linear"][name].results(call, RULES)
    assert not found(call, results).ok
    verdict = found(call, results, {"linear": (name,)})
    assert verdict.ok
    assert verdict.program == name
    assert found(call, call.bounded(RULES), {"linear": (name,)}).program == REFERENCE


def test_activations_of_bfloat16_are_admitted_where_declared() -> None:
    call = find("linear/f32/q8_0_T4xN17xK1024/normal/0").call
    results = PROGRAMS["linear"]["bfloat16-activations"].results(call, RULES)
    assert not found(call, results).ok
    assert not found(call, results, {"linear": EIGHT}).ok
    verdict = found(call, results, {"linear": ("bfloat16-activations",)})
    assert verdict.ok
    assert verdict.program == "bfloat16-activations"


def _without(call: Call, cut: Callable[[NDArray[Any]], NDArray[Any]]) -> Call:
    x, *rest = call.values
    return replace(call, values=(cut(x), *rest))


def test_a_declared_program_hides_nothing_else() -> None:
    call = find("linear/f32/q8_0_T4xN17xK1024/normal/0").call
    program = PROGRAMS["linear"][EIGHT[0]]

    def last_block(x: NDArray[Any]) -> NDArray[Any]:
        return np.where(np.arange(x.shape[-1]) < x.shape[-1] - 32, x, 0.0)

    def last_one(x: NDArray[Any]) -> NDArray[Any]:
        return np.where(np.arange(x.shape[-1]) < x.shape[-1] - 1, x, 0.0)

    for bug in (last_block, last_one):
        assert not found(call, program.results(_without(call, bug), RULES), {"linear": EIGHT}).ok


def test_one_pass_variance_needs_its_declaration() -> None:
    call = find("layer_norm/f32/T7xD320_off-centre/offset/0").call
    x, weight, bias = (np.asarray(v, np.float32) for v in call.values)
    mean = x.mean(-1, keepdims=True)
    variance = np.maximum((x * x).mean(-1, keepdims=True) - mean * mean, np.float32(0))
    made = ((x - mean) / np.sqrt(variance + np.float32(1e-5)) * weight + bias,)
    rules = Rules(structured=True)
    assert not judge(call, made, rules).ok
    verdict = judge(call, made, rules, {"layer_norm": ("one-pass-variance",)})
    assert verdict.ok
    assert verdict.program == "one-pass-variance"


def test_what_is_stored_may_be_in_the_dtype_of_the_op_only() -> None:
    call = find("rms_norm/f16/T7xD320_all/normal/0").call
    rules = replace(RULES, points=frozenset({"normed"}), storage=bfloat16)
    assert not found(call, call.bounded(rules)).ok
    assert found(call, call.bounded(replace(rules, storage=float16))).program == "normed"


def test_unknown_declarations() -> None:
    call = find("linear/f32/q8_0_T4xN17xK1024/normal/0").call
    for declared, words in (
        ({"linear": ("int8-activation",)}, "program 'int8-activation' of op 'linear'.*did you mean 'int8-activations'"),
        ({"linaer": ("int8-activations",)}, "programs of op 'linaer', which does not exist, did you mean 'linear'"),
    ):
        with pytest.raises(DeviceError, match=words):
            check_declared(declared)
        with pytest.raises(DeviceError, match=words):
            list(programs(call, RULES, declared))
    check_declared({"linear": EIGHT, "rms_norm": ("normed",)})


def test_all_programs_compute_what_the_op_does() -> None:
    """None is a second formula: where points keep float32, all agree with the reference."""
    for op, label in CASES.items():
        call = find(f"{op}/f32/{label}").call
        for name, program in PROGRAMS[op].items():
            if not program.declared:
                assert found(call, program.results(call, RULES)).ok, (op, name)
