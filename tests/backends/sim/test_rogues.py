"""The conformance suite calls the fault of each rogue chip by its name, and finds nothing else wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from xinheng.backends.sim import SimBackend
from xinheng.backends.sim.profiles import PROFILES
from xinheng.backends.sim.rogues import ROGUES
from xinheng.conformance.determinism import PROMISED_BY
from xinheng.conformance.running.levels import levels, up_to
from xinheng.conformance.running.plan import Plan, Shard
from xinheng.conformance.running.runner import Means, run
from xinheng.conformance.suites.ops import OpSuite
from xinheng.core.errors import DeviceError
from xinheng.core.hal import Device, DeviceSpec
from xinheng.core.plugins import PluginManager
from xinheng.core.suite import Outcome, Selection, Verdict

SUITE = OpSuite(Selection())

SLICE = {
    "abs": "abs/f32/3x5/normal/0",
    "add": "add/f32/3x5,3x5/normal/0",
    "add ends": "add/f32/4x10,4x10_edges/specials/0",
    "add int64": "add/int64/2,2_int64/given/0",
    "mul ends": "mul/f16/4x10,4x10_edges/specials/0",
    "exp ends": "exp/f32/14_edges/specials/0",
    "matmul": "matmul/f32/4x320,320x6_long/normal/0",
    "matmul int64": "matmul/int64/1x2,2x1_int64/given/0",
    "sum": "sum/f32/5x321_long/normal/0",
    "mean long": "mean/f32/5x4096_axis=1/constant/0",
    "softmax": "softmax/f32/2x320_long/normal/0",
    "rms_norm": "rms_norm/f32/T3xD320/normal/0",
    "gelu": "gelu/f32/3x5/normal/0",
    "argmax": "argmax/f32/3x4_ties/given/0",
    "linear": "linear/f32/97x320,113x320_float32/normal/0",
    "attention": "paged_attention/f32/prefill/normal/0",
}
"""Items by names for this file; each takes milliseconds."""

ENDS = {"add ends", "mul ends", "exp ends"}
SUMS = {"matmul", "sum", "softmax", "rms_norm", "linear"}
WHOLE = {"add ends", "mul ends", "matmul", "softmax", "rms_norm", "attention"}
"""Items whose results fill vectors of four."""


@dataclass(frozen=True)
class Fault:
    """What the suite has to say about a rogue: from which level on, by which word, at which items of the slice.

    `shadows` are words for what else comes of the fault.
    """

    level: str
    defect: str
    items: frozenset[str]
    shadows: frozenset[str] = frozenset()


def fault(level: str, defect: str, *items: str, shadows: tuple[str, ...] = ()) -> Fault:
    return Fault(level, defect, frozenset(items), frozenset(shadows))


FAULTS = {
    "saturating": fault("L0", "specials", *ENDS, shadows=("numbers",)),
    "flush-subnormals": fault("L0", "numbers", *ENDS, shadows=("specials",)),
    "bf16-accumulator": fault("L0", "numbers", *SUMS, "mean long", "attention"),
    "fp16-accumulator": fault("L0", "numbers", *SUMS, "mean long", "attention"),
    "tf32-inputs": fault("L0", "numbers", "matmul", "linear"),
    "stagnating": fault("L0", "numbers", "mean long"),
    "nondeterministic": fault("L1", "repeat", *SUMS, "attention"),
    "batch-variant": fault("L2", "batch", *SUMS, "attention"),  # its products are of one row and of several as well
    "lying-int64": fault("L0", "numbers", "add int64", "matmul int64"),
    "wide-indices": fault("L0", "dtype", "argmax"),
    "lying-supports": fault("L2", "supports", "gelu"),
    "denying-supports": fault("L2", "supports", "gelu"),
    "raising-supports": fault("L2", "supports", "gelu"),
    "stale-buffer": fault("L0", "stale", *SLICE.keys() - {"add int64", "matmul int64", "argmax"}),
    "out-of-bounds-writer": fault("L0", "out-of-bounds", *SLICE.keys() - WHOLE),
    "unwritten-tail": fault(
        "L0", "unwritten", *SLICE.keys() - {"softmax", "rms_norm", "attention"}, shadows=("numbers", "specials")
    ),
    "mutates-input": fault("L0", "inputs-changed", "sum", "mean long", "softmax", "rms_norm"),
    "async-missing-sync": fault("L0", "synchronisation", *SLICE),
    "capture-stale": fault("L2", "capture", *SLICE.keys() - {"add int64", "matmul int64", "attention"}),
    "out-of-memory": fault("L0", "out-of-memory", "mean long", "linear"),
}
"""The rogues whose fault shows in one process."""
ENDING = {
    "crashing": fault("L1", "crash"),
    "hanging": fault("L1", "hang"),
}
"""Those that need a worker to end."""
BETWEEN = {"process-variant": fault("L2", "process")}
"""Those of which two processes disagree."""


def opened(word: str) -> Device:
    return SimBackend().open(DeviceSpec.parse(f"sim:{word}"))


def first_level(outcomes: list[Outcome]) -> str:
    """The lowest level that one of these failures keeps a device from."""
    for level in levels():
        asked = {op for part in up_to(level.name) for op in part.ops}
        if any(o.op in asked and PROMISED_BY.get(o.defect, "D0") <= level.determinism for o in outcomes):
            return level.name
    return ""


def test_every_rogue_has_its_fault_written_down() -> None:
    assert {*FAULTS, *ENDING, *BETWEEN} == {*ROGUES}
    assert not {*ROGUES} & {*PROFILES}


@pytest.mark.parametrize("word", FAULTS)
def test_the_fault_is_named_and_nothing_else_is(word: str) -> None:
    device, expected = opened(word), FAULTS[word]
    outcomes = {name: SUITE.run(id, device) for name, id in SLICE.items()}
    failed = {name: o for name, o in outcomes.items() if o.verdict is not Verdict.PASS}
    assert {name: o.message for name, o in failed.items() if name not in expected.items} == {}
    assert failed.keys() == expected.items
    words = {o.defect for o in failed.values()}
    assert expected.defect in words <= {expected.defect} | expected.shadows
    assert first_level(list(failed.values())) == expected.level


@pytest.mark.parametrize("word", ENDING)
def test_a_fault_that_ends_the_process_is_named(word: str) -> None:
    plan = Plan(f"sim:{word}", ops=("abs", "softmax"), dtypes=("float32",), shard=Shard(1, 30))
    made = run(plan, Means(workers=1, patience=1.5)).outcomes
    verdicts = {(o.op, o.defect) for o in made}
    assert ("abs", "") in verdicts
    assert (
        ("softmax", ENDING[word].defect) in verdicts <= {("abs", ""), ("softmax", ""), ("softmax", ENDING[word].defect)}
    )
    assert first_level([o for o in made if o.defect]) == ENDING[word].level


def test_a_fault_between_processes_is_named() -> None:
    made = run(Plan("sim:process-variant", ops=("softmax",), dtypes=("float32",)), Means(workers=1)).outcomes
    failed = [o for o in made if o.verdict is not Verdict.PASS]
    assert {o.defect for o in failed} == {"process"}
    assert first_level(failed) == BETWEEN["process-variant"].level


# ---------------------------------------------------------------------------------------------------------- witnesses
CACHES = (
    "write_cache/f32/odd/normal/0",
    "copy_blocks/f32/one-source/given/0",
    "gather_kv_cache/f32/freed-blocks/given/0",
    "gather_latent_cache/f16/decode/given/0",
    "paged_attention/f32/window/normal/0",
    "paged_attention/f16/decode/normal/0",
    "mla_attention/f32/prefill/normal/0",
    "kv_norm_rope_cache/f32/plain/normal/0",
    "write_latent_cache/f32/plain/normal/0",
    "causal_conv1d/f32/decode/normal/0",
    "random_uniform/uint32/run/given/0",
    "nonzero/f32/3x127/given/0",
    "add/bf16/3x5,3x5/normal/0",
    "linear/f32/3x64,5x64_bfloat16/normal/0",
)
LATE = {"gather_kv_cache", "gather_latent_cache", "nonzero"}
ABSENT = {"static-buckets": LATE, "int32-only": {"add/int64", "matmul/int64", "nonzero"}, "no-bf16": {"add/bf16"}}
"""What the witnesses lack by their own declaration: ops, or ops in a dtype."""


@pytest.mark.parametrize("word", PROFILES)
def test_witnesses_pass(word: str) -> None:
    device = opened(word)
    outcomes = [SUITE.run(id, device) for id in (*SLICE.values(), *CACHES)]
    wrong = {o.id: f"{o.defect}: {o.message}" for o in outcomes if o.verdict is not Verdict.PASS and not o.absent}
    assert wrong == {}
    lacking = ABSENT.get(word, set())
    for o in outcomes:
        assert o.absent == bool(lacking & {o.op, "/".join(o.id.split("/")[:2])}), o


# ------------------------------------------------------------------------------------------------------------ choosing
def test_rogues_are_opened_by_name_only() -> None:
    listed = {info.spec for info in SimBackend().probe()}
    assert listed == {f"sim:{word}" for word in PROFILES}
    assert PluginManager().open("sim:saturating").spec == "sim:saturating"
    with pytest.raises(DeviceError, match=r"did you mean 'saturating'.*and with a fault each saturating, flush-"):
        opened("saturatin")
