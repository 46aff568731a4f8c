"""Every call of the vendor's operators, held against the vendor's own schemas, Meta kernels and dispatcher.

`make test-npu-contract` runs this behind the tests of kernels, whose calls it checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.library import opcheck

from xinheng.backends.ascend import doubles

from . import vendor

if vendor.FOLDER is None:
    pytest.skip("the vendor's package is in an environment of its own; make test-npu-contract", allow_module_level=True)

WITHOUT_META = frozenset(
    name for name in doubles.schemas() if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")
)
"""Operators for which the package has no Meta kernel: only the schema can be checked."""
IN_GRAPHS = frozenset(
    name
    for version in ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")
    for name in (f"npu::{version}.out", f"npu::_{version}_get_max_workspace")
)
"""Those that are called while a graph is captured or renewed, which needs a device: their schemas are checked."""

WITHOUT_K = "npu::npu_top_k_top_p"
"""The operator whose Meta kernel needs a k that its schema and manual do not."""


def registered(name: str) -> str:
    """The schema that the package registered, as text."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return str(getattr(getattr(getattr(torch.ops, space), packet), overload or "default")._schema)


@pytest.mark.parametrize("name", sorted(doubles.schemas()))
def test_our_copy_of_a_schema_is_that_of_the_package(name: str) -> None:
    assert doubles.schemas()[name] == registered(name)


def test_the_meta_kernels_that_are_missing_are_known() -> None:
    known = IN_GRAPHS | {"npu::npu_convert_weight_to_int4pack", "npu::npu_format_cast"}
    assert {name for name in WITHOUT_META if name.startswith("npu::")} <= known


def test_every_operator_is_called_by_a_test() -> None:
    called = {func.name() for func, *_ in vendor.CALLS.values()}
    assert set(doubles.schemas()) - called <= IN_GRAPHS


def test_every_call_passes_the_checks_of_torch() -> None:
    failed = []
    for key, (func, args, kwargs, chip) in vendor.CALLS.items():
        checks = ["test_schema"] if func.name() in WITHOUT_META | {WITHOUT_K} else ["test_schema", "test_faketensor"]
        doubles.emulate(chip)
        with vendor.bare((args, kwargs)):
            found: dict[str, str] = opcheck(func, args, kwargs, test_utils=checks, raise_exception=False)
        failed += [f"{check}: {told}\n{key[:300]}" for check, told in found.items() if told != "SUCCESS"]
    assert len(vendor.CALLS) > 50
    assert not failed, "\n\n".join(failed)


def test_top_p_alone_is_known_to_the_schema_and_not_to_the_meta_kernel() -> None:
    logits, p, k = (torch.empty(shape, device="meta") for shape in ((2, 8), (2,), (2,)))
    filter_logits = torch.ops.npu.npu_top_k_top_p._operator
    made = filter_logits(logits, p, k.to(torch.int32))
    assert (made.shape, made.dtype) == (logits.shape, logits.dtype)
    # once this is mended there, the calls can be checked like those of the other operators
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'k'"):
        filter_logits(logits, p)


HALF: dict[str, Any] = {"dtype": torch.float16}
CACHE = torch.zeros(4, 128, 64, **HALF)
ATTENTION = {
    "num_heads": 1, "scale": 0.125, "input_layout": "TND", "actual_seq_lengths": [2], "actual_seq_lengths_kv": [2],
    "block_table": torch.zeros(1, 4, dtype=torch.int32), "block_size": 128, "num_key_value_heads": 1,
    "sparse_mode": 3, "atten_mask": torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1),
}  # fmt: skip
CODES = torch.zeros(64, 8, dtype=torch.int8)


def attention(**changed: object) -> object:
    given = {key: value for key, value in (ATTENTION | changed).items() if value is not None}
    return torch.ops.npu.npu_fused_infer_attention_score(torch.zeros(2, 1, 64, **HALF), CACHE, CACHE, **given)


