"""Attention kernels of each generation against the reference, over sequences that attention stumbles over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xinheng.backends.ascend.doubles.call import OperatorDouble
from xinheng.backends.ascend.torch_npu.batches import Batch
from xinheng.conformance.case import Sample
from xinheng.conformance.cases.sequences import SCENES, Scene, starts
from xinheng.conformance.operands import F, normal, rng
from xinheng.core.ir import DTYPES

from ....samples import demand
from ....scenes import latent_sample, paged_sample
from .emulated import use

SIZE = 128
FUSED = "npu_fused_infer_attention_score"
WIDTHS = {"910b": (64, 64), "310p": (32, 32)}
"""The head widths that scenes are given here."""


def shaped(word: str) -> dict[str, Scene]:
    """The scenes that the fused kernels of a generation take, in widths that they take."""
    plain = {n: s for n, s in SCENES.items() if not (s.bias or s.softcap or s.sinks) and s.tokens and s.sequences}
    return {note: replace(scene, widths=WIDTHS[word]) for note, scene in plain.items() if scene.heads[0] <= 9}


LONG = {
    "prompt of 300": Scene([(300, 300)], widths=(64, 64)),
    "chunk over blocks": Scene([(130, 390), (1, 257), (7, 128)], widths=(64, 64)),
    "window over blocks": Scene([(130, 390), (1, 300), (7, 128)], widths=(64, 64), window=140),
    "decode in a window": Scene([(1, 390), (1, 30), (1, 140), (1, 141)], widths=(64, 64), window=140),
    "decode, not causal": Scene([(1, 390), (1, 30)], widths=(64, 64), causal=False),
}


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("note", [*shaped("910b"), *LONG])
def test_fused_attention(note: str, kind: str) -> None:
    demand(paged_sample(note, (shaped("910b") | LONG)[note], SIZE), DTYPES[kind], use("910b"), FUSED)


@pytest.mark.parametrize("note", [*shaped("310p"), *LONG])
def test_attention_of_atlas_cards(note: str) -> None:
    demand(
        paged_sample(note, (shaped("310p") | LONG)[note], SIZE), DTYPES["float16"], use("310p"), "npu_paged_attention"
    )


def packed_sample(note: str, scene: Scene) -> Sample:
    """A sample of `sdpa_varlen`, with rows of NaN behind the keys of the last sequence."""
    heads, kv_heads = scene.heads
    keys = [length for _, length in scene.sequences]
    spare = np.arange(sum(keys) + 3)[:, None, None] < sum(keys)
    k, v = (F(np.where(spare, rng(note, i).normal(size=(len(spare), kv_heads, w)), np.nan))
            for i, w in enumerate(scene.widths))  # fmt: skip
    operands = (
        normal(scene.tokens, heads, scene.widths[0], scale=scene.sharp),
        *(k, v, starts([n for n, _ in scene.sequences]), starts(keys)),
    )
    return Sample("sdpa_varlen", note.replace(" ", "-"), operands, scene.attributes, data=("normal",))


PROMPTS = {
    "whole prompts": Scene([(40, 40), (1, 1), (7, 7)], widths=(32, 32), unused=2),
    "whole prompts in a window": Scene([(40, 40), (20, 20)], widths=(32, 32), window=9),
    "a sequence without queries": Scene([(5, 5), (0, 9), (6, 6)], widths=(32, 32)),
    "one token": Scene([(1, 1)], widths=(16, 16)),
}


@pytest.mark.parametrize("note", [*shaped("310p"), *LONG, *PROMPTS])
def test_attention_side_by_side_on_atlas_cards(note: str) -> None:
    scene = (shaped("310p") | LONG | PROMPTS)[note]
    demand(packed_sample(note, scene), DTYPES["float16"], use("310p"), "npu_flash_attention")


@pytest.mark.parametrize(("note", "called"), [("whole prompts", "_npu_flash_attention"),
                                              ("chunk over blocks", "_npu_paged_attention_splitfuse")])  # fmt: skip
def test_whole_prompts_need_no_pages(note: str, called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    plain = OperatorDouble.__call__

    def call(self: OperatorDouble, *args: Any, **kwargs: Any) -> Any:
        seen.append(self._name)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(OperatorDouble, "__call__", call)
    demand(packed_sample(note, (LONG | PROMPTS)[note]), DTYPES["float16"], use("310p"), "npu_flash_attention")
    assert called in seen and ("_npu_reshape_and_cache" in seen) == (called != "_npu_flash_attention")


@pytest.mark.parametrize("width", [16, 48, 128, 256])
def test_head_widths(width: int) -> None:
    scene = Scene([(3, 140), (1, 40)], heads=(4, 1), widths=(width, width))
    demand(paged_sample(f"width {width}", scene, SIZE), DTYPES["float16"], use("910b"), FUSED)


@pytest.mark.parametrize("sequences", [[(3, 140), (1, 2)], [(1, 200), (1, 3)]])
def test_sinks(sequences: list[tuple[int, int]]) -> None:
    scene = Scene(sequences, heads=(4, 2), widths=(64, 64), sinks=True)
    demand(paged_sample("sinks", scene, SIZE), DTYPES["bfloat16"], use("910b"), f"{FUSED}_v2")


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("sequences", [[(1, 5), (1, 200)], [(40, 140), (1, 3), (16, 16)], [(2, 4), (0, 3)]])
def test_latent_attention(sequences: list[tuple[int, int]], kind: str) -> None:
    sample = latent_sample("latent", Scene(sequences, unused=1), 8, SIZE)
    demand(sample, DTYPES[kind], use("910b"), FUSED)


REFUSED = [
    (Scene([(1, 3)], widths=(24, 24)), "multiple of 16"),
    (Scene([(1, 3)], widths=(32, 16)), "keys and values of one width"),
    (Scene([(1, 3)], widths=(272, 272)), "up to 256"),
    (Scene([(1, 3)], heads=(130, 2), widths=(16, 16)), "64 per key head"),
    (Scene([(1, 3)], widths=(16, 16), softcap=3.0), "softcap"),
]


@pytest.mark.parametrize(("scene", "reason"), REFUSED)
def test_what_the_operator_does_not_take_goes_to_plain_torch(scene: Scene, reason: str) -> None:
    node = paged_sample("refused", scene, SIZE).in_dtype(DTYPES["float16"]).graph().nodes[-1]
    chosen, refusals = use("910b").select(node)
    assert chosen is not None and chosen.name == "torch_paged_attention_by_token"
    assert [r.reason for r in refusals if r.kernel == FUSED and reason in r.reason]


def test_float32_goes_to_plain_torch() -> None:
    node = paged_sample("wide", Scene([(1, 3)], widths=(16, 16)), SIZE).in_dtype(DTYPES["float32"]).graph().nodes[-1]
    chosen, _ = use("910b").select(node)
    assert chosen is not None and chosen.name == "torch_paged_attention_by_token"


def test_batches_leave_out_what_sees_no_key() -> None:
    batch = Batch.of(np.array([0, 3, 3, 5, 9]), np.array([2, 4, 0, 6]), 10)
    assert batch.rows.tolist() == [1, 2, 5, 6, 7, 8] and not batch.leading
    assert (batch.sequences.tolist(), batch.ends, batch.lengths.tolist()) == ([0, 3], [2, 6], [2, 6])
    pieces = batch.divided(3)
    assert (pieces.sequences.tolist(), pieces.ends, pieces.lengths.tolist()) == ([0, 3, 3], [2, 5, 6], [2, 5, 6])
    assert batch.divided(4) is batch
