"""The tables of cases are complete, their ids say everything, and their numbers stay the same."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.call import Call
from xinheng.conformance.case import FLOATS, Sample, case
from xinheng.conformance.cases import SAMPLES, Case, Tier, find
from xinheng.conformance.draw import DISTRIBUTIONS, EVERY, stream
from xinheng.conformance.layout import Layout, held
from xinheng.conformance.operands import Drawn, Patterns, special_rows, special_values
from xinheng.core.errors import GraphError
from xinheng.core.ir import TensorType, evaluate
from xinheng.core.ir.dtype import bfloat16, float8_e5m2, float16, float32, float64, round_to
from xinheng.core.ir.op import Tolerance
from xinheng.core.ops import FAMILIES, OPSET

SIMPLE = (
    *("elementwise", "transcendental", "movement", "reduction", "division", "product", "indexing", "convolution"),
    *("pooling", "contraction"),
)
"""Families whose ops take ordinary tensors and weights only."""
NO_TENSOR = {"arange", "dequantize", "full"}
BUDGET = 12500
"""Most cases of the default tier: it takes minutes, and each case tens of milliseconds."""

EACH = [sample for samples in SAMPLES.values() for sample in samples]


def cases(tier: Tier = Tier.DEFAULT) -> list[Case]:
    return [each for sample in EACH for each in sample.cases(tier)]


def simple() -> list[str]:
    return [op.name for family in SIMPLE for op in FAMILIES[family] if op.name != "batched_linear"]


# ------------------------------------------------------------------------------------------------------ completeness
def test_every_op_has_cases_in_the_default_tier() -> None:
    tried = {each.op for each in cases()}
    assert [op for op in OPSET if op not in tried] == []


def test_every_op_runs_in_every_usual_float() -> None:
    for op, samples in SAMPLES.items():
        if any(sample.floats for sample in samples):
            kinds = {kind for s in samples if s.floats and s.tier is Tier.DEFAULT for kind in s.kinds}
            assert kinds >= set(FLOATS), op


def test_every_op_of_floats_meets_special_values() -> None:
    floats = [op for op, samples in SAMPLES.items() if any(isinstance(x, Drawn) for s in samples for x in s.operands)]
    assert [op for op in floats if not any(s.special and s.tier is Tier.DEFAULT for s in SAMPLES[op])] == []


def test_functions_of_one_float_go_through_all_numbers_of_sixteen_bits() -> None:
    for op in (*FAMILIES["elementwise"], *FAMILIES["transcendental"]):
        single = [s for s in SAMPLES[op.name] if s.floats and len(s.operands) == 1]
        for sample in single:
            if sample.label == "patterns" or sample.label.startswith("patterns_"):
                whole = next(s for s in single if s.label == sample.label.replace("patterns", "all"))
                assert whole.operands == (Patterns(65536),)
                assert whole.kinds == (float16, bfloat16)
                assert whole.tier is Tier.EXHAUSTIVE
        unary = single and len(op.operands) == 1
        assert not unary or any(s.label.startswith("all") for s in single), op.name


@pytest.mark.parametrize("op", [name for name in simple() if name not in NO_TENSOR])
def test_every_op_gets_views_of_larger_tensors(op: str) -> None:
    assert {s.layout for s in SAMPLES[op]} == set(Layout)


def outputs(sample: Sample) -> int:
    """Elements of its largest result."""
    shapes = [r.shape for r in sample.case(sample.kinds[0]).call.result_types if isinstance(r, TensorType)]
    return max(math.prod(d for d in shape if isinstance(d, int)) for shape in shapes)


@pytest.mark.parametrize("op", [name for name in simple() if OPSET[name].tolerance is not Tolerance.EXACT])
def test_rounding_ops_have_a_case_of_ten_thousand_results(op: str) -> None:
    """Among that many, some lie near a tie of 16-bit formats, so that errors below their rounding show."""
    if OPSET[op].tolerance is not Tolerance.SELECTION:
        assert any(outputs(s) >= 10**4 for s in SAMPLES[op] if s.floats and s.free and s.tier is Tier.DEFAULT)


def test_the_default_tier_is_affordable() -> None:
    family = {op.name: name for name, ops in FAMILIES.items() for op in ops}
    counts = Counter(family[each.op] for each in cases())
    assert sum(counts.values()) <= BUDGET
    assert max(counts.values()) <= BUDGET // 4
    assert min(counts.values()) >= 20


# ------------------------------------------------------------------------------------------------------ ids
def test_ids_differ_and_find_their_cases() -> None:
    every = cases(Tier.EXHAUSTIVE)
    assert len({each.id for each in every}) == len(every)
    for each in every:
        assert find(each.id) == each


def test_ids_have_five_words_for_a_command_line() -> None:
    for each in cases(Tier.EXHAUSTIVE):
        assert each.id.count("/") == 4
        assert not set(each.id) & set(" '\"\\()[]{}*?$&|;<>"), each.id


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("sum/f32", "no case id; one looks like"),
        ("sun/f32/3x5_axis=1/normal/0", "no op with cases is called 'sun'"),
        ("sum/f32/3x6_axis=1/normal/0", "no sample of sum is called '3x6_axis=1'"),
        ("sum/f33/3x5_axis=1/normal/0", "does not run in dtype 'f33'"),
        ("logical_not/f32/2/given/0", "does not run in dtype 'f32'"),
        ("tanh/f32/scalar_scalar/norml/0", "no distribution is called 'norml'"),
    ],
)
def test_unknown_ids_are_refused(id: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        find(id)


def test_a_label_is_taken_once() -> None:
    with pytest.raises(GraphError, match="two samples 'specials'"):
        case("tanh", special_rows(3), label="specials", special=True)
    with pytest.raises(GraphError, match="there is no op 'tan' to make a case of"):
        case("tan", special_rows(3))


# ------------------------------------------------------------------------------------------------------ numbers
def digest(*arrays: Any) -> str:
    wide = [np.asarray(x, np.float64) for x in arrays]
    alike = [np.where(np.isnan(x), np.nan, x) for x in wide]
    return hashlib.blake2b(b"".join(x.tobytes() for x in alike), digest_size=6).hexdigest()


DIGESTS = {
    "normal": "ab3670d318ee",
    "uniform": "7601a26914e6",
    "tiny": "b3d674a31b32",
    "outliers": "4fbadacec594",
    "constant": "9c2ed747dd71",
    "alternating": "86ead5c9f3d4",
    "offset": "c8622620b48d",
}


def test_every_distribution_is_pinned() -> None:
    made = {name: digest(d.draw(stream("pinned", name), (5, 33))) for name, d in DISTRIBUTIONS.items()}
    assert made == DIGESTS


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("tanh/f32/patterns/specials/0", "631516afa9df"),
        ("tanh/bf16/patterns/specials/1", "feb19822530d"),
        ("exp/f16/7x1536/outliers/0", "0d3e49be1a7e"),
        ("linear/bf16/3x64,5x64_q8_0/normal/3", "9e3c14afb8b3"),
        ("matmul/f32/97x321,321x113/offset/0", "3852281dbae2"),
        ("scatter/f16/specials/specials/0", "a296bb02c11a"),
    ],
)
def test_the_numbers_of_a_case_are_pinned(id: str, expected: str) -> None:
    assert digest(*find(id).call.values) == expected


def test_streams_are_of_their_kind() -> None:
    made = stream("moments").normal(size=200_000)
    assert abs(made.mean()) < 0.01
    assert abs(made.std() - 1) < 0.01
    uniform = stream("moments").uniform(-5, 5, 200_000)
    assert abs(uniform.mean()) < 0.05
    assert -5 <= uniform.min() < -4.99
    assert 4.99 < uniform.max() < 5
    assert set(stream("few").integers(-2, 3, 1000).tolist()) == {-2, -1, 0, 1, 2}
    assert sorted(stream("order").permutation(50).tolist()) == list(range(50))
    assert stream("a").random(3).tolist() != stream("b").random(3).tolist()


def test_outliers_are_whole_channels() -> None:
    made = np.abs(DISTRIBUTIONS["outliers"].draw(stream("channels"), (200, 64)))
    assert (np.median(made, axis=0) > 100).sum() == 1


def test_magnitudes_are_not_negative() -> None:
    for data in EVERY:
        assert (Drawn((3, 50), magnitude=True).values(("m",), data) >= 0).all()


@pytest.mark.parametrize("kind", [float64, float32, float16, bfloat16, float8_e5m2], ids=str)
def test_special_values_are_those_of_the_format(kind: Any) -> None:
    made = special_values(kind)
    assert made.size == 21
    assert np.isnan(made).sum() == 1
    assert np.isinf(made).sum() == 2
    assert np.signbit(made[made == 0]).tolist() == [False, True]
    np.testing.assert_array_equal(round_to(made, kind), made)
    subnormal = (made != 0) & (np.abs(made) < kind.smallest_normal)
    assert subnormal.sum() == 4
    assert kind.largest in made
    assert np.nextafter(0, 1) in made or kind is not float64
    rows = special_rows(5).layout(made)
    assert rows.shape == (63, 5)
    for value in made[:-1]:
        assert (rows == value).any()


@pytest.mark.parametrize("kind", [float32, float16, bfloat16], ids=str)
def test_patterns_come_from_every_part_of_a_format(kind: Any) -> None:
    made = Patterns(4096).values(kind, ("p",))
    bits = round_to(made, kind).astype(kind.numpy).view(f"uint{kind.bits}")
    parts = bits[~np.isnan(made)] >> (kind.bits - 12)
    assert np.unique(parts).size == parts.size > 3900
    assert (np.abs(made) < kind.smallest_normal).any()
    whole = Patterns(65536).values(float16, ("p",))
    assert np.unique(whole[np.isfinite(whole)]).size == 2 * 31 * 1024 - 1


@pytest.mark.parametrize("layout", [Layout.SLICED, Layout.TRANSPOSED])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4), (0, 4), (4, 0)])
def test_a_view_has_the_operand_and_something_around_it(layout: Layout, shape: tuple[int, ...]) -> None:
    x = stream("view").normal(size=shape)
    call = Call("view", "neg", float64, (TensorType(float64, shape),), (x,), {}, layout=layout)
    feeds = call.feeds(TensorType)
    assert feeds["x0"].shape == call.types_of(TensorType)["x0"].shape
    made = evaluate(call.graph(), feeds)[0].popitem()[1]
    np.testing.assert_array_equal(made, -x)
    if layout is Layout.SLICED and x.size > 1:
        assert np.isnan(feeds["x0"]).any()
    assert held(np.ones((2, 3), bool), layout).dtype == bool


def test_the_op_under_test_comes_last() -> None:
    for sample in EACH:
        if sample.layout is not Layout.WHOLE and not OPSET[sample.op].composite:
            call = sample.in_dtype(sample.kinds[0])
            assert call.graph().nodes[-1].op.name == sample.op
            assert len(call.result_types) == len(call.graph().outputs)
