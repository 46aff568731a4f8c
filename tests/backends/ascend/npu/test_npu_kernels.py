"""Every other kernel over the vendor's operators computes its op within the computed error bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.backends.ascend.doubles.call import OperatorDouble
from xinheng.backends.ascend.torch_npu.grouped import coding_of
from xinheng.backends.ascend.torch_npu.handles import NPUWeight, TiledPagedKV
from xinheng.conformance.case import Sample
from xinheng.conformance.cases import SAMPLES
from xinheng.conformance.cases.moe import _stack, _weights
from xinheng.conformance.operands import KV, F, T, W, ints, normal, rng
from xinheng.core.hal import StateSpace, WeightPart, WeightSource
from xinheng.core.ir import DTYPES, DType
from xinheng.core.ir.dtype import float32
from xinheng.core.ir.types import paged_kv
from xinheng.core.schemes import scheme

from ....samples import EVERY, demand
from .emulated import DEVICES, use

KINDS = ("float32", "float16", "bfloat16")
ATTENTION = ("paged_attention", "mla_attention", "sdpa_varlen")
GROUPED = ["q4_0", "q8_0", *(f"int{b}_g{g}{s}" for b in (4, 8) for g in (32, 64, 128) for s in ("", "_bf16"))]


def kernels(word: str) -> list[tuple[str, str]]:
    """The kernels of a generation that plain torch does not have, by op."""
    registry = DEVICES[word].kernels
    mine = [(op, k.name) for op in registry.ops() for k in registry.candidates(op)]
    return [(op, name) for op, name in mine if name.startswith("npu_") and op not in ATTENTION]


def trials(word: str) -> list[tuple[str, Sample, DType, str]]:
    device, found = DEVICES[word], []
    for op, name in kernels(word):
        for sample in (s for s in EVERY if s.op == op):
            for kind in KINDS if sample.floats else KINDS[:1]:
                node = sample.in_dtype(DTYPES[kind]).graph().nodes[-1]
                if DTYPES[kind] in device.capabilities.dtypes and device.select(node, name)[0] is not None:
                    found.append((word, sample, DTYPES[kind], name))
    return found


TRIALS = [trial for word in ("910b", "310p") for trial in trials(word)]


@pytest.mark.parametrize(
    ("word", "sample", "kind", "kernel"), [pytest.param(*t, id=f"{t[0]}-{t[3]}-{t[1].id}-{t[2]}") for t in TRIALS]
)
def test_kernel_is_within_its_bound(word: str, sample: Sample, kind: DType, kernel: str) -> None:
    demand(sample, kind, use(word), kernel)


def test_every_kernel_has_a_case() -> None:
    # these have tests below
    rare = {"npu_fused_moe", "npu_weight_quant_batchmatmul", "npu_swiglu", "npu_reshape_and_cache"}
    for word in ("910b", "310p"):
        assert {name for _, name in kernels(word)} - {t[3] for t in TRIALS if t[0] == word} <= rare
    assert kernels("910a") == []


def test_atlas_cards_take_wide_gates() -> None:
    demand(
        Sample("silu_and_mul", "wide", (normal(3, 32),) * 2, {}, data=("normal",)),
        DTYPES["float16"],
        use("310p"),
        "npu_swiglu",
    )


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_atlas_cards_write_a_cache_in_tiles(kind: str) -> None:
    made = rng("pages").normal(size=(3, 128, 2, 32))
    operands = (KV(made, made[::-1].copy()), normal(4, 2, 32), normal(4, 2, 32), ints([5, -1, 300, 127]))
    sample = Sample("write_cache", "tiles", operands, {}, data=("normal",))
    node = sample.in_dtype(DTYPES[kind]).graph().nodes[-1]
    name = "npu_reshape_and_cache" if kind == "float16" else "torch_write_cache"
    chosen = use("310p").select(node)[0]
    assert chosen is not None and chosen.name == name
    demand(sample, DTYPES[kind], use("310p"), name)


def source_of(coding: str, rows: int, columns: int) -> WeightSource:
    pack = scheme(coding).pack
    assert pack is not None
    data = pack(rng("packed", coding).normal(size=(rows, columns)).astype(np.float32))
    return WeightSource("w", (rows, columns), (WeightPart(coding, rows, lambda: data),))


@pytest.mark.parametrize("coding", GROUPED)
@pytest.mark.parametrize("columns", [128, 384])
def test_grouped_weights_multiply_in_the_dtype_of_their_scales(coding: str, columns: int) -> None:
    kind = DTYPES["bfloat16" if coding.endswith("_bf16") else "float16"]
    weight = W(rng("w", coding).normal(size=(24, columns)), ((coding, 24),))
    sample = Sample("linear", coding, (normal(5, columns), weight, normal(24)), {}, data=("normal",))
    demand(sample, kind, use("910b"), "npu_weight_quant_batchmatmul")
    other = DTYPES["float16" if kind.name == "bfloat16" else "bfloat16"]
    chosen, refusals = use("910b").select(sample.in_dtype(other).graph().nodes[-1])
    assert chosen is not None and chosen.name == "torch_linear"
    assert any("must be the dtype of activations" in refusal.reason for refusal in refusals)


def channels(rows: int, columns: int, biased: bool) -> Sample:
    """A product with weights of int8 and a scale per channel; rows of activations are zero, large and small."""
    given = rng("tokens").normal(size=(5, columns)) * np.array([1, 0, 300, 1e-3, 1])[:, None]
    weight = W(rng("channels").normal(size=(rows, columns)), (("int8_row", rows),))
    return Sample("linear", "w8a8", (F(given), weight, normal(rows) if biased else None), {}, data=("normal",))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns", "biased"), [(24, 96, True), (7, 33, False)])
def test_fast_mode_multiplies_int8_by_int8(rows: int, columns: int, biased: bool, kind: str) -> None:
    demand(channels(rows, columns, biased), DTYPES[kind], use("910b", "fast"), "npu_quant_matmul")


def test_fast_products_of_many_channels_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from xinheng.backends.ascend.torch_npu.kernels import quantization

    monkeypatch.setattr(quantization, "ROWS", 16)
    demand(channels(40, 64, True), DTYPES["float16"], use("910b", "fast"), "npu_quant_matmul")


@pytest.mark.parametrize(("word", "mode", "kind"), [("910b", "strict", "float16"), ("310p", "fast", "float16"),
                                                    ("910b", "fast", "float32")])  # fmt: skip
def test_elsewhere_activations_stay_as_they_are(word: str, mode: str, kind: str) -> None:
    chosen, _ = use(word, mode).select(channels(24, 96, True).in_dtype(DTYPES[kind]).graph().nodes[-1])
    assert chosen is not None and chosen.name == "torch_linear"


def test_fast_mode_declares_what_it_rounds() -> None:
    for word, mode, told in (("910b", "strict", False), ("910b", "fast", True), ("310p", "fast", False)):
        arithmetic = use(word, mode).capabilities.arithmetic
        assert arithmetic is not None and bool(arithmetic.programs) == told


DRAWS = ("top_k-5", "top_p-0.55", "top_p-0.9", "all", "mixed", "top_p-of-top_k", "min_p-of-top_p", "greedy", "plain")
SAMPLED = [
    sample
    for sample in SAMPLES["top_k_top_p_sample"]
    if sample.label.split("_", 1)[1] in {f"{row}-{draw}" for row in ("tied", "masked") for draw in DRAWS}
    or sample.label.endswith(("many-top_p", "many-top_k"))
]


@pytest.mark.parametrize("sample", SAMPLED, ids=lambda sample: sample.label)
def test_tokens_are_drawn_as_the_reference_draws_them(sample: Sample) -> None:
    demand(sample, DTYPES["float32"], use("910b"), "npu_top_k_top_p")


@pytest.mark.parametrize("word", ["310p", "910a"])
def test_other_generations_sort(word: str) -> None:
    chosen, _ = use(word).select(SAMPLED[0].in_dtype(DTYPES["float32"]).graph().nodes[-1])
    assert chosen is not None and chosen.name == "torch_top_k_top_p_sample"


@pytest.mark.parametrize(("top_k", "top_p", "width", "called"), [
    ([0, 0], [0.9, 0.5], 41, ["npu_top_k_top_p"]), ([5, 3], [0.9, 0.5], 41, []), ([0, 5], [0.9, 0.5], 41, []),
    ([0, 0], [0.9, 1.0], 41, []), ([0, 0], [0.9, 0.99], 3000, ["npu_top_k_top_p"]),
])  # fmt: skip
def test_the_operator_filters_rows_without_top_k(
    top_k: list[int], top_p: list[float], width: int, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    plain = OperatorDouble.__call__

    def call(self: OperatorDouble, *args: Any, **kwargs: Any) -> Any:
        seen.append(self._name)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(OperatorDouble, "__call__", call)
    flat = rng("flat").normal(size=(2, width)) * 0.01
    kept = (T(np.array(x), float32) for x in (top_p, [0.0, 0.0]))
    operands = (
        T(flat, float32),
        T(np.array([0.3, 0.7]), float32),
        T(np.array([0.7, 1.0]), float32),
        ints(top_k),
        *kept,
    )
    demand(
        Sample("top_k_top_p_sample", "flat", operands, {}, data=("normal",)), float32, use("910b"), "npu_top_k_top_p"
    )
    assert seen == called


@pytest.mark.parametrize("coding", GROUPED)
def test_repacking_is_exact(coding: str) -> None:
    source, how = source_of(coding, 16, 256), coding_of(coding)
    assert how is not None
    codes, scale, offset = how.unpack(source.parts[0].load())
    wide = codes.astype(np.float64).reshape(*scale.shape, -1) + (0.0 if offset is None else offset[..., None])
    values = wide * scale.astype(np.float64)[..., None]
    np.testing.assert_array_equal(values.reshape(16, 256), source.unpack(np.float64))


@pytest.mark.parametrize(("coding", "rows"), [("q4_0", 12), ("q4_k", 16), ("int8_row", 16)])
def test_other_weights_stay_planes(coding: str, rows: int) -> None:
    held = use("910b").prepare(source_of(coding if coding != "q4_k" else "q4_1", rows, 256), ["linear"])
    assert not isinstance(held, NPUWeight) and held.layout == "planes of codes and scales"


def test_matrices_of_atlas_cards_lie_in_tiles() -> None:
    device = use("310p")
    assert device.prepare(source_of("float16", 32, 64), ["linear"]).layout == "FRACTAL_NZ"
    assert device.prepare(source_of("float16", 32, 64), ["linear", "embedding"]).layout == "as stored"
    assert use("910b").prepare(source_of("float16", 32, 64), ["linear"]).layout == "as stored"


@pytest.mark.parametrize("kind", KINDS)
def test_experts_run_by_the_operators_for_experts(kind: str) -> None:
    experts = ints([[0, 2], [1, 2], [2, 0], [2, 1], [0, 1]])
    nets = [_stack(3, 24, 16, kind), _stack(3, 24, 16, kind, "up"), _stack(3, 16, 24, kind, "down")]
    operands = (normal(5, 16, scale=0.25), _weights(5, 2), experts, *nets)
    demand(Sample("fused_moe", kind, operands, {}, data=("normal",)), DTYPES[kind], use("910b"), "npu_fused_moe")


@pytest.mark.parametrize(("word", "tiled"), [("310p", True), ("910b", False)])
def test_states_can_be_read_and_set_whatever_their_order(word: str, tiled: bool) -> None:
    device, kind = use(word), paged_kv(2, 32, 32, "float16")
    state = device.allocate_state(kind, StateSpace(3, 128))
    assert isinstance(state, TiledPagedKV) == tiled
    new = [np.random.default_rng(i).normal(size=(3, 128, 2, 32)).astype(np.float16) for i in (1, 2)]
    device.write_state(state, kind, tuple(new))
    for held, given in zip(device.read_state(state, kind), new, strict=True):
        np.testing.assert_array_equal(held, given)
