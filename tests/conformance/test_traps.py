"""Cases of language-model ops hold the traps that kernels fall into: lengths, heads, codes, boundaries, garbage."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Rules
from xinheng.conformance.call import Call
from xinheng.conformance.case import Tier
from xinheng.conformance.cases import SAMPLES
from xinheng.conformance.judge import judge
from xinheng.conformance.selftests.simulated import correct, simulate, stored
from xinheng.conformance.weights import FIELDS, codes
from xinheng.core.ir import WeightType
from xinheng.core.ir.dtype import float32
from xinheng.core.ops import OPSET
from xinheng.core.schemes import SCHEMES

PACKED = [name for name, scheme in SCHEMES.items() if scheme.dense is None]


def default(op: str) -> list[Call]:
    """The first case in float32 of each sample."""
    return [s.in_dtype(float32) for s in SAMPLES[op] if s.tier is Tier.DEFAULT and not s.special]


def named(call: Call) -> dict[str, Any]:
    return dict(zip([o.name for o in OPSET[call.op].operands], call.values, strict=False))


@pytest.mark.parametrize("name", PACKED)
def test_random_codes_are_finite_and_of_every_kind(name: str) -> None:
    scheme = SCHEMES[name]
    made = codes(name, 128, max(scheme.block, 64))
    values = scheme.unpack(made, np.float64)
    assert np.isfinite(values).all()
    assert 1e-3 < np.abs(values).max() < 1e3
    assert (values < 0).any() or name == "q2_k"
    assert (values > 0).any()
    places = [i for i in range(scheme.header, made.shape[-1]) if not _field(name, i - scheme.header)]
    assert len(np.unique(made[:, places])) > 250
    assert np.array_equal(made, codes(name, 128, max(scheme.block, 64)))


def _field(name: str, at: int) -> bool:
    inside = at % SCHEMES[name].block_bytes
    return any(begin <= inside < begin + 4 for begin in FIELDS.get(name, {}))


def test_every_scheme_is_multiplied_and_read() -> None:
    met: defaultdict[str, set[tuple[str, bool]]] = defaultdict(set)
    for op in ("linear", "dequantize", "embedding"):
        for call in default(op):
            for kind in call.types_of(WeightType).values():
                met[op] |= {(name, kind.shape[-1] // SCHEMES[name].block > 1) for name, _ in kind.parts}
    for op in ("dequantize", "embedding"):
        assert {name for name, _ in met[op]} == set(SCHEMES)
    assert {name for name, several in met["linear"] if several} >= set(PACKED)


@pytest.mark.parametrize("op", ["paged_attention", "sdpa_varlen"])
def test_attention_meets_heads_lengths_and_windows(op: str) -> None:
    groups, lengths, windows, attributes = set(), set(), set(), set()
    for call in default(op):
        given = named(call)
        heads = given["q"].shape[1]
        groups.add(heads // (given["cache"].k if "cache" in given else given["k"]).shape[-2])
        counts = given["seq_lens"] if "seq_lens" in given else np.diff(given["key_start"])
        lengths |= set(counts.tolist())
        windows.add(call.attributes.get("window"))
        attributes |= {name for name in ("sinks", "bias") if given.get(name) is not None}
        attributes |= {name for name in ("softcap", "causal") if name in call.attributes}
    assert groups >= {1, 2, 3, 4, 8}
    assert lengths >= {0, 1, 15, 16, 17, 512, 513} if op == "paged_attention" else {0, 1, 512, 513}
    assert windows >= {None, 1, 2, 3, 16, 17, 512, 520}
    assert attributes == {"sinks", "bias", "softcap", "causal"}


def test_caches_have_garbage_where_nobody_may_read() -> None:
    filled, sizes = 0, set()
    for call in default("paged_attention"):
        given = named(call)
        cache, table, lengths = given["cache"], given["block_table"], given["seq_lens"]
        blocks, size = cache.k.shape[:2]
        sizes.add(size)
        owned = np.zeros((blocks, size), bool)
        for row, length in zip(table, lengths, strict=True):
            positions = np.arange(int(length))
            there = (row[positions // size] >= 0) & (row[positions // size] < blocks)
            owned[row[positions // size][there], positions[there] % size] = True
        rest = cache.k[~owned]
        if call.id.split("/")[2] not in ("masked-by-bias", "special-queries"):
            assert rest.size == 0 or np.isnan(rest).all() or (rest == rest.flat[0]).all(), call.id
            filled += rest.size > 0
    assert filled > 60
    assert sizes >= {16, 32, 64, 128}


def test_bias_changes_which_experts_are_chosen() -> None:
    """Or else a kernel that leaves it out would pass."""
    for call in default("moe_gating_topk"):
        logits, bias = (*call.values, None)[:2]
        if bias is not None and "ties" not in call.id:
            with_it = call.reference()[1]
            without = OPSET[call.op].reference(logits, None, **call.attributes)[1]
            assert np.mean(np.any(np.sort(with_it) != np.sort(without), axis=-1)) > 0.3, call.id


def test_experts_without_rows_are_met() -> None:
    for op in ("grouped_linear", "moe_permute"):
        counts = [call.values[2] if op == "grouped_linear" else call.reference()[2] for call in default(op)]
        used = [c for c in counts if c.sum()]
        assert any(c[0] == 0 and c[-1] == 0 for c in used)
        assert any((c[1:-1] == 0).any() for c in used)


def test_samplers_draw_often_enough_to_see_a_boundary() -> None:
    """A top-p that is a little too small."""
    seen = 0
    for call in default("top_k_top_p_sample"):
        logits, uniform, temperature, top_k, top_p, min_p = call.values
        if (top_p == 1).all() or (top_p == 0).all() or len(uniform) < 600:
            continue
        crossing = OPSET[call.op].reference(logits, uniform, temperature, top_k, np.maximum(top_p - 0.05, 1e-3), min_p)
        seen += not judge(call, (crossing.astype(np.int32),), Rules()).ok
    assert seen > 10


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "layer_norm"])
def test_the_size_of_eps_is_seen(op: str) -> None:
    caught = []
    for call in default(op):
        eps = call.attributes["eps"]
        wrong = Call(call.id, op, call.kind, call.types, call.values, {"eps": 2 * eps})
        made = stored(wrong, simulate(wrong))
        caught.append(not judge(call, made, Rules()).ok)
        assert judge(call, correct(call), Rules()).ok
    assert sum(caught) > 5
