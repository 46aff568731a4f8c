"""A call on a cache of other blocks means the same, and what a device may refuse is what it says that it lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.conformance.cases import SAMPLES, Sample, find
from xinheng.conformance.declared import excuse
from xinheng.conformance.paging import repaged, restored
from xinheng.core.errors import UnsupportedOp
from xinheng.core.hal import Capabilities
from xinheng.core.ir.dtype import DTYPES, bfloat16, float64, int64
from xinheng.core.ops import OPSET

CACHED: list[Sample] = [
    sample
    for op, samples in SAMPLES.items()
    if any(o.name == "cache" for o in OPSET[op].operands)
    for sample in samples
]
EVERY = frozenset(DTYPES.values())


def limits(*sizes: int, **others: Any) -> Capabilities:
    return Capabilities(EVERY, block_sizes=sizes, **others)


def parts(results: tuple[Any, ...]) -> list[Any]:
    return [np.asarray(part) for x in results for part in (x if hasattr(x, "_fields") else (x,))]


@pytest.mark.parametrize("sizes", [(128,), (3, 256), ()], ids=str)
@pytest.mark.parametrize("sample", [pytest.param(sample, id=sample.id) for sample in CACHED])
def test_the_meaning_stays(sample: Sample, sizes: tuple[int, ...]) -> None:
    call = sample.case().call
    other = repaged(call, limits(*sizes))
    names = [operand.name for operand in OPSET[call.op].operands]
    size = other.values[names.index("cache")][0].shape[1]
    if sizes:
        assert size in sizes
    elif "block_table" in names:
        assert other.values[names.index("block_table")].shape[1] == 1
    got, want = parts(restored(call, other.reference())), parts(call.reference())
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)


def test_blocks_that_fit_are_left_alone() -> None:
    call = find("paged_attention/f32/prefill/normal/0").call
    assert repaged(call, limits(4, 16)) is call
    plain = find("add/f32/3x5,3x5/normal/0").call
    assert repaged(plain, limits(16)) is plain


def test_blocks_larger_than_the_largest_cannot_be_copied() -> None:
    with pytest.raises(UnsupportedOp, match="has blocks of 2 tokens; the largest of the device have 1"):
        repaged(find("copy_blocks/f32/nothing/given/0").call, limits(1))


def test_block_numbers_of_new_tables_are_out_of_order() -> None:
    call = repaged(find("paged_attention/f32/decode/normal/0").call, limits(2))
    table = call.values[[o.name for o in OPSET[call.op].operands].index("block_table")]
    used = table[table >= 0]
    assert len(set(used)) == used.size
    assert (np.diff(used) < 0).all()


# ------------------------------------------------------------------------------------------------------------- excuses
@pytest.mark.parametrize(
    ("id", "reason"),
    [
        ("add/bf16/3x5,3x5/normal/0", "lists no bfloat16"),
        ("matmul/int64/1x2,2x1_int64/given/0", "lists no int64"),
        ("linear/f32/3x64,5x64_bfloat16/normal/0", "lists no bfloat16"),
        ("write_cache/bf16/odd/normal/0", "lists no bfloat16"),
        ("nonzero/f32/3x127/given/0", "lists no int64"),
    ],
)
def test_a_missing_dtype_excuses(id: str, reason: str) -> None:
    call = find(id).call
    assert reason in (excuse(call, Capabilities(EVERY - {bfloat16, int64})) or "")
    assert excuse(call, Capabilities(EVERY)) is None


def test_fixed_sizes_excuse_what_makes_sizes() -> None:
    gather, add = find("gather_kv_cache/f32/freed-blocks/given/0").call, find("add/f32/3x5,3x5/normal/0").call
    fixed = Capabilities(EVERY, dynamic_shapes=False)
    assert "takes fixed sizes only, and gathered is known" in (excuse(gather, fixed) or "")
    assert excuse(add, fixed) is None
    assert excuse(add, Capabilities(EVERY - {float64})) is None


def test_a_longest_sequence_excuses_longer_ones() -> None:
    call = find("paged_attention/f32/decode/normal/0").call
    assert "at most 8 tokens, not 9" in (excuse(call, limits(16, max_length=8)) or "")
    assert excuse(call, limits(16, max_length=9)) is None
