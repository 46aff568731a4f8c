"""Samples of attention made of the suite's scenes, in blocks and with what lies around the keys as a card needs it."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.conformance.case import Sample
from xinheng.conformance.cases.attention import cache
from xinheng.conformance.cases.sequences import Scene, paged, starts
from xinheng.conformance.operands import KV, Latent, gain, ints, normal, rng


def paged_sample(note: str, scene: Scene, size: int, garbage: float = np.nan) -> Sample:
    """A sample of `paged_attention` with keys in blocks of `size` tokens and garbage around them."""
    heads, kv_heads = scene.heads
    paging = paged(note, scene.sequences, size, scene.window)
    pages = cache(len(paging.read), size, kv_heads, *scene.widths)
    operands: tuple[Any, ...] = (
        normal(scene.tokens, heads, scene.widths[0], scale=scene.sharp),
        KV(paging.filled(pages.k, garbage), paging.filled(pages.v, garbage)),
        starts([n for n, _ in scene.sequences]),
        ints([keys for _, keys in scene.sequences]),
        paging.table,
        gain(heads) if scene.sinks else None,
    )
    return Sample("paged_attention", note.replace(" ", "-"), operands, scene.attributes, data=("normal",))


def latent_sample(note: str, scene: Scene, heads: int, size: int) -> Sample:
    """A sample of `mla_attention` with latents of 512 numbers and rotary keys of 64, and NaN around them."""
    paging = paged(note, scene.sequences, size)
    made, blocks = rng("latents", note), len(paging.read)
    pages = made.normal(size=(blocks, size, 512)), made.normal(size=(blocks, size, 64))
    operands = (
        normal(scene.tokens, heads, 512),
        normal(scene.tokens, heads, 64),
        Latent(*(paging.filled(x, np.nan) for x in pages)),
        starts([n for n, _ in scene.sequences]),
        ints([keys for _, keys in scene.sequences]),
        paging.table,
    )
    how = {"scale": 0.07} | ({} if scene.causal else {"causal": False})
    return Sample("mla_attention", note, operands, how, data=("normal",))
