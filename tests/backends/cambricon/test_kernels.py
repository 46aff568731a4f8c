"""Every kernel over doubles of torch_mlu_ops computes its op within the computed error bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xinheng.backends.cambricon.codes import coded
from xinheng.conformance.case import Sample
from xinheng.conformance.cases.sequences import GARBAGE, SCENES, Scene
from xinheng.conformance.operands import W, normal, rng
from xinheng.core.hal import WeightPart
from xinheng.core.ir import DTYPES, DType
from xinheng.core.schemes import scheme

from ...samples import EVERY, demand
from ...scenes import latent_sample, paged_sample
from .hosted import DEVICES

KINDS = ("float32", "float16", "bfloat16")
SIZE = 16
WIDER = ("B32", "B64", "B128")
"""Labels of samples with blocks of more tokens than any on a card."""
NEW, OLD, SMALL, NONE = "mlu590@tmo_1_12", "mlu590@tmo_1_3", "mlu370@tmo_1_3", "mlu590@torch"


def kernels(spec: str) -> list[tuple[str, str]]:
    """The kernels of a device that plain torch does not have, by op."""
    registry = DEVICES[spec].kernels
    return [(op, kernel.name) for op in registry.ops() for kernel in registry.own(op)]


def trials(spec: str) -> list[tuple[str, Sample, DType, str]]:
    device, found = DEVICES[spec], []
    for op, name in kernels(spec):
        for sample in (s for s in EVERY if s.op == op and not s.label.startswith(WIDER)):
            for kind in KINDS if sample.floats else KINDS[:1]:
                if DTYPES[kind] not in device.capabilities.dtypes:
                    continue
                node = sample.in_dtype(DTYPES[kind]).graph().nodes[-1]
                if device.select(node, name)[0] is not None:
                    found.append((spec, sample, DTYPES[kind], name))
    return found


TRIALS = [trial for spec in (NEW, OLD, SMALL) for trial in trials(spec)]


@pytest.mark.parametrize(
    ("spec", "sample", "kind", "kernel"), [pytest.param(*t, id=f"{t[0]}-{t[3]}-{t[1].id}-{t[2]}") for t in TRIALS]
)
def test_kernel_is_within_its_bound(spec: str, sample: Sample, kind: DType, kernel: str) -> None:
    demand(sample, kind, DEVICES[spec], kernel)


def test_every_kernel_has_a_case() -> None:
    rare = {"tmo_latent_attention", "tmo_attention", "tmo_scaled_matmul", "tmo_weight_only_quant_matmul"}  # below
    for spec in (NEW, OLD):
        assert {name for _, name in kernels(spec)} - {t[3] for t in TRIALS if t[0] == spec} <= rare
    assert kernels(NONE) == [("random_uniform", "torch_random_uniform_int32")]


def sample_of(note: str, scene: Scene) -> Sample:
    """A sample of `paged_attention` with NaN around the keys.

    Whether the functions read keys outside of a window, which then have no weight, is not documented: those are finite.
    """
    return paged_sample(note, scene, SIZE, np.nan if scene.window is None else GARBAGE)


LONG = {
    "prompt of 70": Scene([(70, 70)], widths=(32, 32)),
    "mixture": Scene([(21, 90), (1, 57), (7, 16)], widths=(64, 64)),
    "mixture in a window": Scene([(21, 90), (1, 57), (7, 16)], widths=(64, 64), window=19),
    "decode in a window": Scene([(1, 90), (1, 30), (1, 16), (1, 17)], widths=(32, 32), window=17),
    "decode with sinks": Scene([(1, 40), (1, 3)], widths=(32, 32), sinks=True),
    "window and sinks": Scene([(5, 40), (1, 3)], widths=(32, 32), sinks=True, window=9),
    "decode, not causal": Scene([(1, 40), (1, 3)], widths=(32, 32), causal=False),
    "rows without keys and sinks": Scene([(2, 4), (0, 3), (2, 0)], widths=(32, 32), sinks=True, unused=2),
    "130 heads a key": Scene([(1, 9), (1, 20)], heads=(130, 1), widths=(32, 32)),
    "260 heads a key": Scene([(1, 9), (1, 20)], heads=(260, 1), widths=(32, 32)),
}
PLAIN = {
    note: replace(scene, widths=(32, 32))
    for note, scene in SCENES.items()
    if not (scene.bias or scene.softcap) and (scene.causal or scene.window is None) and scene.heads[0] <= 9
}


@pytest.mark.parametrize(("spec", "kind"), [(NEW, "bfloat16"), (NEW, "float16"), (SMALL, "float16")])
@pytest.mark.parametrize("note", [*PLAIN, *LONG])
def test_attention(note: str, spec: str, kind: str) -> None:
    demand(sample_of(note, (PLAIN | LONG)[note]), DTYPES[kind], DEVICES[spec], "tmo_attention")


LATENT = {
    "decode": Scene([(1, 19), (1, 1), (1, 40)]),
    "prompt": Scene([(20, 20)]),
    "mixture": Scene([(4, 30), (1, 7), (2, 2)]),
    "not causal": Scene([(3, 20), (2, 2)], causal=False),
    "rows without keys": Scene([(2, 4), (0, 3), (2, 0)], unused=2),
    "more queries than keys": Scene([(4, 2)]),
}


@pytest.mark.parametrize(("kind", "heads"), [("float16", 16), ("bfloat16", 3), ("float16", 130)])
@pytest.mark.parametrize("note", LATENT)
def test_latent_attention(note: str, kind: str, heads: int) -> None:
    demand(latent_sample(note, LATENT[note], heads, SIZE), DTYPES[kind], DEVICES[NEW], "tmo_latent_attention")


@pytest.mark.parametrize("spec", [OLD, SMALL])
def test_latents_lie_apart_where_values_cannot_be_part_of_keys(spec: str) -> None:
    node = latent_sample("decode", LATENT["decode"], 16, SIZE).in_dtype(DTYPES["float16"]).graph().nodes[-1]
    chosen, _ = DEVICES[spec].select(node)
    assert chosen is not None and chosen.name == "torch_mla_attention_by_token"


@pytest.mark.parametrize("note", ["softcap", "bias"])
def test_what_the_function_does_not_take_runs_in_plain_torch(note: str) -> None:
    scene = Scene([(5, 40), (1, 3)], widths=(32, 32), softcap=5.0 if note == "softcap" else None)
    sample = sample_of(note, scene)
    if note == "bias":
        sample = replace(sample, operands=(*sample.operands, normal(scene.tokens, 4, 48)))
    node = sample.in_dtype(DTYPES["float16"]).graph().nodes[-1]
    chosen, refusals = DEVICES[NEW].select(node)
    assert chosen is not None and chosen.name == "torch_paged_attention_by_token"
    assert any(refusal.kernel == "tmo_attention" and note in refusal.reason for refusal in refusals)
    demand(sample, DTYPES["float16"], DEVICES[NEW], chosen.name)


def stored(coding: str, numbers: np.ndarray[Any, Any]) -> Any:
    """Rows of bytes of numbers [rows, columns]."""
    pack = scheme(coding).pack
    assert pack is not None
    return pack(numbers.astype(np.float32))


CODED = {"int4_g64": "float16", "int4_g128_bf16": "bfloat16", "int8_g128": "float16", "int8_row": "bfloat16"}


@pytest.mark.parametrize(("spec", "kernel"), [(NEW, "tmo_scaled_matmul"), (OLD, "tmo_weight_only_quant_matmul")])
@pytest.mark.parametrize("coding", CODED)
def test_products_with_codes(coding: str, spec: str, kernel: str) -> None:
    weight = W(rng("codes", coding).normal(size=(7, 256)), ((coding, 3), (coding, 4)))
    for label, operands in (("plain", (normal(5, 256), weight)), ("bias", (normal(2, 3, 256), weight, normal(7)))):
        demand(Sample("linear", label, operands, {}, data=("normal",)), DTYPES[CODED[coding]], DEVICES[spec], kernel)


@pytest.mark.parametrize("coding", ["q4_0", "q8_0", "int4_g32", "q4_k", "int8_g64_bf16"])
def test_weights_that_do_not_fit_are_expanded(coding: str) -> None:
    weight = W(rng("codes", coding).normal(size=(7, 256)), ((coding, 7),))
    sample = Sample("linear", coding, (normal(5, 256), weight), {}, data=("normal",))
    chosen, refusals = DEVICES[NEW].select(sample.in_dtype(DTYPES["float16"]).graph().nodes[-1])
    assert chosen is not None and chosen.name == "torch_linear"
    assert any(refusal.kernel == "tmo_scaled_matmul" and coding in refusal.reason for refusal in refusals)
    demand(sample, DTYPES["float16"], DEVICES[NEW], chosen.name)


def values(coding: str, data: Any) -> np.ndarray[Any, Any]:
    """What repacked rows mean, in float64; and that their codes have the bits they say."""
    made = coded(WeightPart(coding, len(data), lambda: data))
    assert made is not None
    bits, codes, scale, _ = made
    wide = codes.astype(np.int64)
    if bits == 4:
        wide = np.stack(((wide & 15 ^ 8) - 8, wide >> 4), -1).reshape(len(data), -1)
    factors = scale.astype(np.float64).reshape(len(data), -1)
    return wide * np.repeat(factors, wide.shape[1] // factors.shape[1], 1)


@pytest.mark.parametrize(("zero", "bits"), [(8, 4), (3, 8), (16, 8)])
@pytest.mark.parametrize("coding", ["int4_g64", "int4_g128_bf16"])
def test_codes_of_4_bits_are_repacked_exactly(coding: str, zero: int, bits: int) -> None:
    packed = stored(coding, rng(coding).normal(size=(5, 256)))
    blocks = packed.reshape(5, -1, scheme(coding).block_bytes)
    blocks[..., 2:4] = np.array([zero], "<i2").view(np.uint8)
    made = coded(WeightPart(coding, 5, lambda: packed))
    assert made is not None and made[0] == bits and made[1].shape == (5, 256 * bits // 8)
    np.testing.assert_array_equal(values(coding, packed), scheme(coding).unpack(packed, np.float64))


def test_codes_of_8_bits_are_repacked_where_they_have_room() -> None:
    packed = stored("int8_g64", rng("codes").normal(size=(5, 256)))
    blocks = packed.reshape(5, -1, scheme("int8_g64").block_bytes)
    blocks[..., 2:4] = np.array([128], "<i2").view(np.uint8)
    np.testing.assert_array_equal(values("int8_g64", packed), scheme("int8_g64").unpack(packed, np.float64))
    blocks[..., 2:4] = np.array([3], "<i2").view(np.uint8)
    assert coded(WeightPart("int8_g64", 5, lambda: packed)) is None
    rows = stored("int8_row", rng("rows").normal(size=(5, 100)))
    np.testing.assert_array_equal(values("int8_row", rows), scheme("int8_row").unpack(rows, np.float64))
