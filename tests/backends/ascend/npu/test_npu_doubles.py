"""Wrong calls raise: by the vendor's schema, or by a double, with the operator and the rule it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xinheng.backends.ascend import doubles
from xinheng.backends.ascend.chips import chip_called

NPU, ATB = torch.ops.npu, torch.ops.atb
FIA = "npu_fused_infer_attention_score"


@pytest.fixture(autouse=True, scope="module")
def installed() -> None:
    doubles.install(chip_called("910b"))


def halves(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.float16)


def causal(kind: torch.dtype = torch.int8) -> torch.Tensor:
    return torch.ones(2048, 2048).triu(1).to(kind)


def attend(**change: Any) -> Any:
    """A right call of fused attention, with some arguments changed; None leaves one out."""
    given: dict[str, Any] = {
        "query": halves(5, 4, 32),
        "key": halves(3, 128, 64),
        "value": halves(3, 128, 64),
        "num_heads": 4,
        "num_key_value_heads": 2,
        "scale": 0.2,
        "input_layout": "TND",
        "block_table": torch.tensor([[2, 0], [1, 0]], dtype=torch.int32),
        "block_size": 128,
        "actual_seq_lengths": [3, 5],
        "actual_seq_lengths_kv": [130, 7],
        "sparse_mode": 3,
        "atten_mask": causal(),
    }
    given = {name: value for name, value in (given | change).items() if value is not None}
    return NPU.npu_fused_infer_attention_score(given.pop("query"), given.pop("key"), given.pop("value"), **given)


ATTENTION: list[tuple[dict[str, Any], str]] = [
    ({"atten_mask": causal(torch.float16)}, "atten_mask must be bool, int8, uint8, not float16"),
    ({"atten_mask": 1 - causal()}, "1 above the diagonal"),
    ({"atten_mask": torch.ones(5, 130, dtype=torch.int8).triu(1)}, "2048 x 2048"),
    ({"atten_mask": None}, "sparse_mode 3 needs a mask"),
    ({"actual_seq_lengths": torch.tensor([3, 5])}, "actual_seq_lengths must be a list of the host, not a tensor"),
    ({"actual_seq_lengths": [3, 2]}, "must be running sums"),
    ({"actual_seq_lengths": [0, 3, 5]}, "as many lengths of keys as of queries"),
    ({"actual_seq_lengths": [2, 4]}, "the last length must be 5 tokens, is 4"),
    ({"actual_seq_lengths_kv": [130, 257]}, "longer than the 256 tokens of block_table"),
    ({"input_layout": "THD"}, "layout 'THD' is not known"),
    ({"input_layout": None}, "input_layout must be given"),
    ({"scale": None}, "scale must be given"),
    ({"block_size": 96}, "block_size 96 is not allowed for several queries"),
    ({"block_table": torch.tensor([[2, 0], [1, 0]])}, "block_table must be int32"),
    ({"block_table": torch.tensor([[2, 9], [1, 0]], dtype=torch.int32)}, "blocks that are not there"),
    ({"num_heads": 2, "num_key_value_heads": 1}, "num_heads is 2, query has 4 heads"),
    ({"query": halves(5, 4, 24), "key": halves(3, 128, 48), "value": halves(3, 128, 48)}, "multiple of 16"),
    ({"query": halves(4, 5, 32).transpose(0, 1)}, "query must be contiguous"),
    ({"key": torch.randn(3, 128, 64)}, "one dtype"),
    ({"key": halves(3, 64, 128), "value": halves(3, 64, 128)}, "the cache must be"),
    ({"sparse_mode": 7}, "sparse_mode 7 is not known"),
]


@pytest.mark.parametrize(("change", "rule"), ATTENTION, ids=[rule for _, rule in ATTENTION])
def test_fused_attention_refuses(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(RuntimeError, match=f"{FIA}.*{rule}"):
        attend(**change)


def test_the_right_call_is_taken() -> None:
    out, lse = attend()
    assert out.shape == (5, 4, 32) and out.isfinite().all() and lse.numel() == 0


def grouped(**change: Any) -> Any:
    given: dict[str, Any] = {
        "weight": torch.ones(128, 16, dtype=torch.int8),
        "antiquant_scale": halves(4, 16),
        "antiquant_group_size": 32,
    }
    given |= change
    return NPU.npu_weight_quant_batchmatmul(halves(3, 128), given.pop("weight"), given.pop("antiquant_scale"), **given)


def scatter(**change: Any) -> Any:
    given: dict[str, Any] = {
        "slots": torch.tensor([3, 300], dtype=torch.int32),
        "mode": "Norm",
        "key": halves(2, 2, 32),
    }
    given |= change
    pages = [torch.zeros(3, 128, 2, 32, dtype=torch.float16) for _ in range(2)]
    NPU.npu_scatter_pa_kv_cache(given["key"], halves(2, 2, 32), *pages, given["slots"], cache_mode=given["mode"])
    return pages


CODES = torch.ones(4, 8, dtype=torch.int8)
MATRIX = torch.ones(8, 6, dtype=torch.int8)
STACK = halves(3, 8, 6)
COUNTS = torch.tensor([1, 2, 1])
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: grouped(antiquant_group_size=24), "group size 24 is no multiple of 32"),
    (lambda: grouped(antiquant_scale=torch.randn(4, 16)), "dtype of x"),
    (lambda: grouped(antiquant_scale=halves(2, 16)), r"antiquant_scale must be \[4, 16\]"),
    (lambda: grouped(bias=torch.randn(16)), "bias must be float16, not float32"),
    (lambda: scatter(slots=torch.tensor([3, -1], dtype=torch.int32)), "slots must lie in 0 to 383"),
    (lambda: scatter(slots=torch.tensor([3.0, 1.0])), "int32, int64, not float32"),
    (lambda: scatter(key=torch.randn(2, 2, 32)), "one dtype"),
    (lambda: scatter(mode="PA_NZ", slots=torch.tensor([3, 1])), "the cache must be"),
    (lambda: scatter(mode="NORM"), "neither Norm nor PA_NZ"),
    (lambda: NPU.npu_rotary_mul(halves(3, 1, 2, 8), halves(3, 1, 1, 4), halves(3, 1, 1, 4)), "full width"),
    (lambda: NPU.npu_rotary_mul(halves(3, 1, 2, 8), *(torch.randn(3, 1, 1, 8),) * 2), "dtype of input"),
    (lambda: NPU.npu_rms_norm(halves(2, 8), torch.ones(8)), "dtype of x"),
    (lambda: NPU.npu_swiglu(halves(2, 7)), "must be even"),
    (lambda: NPU.npu_quant_matmul(CODES, MATRIX, torch.ones(6), output_dtype=5), "scale per token"),
    (lambda: NPU.npu_quant_matmul(CODES, MATRIX, torch.ones(6), pertoken_scale=torch.ones(4)), "float16 and bfloat16"),
    (lambda: NPU.npu_dynamic_quant(torch.randn(2, 8)), "float16, bfloat16, not float32"),
    (lambda: NPU.npu_add_rms_norm_dynamic_quant(halves(2, 8), halves(2, 8), torch.ones(8)), "gamma must be float16"),
    (lambda: NPU.npu_add_rms_norm_dynamic_quant(halves(2, 8), halves(1, 8), halves(8)), "one shape"),
    (lambda: NPU.npu_swiglu_quant(halves(2, 8), activate_left=True), "quant_mode must be given"),
    (lambda: NPU.npu_swiglu_quant(halves(2, 8194), activate_left=True, quant_mode=1), "at most 8192"),
    (lambda: NPU.npu_top_k_top_p(torch.randn(2, 8), None, None), "must not both be left out"),
    (lambda: NPU.npu_top_k_top_p(torch.randn(2, 8), None, torch.tensor([0, 3]).int()), "k must lie in 1 to 8"),
    (lambda: NPU.npu_top_k_top_p(torch.randn(2, 8), None, torch.tensor([1, 3])), "k must be int32"),
    (lambda: NPU.npu_top_k_top_p(torch.randn(2, 8), halves(2)), "p must have the dtype of logits"),
    (lambda: NPU.npu_top_k_top_p(torch.randn(2, 8), torch.tensor([0.5, 1.5])), "p must lie in 0 to 1"),
    (lambda: NPU.npu_format_cast(torch.randn(16, 16), 29), "cannot lie in FRACTAL_NZ"),
    (lambda: NPU.npu_convert_weight_to_int4pack(torch.full((8, 8), 9, dtype=torch.int32)), "-8 to 7"),
    (lambda: NPU.npu_grouped_matmul([halves(4, 8)], [STACK], group_list=COUNTS, split_item=3), "group_type 0"),
    (lambda: NPU.npu_grouped_matmul([halves(4, 8)], [STACK], group_list=COUNTS.int(), group_type=0), "int64 tensor"),
    (lambda: NPU.npu_moe_gating_top_k_softmax(halves(2, 4), None, 5), "k must be 1 to 4"),
    (lambda: NPU.npu_moe_gating_top_k(halves(2, 8), 2, group_count=4), "more than two experts"),
    (lambda: ATB._npu_reshape_and_cache(*(halves(1, 1, 16),) * 2, *(halves(2, 1, 16, 16),) * 2, COUNTS[:1]), "int32"),
]


@pytest.mark.parametrize(("call", "rule"), WRONG, ids=[rule for _, rule in WRONG])
def test_other_operators_refuse(call: Callable[[], Any], rule: str) -> None:
    doubles.emulate(chip_called("910b"))
    with pytest.raises(RuntimeError, match=rule):
        call()


def test_the_schema_refuses_names_it_does_not_know() -> None:
    with pytest.raises(RuntimeError, match="antiquant_groupsize"):
        grouped(antiquant_groupsize=32)


def prompts(**change: Any) -> Any:
    """A right call of ATB's attention over whole prompts, with some arguments changed."""
    doubles.emulate(chip_called("310p"))
    mask = torch.zeros(1, 1, 16, 16, dtype=torch.float16)
    given: dict[str, Any] = {
        "query": halves(16, 4, 32),
        "key": halves(16, 2, 32),
        "value": halves(16, 2, 32),
        "mask": NPU.npu_format_cast(mask, 29),
        "seq_len": torch.tensor([10, 6], dtype=torch.int32),
        "out": halves(16, 4, 32),
    } | change
    ATB._npu_flash_attention(scale_value=0.2, num_heads=4, num_kv_heads=2, **given)
    return given["out"]


