"""A fingerprint tells how a chip computes, whatever its habits, and holds it against what the chip declares."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from xinheng.conformance.fingerprints.fingerprint import Fingerprint, contradictions, fingerprint
from xinheng.conformance.fingerprints.summation import NoTree, reveal
from xinheng.core.hal import ANY_ORDER, HF32, TF32, Arithmetic, Capabilities, Device, ReferenceDevice
from xinheng.core.ir import DType
from xinheng.core.ir.dtype import bfloat16, float16
from xinheng.core.plugins import PluginManager

from .chips import Array, Chip, blocked, half_up, pairwise, sequential, tiles, truncated

PLAIN = Chip()


@cache
def of(chip: Chip) -> Fingerprint:
    return fingerprint(chip.device())


def changed(chip: Chip) -> dict[str, str]:
    """How the traits of a chip differ from those of a plain one."""
    usual = {name: trait.value for name, trait in of(PLAIN).traits()}
    return {name: trait.value for name, trait in of(chip).traits() if usual[name] != trait.value}


def test_a_plain_chip() -> None:
    found = of(PLAIN)
    assert {kept.value for kept in found.accumulator.values()} == {"float32"}
    assert {order.value for order in found.summation.values()} == {"sequential"}
    assert {order.depth for order in found.summation.values()} == {1023}
    assert found.inputs.value == "none"
    assert {name: trait.value for name, trait in found.fused.items()} == {"matmul": "no", "mul and add": "no"}
    assert {trait.value for trait in (*found.flush_inputs.values(), *found.flush_results.values())} == {"no"}
    assert {trait.value for trait in found.overflow.values()} == {"infinity"}
    assert {trait.value for trait in found.rounding.values()} == {"half-even"}
    assert {grade.value for grade in found.grades.values()} == {"under 0.5 ulp"}
    assert contradictions(found, Arithmetic(depth=ANY_ORDER)) == contradictions(found, None) == []


SUMS = ("matmul", "linear", "sum")
KINDS = ("float32", "float16", "bfloat16")


def of_sums(value: str) -> dict[str, str]:
    return {f"accumulator {op} {kind}": value for op in SUMS for kind in KINDS}


def of_orders(value: str) -> dict[str, str]:
    return {f"summation {op}": value for op in SUMS}


def of_dtypes(value: str, *traits: str) -> dict[str, str]:
    return {f"{trait} {kind}": value for trait in traits for kind in KINDS}


HABITS: dict[str, tuple[Chip, dict[str, str]]] = {
    "blocks of 64": (Chip(blocked(64)), of_orders("blocked 64")),
    "blocks of 100": (Chip(blocked(100)), of_orders("blocked 100")),
    "bfloat16 partial sums": (
        Chip(blocked(64, bfloat16)),
        of_sums("float32, bfloat16 every 64 terms") | of_orders("blocked 64"),
    ),
    "pairwise": (Chip(pairwise), of_orders("pairwise")),
    "tiles of 16": (Chip(tiles(16)), of_orders("sequential, 16 at a time")),
    "TF32": (Chip(inputs=TF32), {"inputs": "TF32", "fused matmul": "unknown"}),
    "HF32": (Chip(inputs=HF32), {"inputs": "HF32", "fused matmul": "unknown"}),
    "bfloat16 operands": (Chip(inputs=bfloat16), {"inputs": "bfloat16", "fused matmul": "unknown"}),
    "fused products": (Chip(contracts=True), {"fused matmul": "yes"}),
    "flush": (Chip(flush=True), of_dtypes("yes", "flush inputs", "flush results")),
    "saturate": (Chip(saturate=True), of_dtypes("saturate", "overflow")),
    "truncate": (Chip(store=truncated), of_dtypes("truncate", "rounding")),
    "half up": (Chip(store=half_up), of_dtypes("half-up", "rounding")),
    "poor exp": (Chip(functions={"exp": lambda x: 1.0000009 * np.exp(x)}), {"grades exp": "7.7 ulp"}),
    "wrong erf": (Chip(functions={"erf": np.sin}), {"grades erf": "wrong"}),
}


@pytest.mark.parametrize("name", HABITS)
def test_habits(name: str) -> None:
    chip, expected = HABITS[name]
    assert changed(chip) == expected


NARROW = {kind: Chip(sequential(kind)) for kind in (float16, bfloat16)}


@pytest.mark.parametrize("kind", NARROW)
def test_narrow_sums(kind: DType) -> None:
    """Everything that is added has their range and precision too."""
    found = changed(NARROW[kind])
    assert found.items() >= of_sums(kind.name).items()
    assert {name.split()[0] for name in found} <= {"accumulator", "flush", "overflow", "rounding", "fused", "inputs"}


FLUSHING = Chip(blocked(64, bfloat16), flush=True)


def test_every_trait_has_evidence_and_all_fit_in_one_line() -> None:
    found = of(FLUSHING)
    assert all(trait.evidence for _, trait in found.traits())
    line = str(found)
    assert "\n" not in line
    for part in (
        "test:chip",
        "float32, bfloat16 every 64 terms",
        "blocked 64",
        "operands yes, results yes",
        "half-even",
    ):
        assert part in line
    assert Fingerprint.model_validate_json(found.model_dump_json()) == found


def test_what_a_device_refuses_is_unknown_and_says_why() -> None:
    device = ReferenceDevice()
    device.capabilities = Capabilities(device.capabilities.dtypes - {bfloat16})
    found = fingerprint(device)
    assert found.rounding["bfloat16"].value == "unknown"
    assert "has no bfloat16 tensors" in found.rounding["bfloat16"].evidence
    assert found.accumulator["matmul bfloat16"].bits is None
    assert found.rounding["float16"].value == "half-even"
    assert contradictions(found, None) == []


PARTIAL = HABITS["bfloat16 partial sums"][0]
DECLARED: list[tuple[Chip, Arithmetic, str]] = [
    (NARROW[bfloat16], Arithmetic(ANY_ORDER), "declares sums in float32, but matmul float32 keeps bfloat16"),
    (PARTIAL, Arithmetic(ANY_ORDER), "declares no narrower partial sums, but"),
    (PARTIAL, Arithmetic(ANY_ORDER, partial=float16, chunk=64), "declares partial sums in float16"),
    (PARTIAL, Arithmetic(ANY_ORDER, partial=bfloat16, chunk=128), "rounds every 64"),
    (PLAIN, Arithmetic(64), "declares blocks of 64, chains of at most 80 additions in 1024 terms, but"),
    (HABITS["blocks of 100"][0], Arithmetic(64), "is blocked 100, with chains of up to 109 additions"),
    (HABITS["TF32"][0], Arithmetic(ANY_ORDER), "declares operands read whole, but they are cut to TF32"),
    (HABITS["bfloat16 operands"][0], Arithmetic(ANY_ORDER, inputs=TF32), "declares operands cut to tfloat32, but"),
    (HABITS["flush"][0], Arithmetic(ANY_ORDER), "declares no flush, but subnormal float32 operands become zero"),
    (HABITS["saturate"][0], Arithmetic(ANY_ORDER), "declares overflow to infinity, but float32 gives saturate"),
    (PLAIN, Arithmetic(ANY_ORDER, saturate=True), "declares saturation, but float32 gives infinity"),
    (HABITS["half up"][0], Arithmetic(ANY_ORDER), "results in float32 are not rounded half to even but half-up"),
    (HABITS["poor exp"][0], Arithmetic(ANY_ORDER), "declares functions good to 4 ulp, but exp is 7.7 ulp"),
]


@pytest.mark.parametrize(("chip", "declared", "sentence"), DECLARED, ids=[text for *_, text in DECLARED])
def test_contradictions(chip: Chip, declared: Arithmetic, sentence: str) -> None:
    told = contradictions(of(chip), declared)
    assert any(sentence in text for text in told), told


HONEST: list[tuple[Chip, Arithmetic]] = [
    (HABITS["blocks of 64"][0], Arithmetic(64)),
    (HABITS["pairwise"][0], Arithmetic(64)),
    (HABITS["tiles of 16"][0], Arithmetic(64)),
    (HABITS["TF32"][0], Arithmetic(ANY_ORDER, inputs=TF32)),
    (PLAIN, Arithmetic(ANY_ORDER, inputs=TF32, flush=True)),
    (HABITS["flush"][0], Arithmetic(ANY_ORDER, flush=True)),
    (HABITS["saturate"][0], Arithmetic(ANY_ORDER, saturate=True)),
    (HABITS["poor exp"][0], Arithmetic(ANY_ORDER, ulps=8.0)),
]


@pytest.mark.parametrize(("chip", "declared"), HONEST)
def test_an_honest_declaration_is_not_contradicted(chip: Chip, declared: Arithmetic) -> None:
    assert contradictions(of(chip), declared) == []


def test_devices_that_are_here(device: Device) -> None:
    found = fingerprint(device)
    assert {kept.value for kept in found.accumulator.values()} <= {"float32", "float64", "at least 30 bits"}
    assert all(order.value.startswith("blocked") for order in found.summation.values())
    assert found.inputs.value == "none"
    assert {trait.value for trait in (*found.rounding.values(), *found.overflow.values())} == {"half-even", "infinity"}


ROGUES = {
    "bf16-accumulator": ("accumulator matmul float32", "bfloat16"),
    "flush-subnormals": ("flush results float32", "yes"),
    "saturating": ("overflow float16", "saturate"),
}


@pytest.mark.parametrize("word", [pytest.param(w, marks=pytest.mark.slow if "bf16" in w else ()) for w in ROGUES])
def test_rogues(word: str) -> None:
    trait, value = ROGUES[word]
    found = {name: seen.value for name, seen in fingerprint(PluginManager().open(f"sim:{word}")).traits()}
    assert value in found[trait]


def test_sums_of_no_tree() -> None:
    def random(rows: Array) -> Array:
        return np.random.default_rng(len(rows)).integers(0, 60, len(rows)).astype(np.float64)

    with pytest.raises(NoTree):
        reveal(random, 64, 2.0**100, 1.0)


def test_sums_that_lose_nothing_have_no_order() -> None:
    assert reveal(lambda rows: np.array([math.fsum(row) for row in rows]), 64, 2.0**100, 1.0) is None
