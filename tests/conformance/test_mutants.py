"""Mutants are wrong, the cases tell, and what is not told apart is explained."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.cases import SAMPLES
from xinheng.conformance.mutants import MUTANTS, automatic, hunt
from xinheng.conformance.mutants.edits import edits
from xinheng.conformance.mutants.hunt import Fate, Grounds
from xinheng.conformance.mutants.mutant import Mutant, enter, having, operand, saying
from xinheng.conformance.selftests.simulated import correct
from xinheng.conformance.selftests.standard import Standard, standards
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, TensorType
from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ir.op import Tolerance
from xinheng.core.ops import OPSET


@cache
def known(op: str) -> list[Standard]:
    return standards(op)


def plain(op: str, kind: Any = float32, label: str = "") -> Standard:
    """A usual case of an op, or the one of a label."""
    chosen = [s for s in SAMPLES[op] if label in (s.label, "") and not s.special and s.data[0] in ("normal", "given")]
    return Standard.of(chosen[min(3, len(chosen) - 1)].case(kind))


# -------------------------------------------------------------------------------------------------- written by hand
def test_there_are_mutants_of_all_ops() -> None:
    classes = Counter(OPSET[m.op].tolerance for m in MUTANTS.values())
    assert set(classes) == set(Tolerance)
    assert {m.op for m in MUTANTS.values()} == set(OPSET)
    assert len(MUTANTS) >= 600
    assert len({m.text for m in MUTANTS.values()}) >= 300


def test_ids_and_texts() -> None:
    for id, mutant in MUTANTS.items():
        assert id == mutant.id == f"{mutant.op}/{mutant.name}"
        assert mutant.text and not mutant.text.endswith(".")
        assert mutant.changes in ("operands", "program", "sums", "results")
        assert set(mutant.where) <= {float32, float16, bfloat16}


def test_a_mutant_needs_an_op_and_a_name_of_its_own() -> None:
    for id in ("rms_norms/anything", "rms_norm/eps missing"):
        op, name = id.split("/")
        with pytest.raises(GraphError, match=id):
            enter(Mutant(op, name, "does nothing", "results", lambda call: None))


@pytest.mark.parametrize("id", list(MUTANTS)[::11])
def test_mutants_are_killed(id: str) -> None:
    mutant = MUTANTS[id]
    hunted = hunt.hunt_one(mutant, known(mutant.op))
    assert hunted.fate is Fate.KILLED, hunted.missing
    by = {s.id: s for s in known(mutant.op)}
    for case in hunted.by:
        made = mutant.run(by[case].call)
        assert made is not None and not by[case].judge(made).ok
        assert by[case].judge(correct(by[case].call)).ok


def test_a_kernel_without_a_fault_survives() -> None:
    innocent = Mutant("rms_norm", "innocent", "does nothing wrong", "results", correct, (float32, bfloat16))
    hunted = hunt.hunt_one(innocent, [plain("rms_norm", kind) for kind in (float32, bfloat16)])
    assert hunted.fate is Fate.SURVIVED
    assert hunted.missing == ("float32", "bfloat16")


def test_a_mutant_has_to_be_killed_in_each_of_its_dtypes() -> None:
    only = Mutant("rms_norm", "half", "is wrong in float32", "results", lambda c: _off(c, float32), (float32, float16))
    hunted = hunt.hunt_one(only, [plain("rms_norm", kind) for kind in (float32, float16)])
    assert hunted.fate is Fate.SURVIVED
    assert hunted.missing == ("float16",)
    assert hunted.by == (plain("rms_norm").id,)


def _off(call: Any, kind: Any) -> Any:
    made = correct(call)
    return tuple(-x for x in made) if call.kind is kind else made


def test_calls_are_changed_by_name() -> None:
    call = plain("layer_norm").call
    assert operand(call, "bias") is call.values[2]
    without = having(call, bias=None)
    assert operand(without, "bias") is None and operand(call, "bias") is not None
    assert saying(call, eps=1.0).attributes["eps"] == 1.0 != call.attributes["eps"]


# --------------------------------------------------------------------------------------------------- made from graphs
def found(op: str, label: str = "") -> dict[str, automatic.Change]:
    """The changes of one case by id."""
    return {c.id: c for c in automatic.numbered(automatic.offered(plain(op, label=label).call))}


def test_places_are_named_by_their_source() -> None:
    ids = found("rms_norm")
    assert "rms_norm: add in `add(mean(square(wide), axis=-1, keepdims=True), eps)`: sub" in ids
    assert "rms_norm: the call: eps * 1.25" in ids
    assert "rms_norm: mul in `mul(normed, widened(weight))`: operand 0 instead" in ids


def test_places_of_helpers_are_told_apart_by_who_calls_them() -> None:
    ids = found("sdpa_varlen", "prefill")
    for which in ("_spread(k, None, group)", "_spread(v, read, group)"):
        assert f"sdpa_varlen: concat in `concat(wide, zeros, axis=0)` of `{which}`: in bfloat16" in ids


def test_the_same_place_in_another_form_is_the_same_mutant() -> None:
    halves, pairs = (
        set(found("rotary_embedding", label)) for label in ("T9xH3xD64xR64_near", "T9xH3xD64xR64_near-pairs")
    )
    assert "rotary_embedding: sub in `sub(mul(a, cos), mul(b, sin))`: add" in halves & pairs
    assert halves != pairs


@pytest.mark.parametrize("op", ["rms_norm", "softmax", "gelu", "rotary_embedding", "moe_gating_topk", "dynamic_quant"])
def test_an_unchanged_graph_passes(op: str) -> None:
    for standard in known(op)[::6]:
        for expanded in (False, True):
            assert standard.judge(automatic.run(standard.call, standard.call.graph(expanded))).ok, standard.id


def test_a_change_is_made_and_seen() -> None:
    standard = plain("rms_norm")
    change = found("rms_norm")["rms_norm: mean in `mean(square(wide), axis=-1, keepdims=True)`: sum"]
    graph = automatic.changed(standard.call, change)
    assert graph is not None
    assert [n.op.name for n in graph.nodes] == [
        "sum" if n.op.name == "mean" else n.op.name for n in standard.call.graph(expanded=True).nodes
    ]
    assert not automatic.idle(standard.call, change, graph)
    assert hunt.rejected(standard, graph)


def test_a_change_that_leaves_no_graph_is_no_mutant() -> None:
    change = found("linear")[
        "linear: permute in `permute(dequantize(weight, dtype=wide.dtype), axes=(1, 0))`: axes reversed"
    ]
    assert automatic.changed(plain("linear").call, change) is None
    assert Grounds([plain("linear")]).hunt(change).fate is Fate.UNFIT


def test_a_change_of_nothing_is_no_mutant() -> None:
    """A cast to a dtype that a value has already is dropped by any compiler."""
    change = automatic.Change("cast", automatic.CALL, "the call", "cast", "operand 0 instead")
    same = next(s.call for s in standards("cast") if s.call.types[0] == s.call.result_types[0])
    graph = automatic.changed(same, change)
    assert graph is not None and automatic.idle(same, change, graph)


def test_edits_of_a_node() -> None:
    b = Builder()
    x, y = (b.input(name, TensorType(float32, (2, 3))) for name in "xy")
    names = set(edits(OPSET["sub"], (x, y), {}))
    assert {"operands 0 and 1 exchanged", "add", "operand 0 instead", "operand 1 instead", "in bfloat16"} == names
    assert "operands 0 and 1 exchanged" not in edits(OPSET["add"], (x, y), {})
    assert "operand 1 * 1.25" in edits(OPSET["add"], (x, 0.5), {})
    assert "operand 1 for 1" in edits(OPSET["maximum"], (x, 0.0), {})
    assert {"+1", "-1"} <= set(edits(OPSET["slice"], (x,), {"axis": 0, "start": 1, "stop": 2}))
    assert {"causal inverted", "window + 1", "without window", "scale * 1.25"} <= set(
        edits(OPSET["sdpa_varlen"], (x,) * 5, {"scale": 0.5, "window": 3})
    )
    assert "pads ends exchanged" in edits(
        OPSET["max_pool"], (x,), {"kernel": (2,), "strides": (1,), "pads": (0, 1), "dilations": (1,)}
    )


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "silu_and_mul", "softmax", "dequantize_linear"])
def test_automatic_mutants_are_killed(op: str) -> None:
    fates = Counter(hunted.fate for hunted in hunt.automated(known(op)))
    assert fates[Fate.KILLED] > 1
    assert not fates[Fate.SURVIVED]


def test_explanations_name_changes_that_exist() -> None:
    explained = hunt.equivalents()
    assert all(reason.endswith(".") and len(reason) > 20 for reason in explained.values())
    for op in {id.split(":")[0] for id in explained}:
        forms = {s.form: s.call for s in known(op)}
        offered = automatic.numbered({c for call in forms.values() for c in automatic.offered(call)})
        assert {id for id in explained if id.split(":")[0] == op} <= {c.id for c in offered}


def test_reading_beyond_an_operand_is_a_rejection() -> None:
    standard = plain("gather", label="3x5,3x1")
    graph = standard.call.graph()
    broken = Standard(
        standard.id, having(standard.call, indices=np.full_like(standard.call.values[1], 99)), standard.rules
    )
    assert hunt.rejected(broken, graph)