WRONG: dict[str, Callable[[], object]] = {
    "a float mask": lambda: attention(atten_mask=torch.zeros(2048, 2048, **HALF)),
    "lengths as a tensor": lambda: attention(actual_seq_lengths=torch.tensor([2])),
    "lengths that are not running sums": lambda: attention(actual_seq_lengths=[3]),
    "an unknown layout": lambda: attention(input_layout="TDN"),
    "no scale": lambda: attention(scale=None),
    "a block table of 64 bits": lambda: attention(block_table=torch.zeros(1, 4, dtype=torch.int64)),
    "a mask of another size": lambda: attention(atten_mask=torch.zeros(2, 2, dtype=torch.int8)),
    "blocks of 16 tokens": lambda: attention(block_size=16),
    "an unknown keyword": lambda: attention(number_of_heads=2),
    "groups of 24 columns": lambda: torch.ops.npu.npu_weight_quant_batchmatmul(
        torch.zeros(2, 64, **HALF), CODES, torch.zeros(3, 8, **HALF), antiquant_group_size=24
    ),
    "a missing scale": lambda: torch.ops.npu.npu_quant_matmul(CODES[:4, :8], torch.zeros(8, 8, dtype=torch.int8)),
    "an epsilon by another name": lambda: torch.ops.npu.npu_rms_norm(CACHE, torch.ones(64, **HALF), eps=1e-6),
    "a scale per token of another length": lambda: torch.ops.npu.npu_quant_matmul(
        CODES[:4, :8], CODES[:8], torch.ones(8), pertoken_scale=torch.ones(3), output_dtype=5
    ),
    "a scale per channel in float16": lambda: torch.ops.npu.npu_quant_matmul(
        CODES[:4, :8], CODES[:8], torch.ones(8, **HALF), pertoken_scale=torch.ones(4), output_dtype=5
    ),
    "codes of float32": lambda: torch.ops.npu.npu_dynamic_quant(torch.ones(2, 8)),
    "a norm of another width": lambda: torch.ops.npu.npu_add_rms_norm_dynamic_quant(
        torch.ones(2, 8, **HALF), torch.ones(2, 8, **HALF), torch.ones(4, **HALF)
    ),
    "a gate without a mode": lambda: torch.ops.npu.npu_swiglu_quant(torch.ones(2, 8, **HALF), activate_left=True),
    "neither top-k nor top-p": lambda: torch.ops.npu.npu_top_k_top_p(torch.zeros(2, 8), None, None),
    "a top-k of 64 bits": lambda: torch.ops.npu.npu_top_k_top_p(torch.zeros(2, 8), None, torch.tensor([2, 2])),
    "sinks of float16": lambda: torch.ops.npu.npu_fused_infer_attention_score_v2(
        torch.zeros(2, 1, 64, **HALF),
        CACHE,
        CACHE,
        num_query_heads=1,
        softmax_scale=0.125,
        input_layout="TND",
        actual_seq_qlen=[2],
        actual_seq_kvlen=[2],
        block_table=torch.zeros(1, 4, dtype=torch.int32),
        block_size=128,
        learnable_sink=torch.zeros(1, **HALF),
    ),
    "a prompt mask in rows": lambda: torch.ops.atb._npu_flash_attention(
        *(torch.zeros(16, 1, 16, **HALF),) * 3,
        torch.zeros(16, 16, **HALF),
        torch.tensor([16], dtype=torch.int32),
        0.25,
        1,
        1,
        torch.zeros(16, 1, 16, **HALF),
    ),
    "weights of floats": lambda: torch.ops.npu.npu_quant_matmul(
        torch.zeros(2, 64, **HALF), torch.zeros(64, 8, **HALF), torch.ones(8)
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_caught(name: str) -> None:
    attention()
    with pytest.raises((RuntimeError, TypeError)):
        WRONG[name]()