PROMPTS: list[tuple[dict[str, Any], str]] = [
    ({"mask": torch.zeros(1, 1, 16, 16, dtype=torch.float16)}, "FRACTAL_NZ"),
    ({"mask": torch.zeros(1, 1, 16, 16, dtype=torch.int8)}, "mask must be float16"),
    ({"query": halves(15, 4, 32), "out": halves(15, 4, 32), "key": halves(15, 2, 32), "value": halves(15, 2, 32)},
     "in steps of 16, not 15"),
    ({"seq_len": torch.tensor([10, 6])}, "seq_len must be int32"),
    ({"seq_len": torch.tensor([10, 5], dtype=torch.int32)}, "add up to 16 tokens"),
    ({"key": halves(32, 2, 32)}, "key and value must be"),
    ({"query": torch.randn(16, 4, 32)}, "query must be float16"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "rule"), PROMPTS, ids=[rule for _, rule in PROMPTS])
def test_attention_over_prompts_refuses(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(RuntimeError, match=f"_npu_flash_attention.*{rule}"):
        prompts(**change)


def test_attention_over_prompts_takes_the_right_call() -> None:
    assert prompts().isfinite().all()


@pytest.mark.parametrize("word", ["310p", "910a"])
def test_operators_of_later_generations_are_not_there(word: str) -> None:
    doubles.emulate(chip_called(word))
    with pytest.raises(RuntimeError, match=f"{FIA}: is not supported on {chip_called(word).soc}"):
        attend()


def test_repeated_slots_leave_nothing_to_rely_on() -> None:
    doubles.emulate(chip_called("910b"))
    keys, _ = scatter(slots=torch.tensor([5, 5], dtype=torch.int32))
    assert keys[0, 5].isnan().all() and keys[0, :5].isfinite().all()


def test_every_schema_has_a_double_and_nothing_else() -> None:
    assert doubles.schemas().keys() == doubles.DOUBLES.keys()
