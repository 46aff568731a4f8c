"""The launches of the steps of usual models, by the functions that make them, on tensors of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from xinheng.backends._torch.handles import DTYPES, NAMES, TorchPagedKV, TorchPagedLatent, TorchQuantizedKV, TorchWeight
from xinheng.backends._torch.plane_part import plane_part
from xinheng.backends._triton.kernels import (
    TRITON_KERNELS,
    cache,
    contraction,
    gated,
    linear,
    moe,
    norm,
    quantization,
    rotary,
    sampling,
    weights,
)
from xinheng.backends._triton.launch import watched
from xinheng.core import ops
from xinheng.core.hal import WeightPart
from xinheng.core.ir import Op
from xinheng.core.ir.dtype import DType
from xinheng.core.schemes import scheme

Tensor = torch.Tensor
Launch = tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]
Call = Callable[[], Any]
INT, FLOAT = torch.int32, torch.float32
SCHEMES = ("q4_0", "q4_1", "q4_k", "q6_k", "q8_0", "int4_g128", "int8_g128_bf16", "int8_row", "float8_e4m3_b128")


def empty(*shape: int, kind: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=kind)


def weight(coding: str, *shape: int) -> TorchWeight:
    """A weight of zeros."""
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    data = np.zeros((rows, scheme(coding).row_bytes(columns)), np.uint8)

    def upload(array: Any, kind: DType) -> Tensor:
        return torch.zeros(array.shape, dtype=DTYPES[kind])

    return TorchWeight(shape, (plane_part(WeightPart(coding, rows, lambda: data), columns, upload),))


def launches(calls: Iterator[Call]) -> list[Launch]:
    """What the calls would launch, each kind once."""
    found: list[Launch] = []

    def watcher(*launch: Any) -> None:
        found.append(launch)

    with watched(watcher):
        for call in calls:
            call()
    return found


def call(op: Op[..., Any], *operands: Any, **attributes: Any) -> Any:
    """Run the best kernel of an op."""
    return TRITON_KERNELS.candidates(op.name)[0].function(*operands, **attributes)


def rows(kind: torch.dtype) -> Iterator[Call]:
    """Norms, activations, rotary embedding, codes and sampling at the widths of an 8B model."""

    def x(*shape: int) -> Tensor:
        return empty(*shape, kind=kind)

    angles = empty(8, 64, kind=FLOAT), empty(8, 64, kind=FLOAT)
    yield lambda: norm.rms_norm(x(8, 4096), x(4096), eps=1e-6)
    yield lambda: norm.rms_norm(x(256, 128), x(128), eps=1e-6)
    yield lambda: norm.add_rms_norm(x(8, 4096), x(8, 4096), x(4096), eps=1e-6)
    yield lambda: norm.layer_norm(x(8, 4096), x(4096), x(4096), eps=1e-6)
    yield lambda: norm.add_rms_norm_quant(x(8, 4096), x(8, 4096), x(4096), eps=1e-6)
    yield lambda: gated.silu_and_mul(x(8, 14336), x(8, 14336))
    yield lambda: gated.gelu_and_mul(x(8, 14336), x(8, 14336))
    yield lambda: gated.gelu_and_mul(x(8, 14336), x(8, 14336), approximate="tanh")
    yield lambda: gated.silu_and_mul_quant(x(8, 14336), x(8, 14336))
    yield lambda: rotary.rotary_embedding(x(8, 32, 128), *angles)
    yield lambda: rotary.rotary_embedding(x(8, 32, 192), *angles, interleaved=True)
    yield lambda: quantization.dynamic_quant(x(8, 4096))
    yield lambda: moe.moe_gating_topk(x(8, 128), k=8)
    yield lambda: moe.moe_gating_topk(
        x(8, 256), x(256), k=8, score="sigmoid", scale=2.5, groups=8, groups_kept=4, group_score="top2"
    )
    yield lambda: moe.moe_unpermute(x(64, 4096), empty(64, kind=INT).zero_(), empty(8, 8, kind=FLOAT))
    yield lambda: sampling.argmax(empty(8, 128256, kind=FLOAT))
    yield lambda: sampling.random_uniform(empty(8, 2, kind=torch.uint32), empty(8, kind=torch.uint32))
    columns = [empty(8, kind=FLOAT) for _ in range(4)]
    yield lambda: sampling.top_k_top_p_sample(
        empty(8, 2048, kind=FLOAT).zero_(), columns[0], columns[1], empty(8, kind=INT), columns[2], columns[3]
    )


def caches(kind: torch.dtype) -> Iterator[Call]:
    """Writes into caches, and attention over them."""

    def x(*shape: int) -> Tensor:
        return empty(*shape, kind=kind)

    slots = empty(8, kind=INT)
    pages = TorchPagedKV(x(9, 16, 8, 128), x(9, 16, 8, 128))
    latent = TorchPagedLatent(x(9, 16, 512), x(9, 16, 64))
    angles = empty(8, 32, kind=FLOAT), empty(8, 32, kind=FLOAT)
    yield lambda: cache.write_cache(pages, x(8, 8, 128), x(8, 8, 128), slots)
    yield lambda: cache.write_latent_cache(latent, x(8, 512), x(8, 64), slots)
    yield lambda: cache.kv_norm_rope_cache(x(8, 576), x(512), *angles, latent, slots, eps=1e-6)
    where = empty(9, kind=INT), empty(8, kind=INT)
    for width, wide in ((64, 4), (128, 4), (128, 256), (256, 256)):
        held = TorchPagedKV(x(9, 16, 8, width), x(9, 16, 8, width))
        table, q = empty(8, wide, kind=INT), x(8, 32, width)
        yield lambda q=q, held=held, table=table: call(ops.paged_attention, q, held, *where, table, scale=0.1)  # type: ignore[misc]
    scales = empty(9, 16, 8, kind=FLOAT), empty(9, 16, 8, kind=FLOAT)
    codes = empty(9, 16, 8, 128, kind=torch.int8), empty(9, 16, 8, 128, kind=torch.int8)
    coded = TorchQuantizedKV(*codes, *scales)
    yield lambda: cache.write_cache(coded, x(8, 8, 128), x(8, 8, 128), slots)
    yield lambda: call(ops.paged_attention, x(8, 32, 128), coded, *where, empty(8, 64, kind=INT), scale=0.1)
    table = empty(8, 256, kind=INT)
    how = {"scale": 0.1, "window": 512, "softcap": 50.0}
    yield lambda: call(ops.paged_attention, x(8, 32, 128), pages, *where, table, x(32), **how)
    yield lambda: call(ops.mla_attention, x(8, 16, 512), x(8, 16, 64), latent, *where, table, scale=0.1)
    prompt = x(300, 32, 128), x(300, 8, 128), x(300, 8, 128)
    yield lambda: call(ops.sdpa_varlen, *prompt, empty(2, kind=INT), empty(2, kind=INT), scale=0.1)


def products(kind: torch.dtype, codings: tuple[str, ...] = SCHEMES) -> Iterator[Call]:
    """Products with weights in all schemes, alone, by expert and by head; lookups; products of codes."""

    def x(*shape: int) -> Tensor:
        return empty(*shape, kind=kind)

    counts = empty(8, kind=INT).zero_()
    for coding in (NAMES[kind].name, *codings):
        held = weight(coding, 512, 4096)
        yield lambda held=held: linear.linear(x(8, 4096), held)  # type: ignore[misc]
        yield lambda held=held: weights.embedding(empty(8, kind=INT), held, dtype=NAMES[kind])  # type: ignore[misc]
    dense, packed = weight(NAMES[kind].name, 8, 512, 1024), weight("int4_g128", 8, 512, 1024)
    yield lambda: linear.linear(x(8, 4096), weight(NAMES[kind].name, 512, 4096), x(512))
    for stack in (dense, packed):
        yield lambda stack=stack: linear.grouped_linear(x(64, 1024), stack, counts)  # type: ignore[misc]
    yield lambda: linear.batched_linear(x(8, 8, 1024), dense)
    yield lambda: linear.batched_linear(x(8, 8, 512), dense, transposed=True)
    chosen = empty(8, 2, kind=INT).zero_()
    gate, down = weight(NAMES[kind].name, 8, 512, 1024), weight(NAMES[kind].name, 8, 1024, 512)
    yield lambda: moe.fused_moe(x(8, 1024), empty(8, 2, kind=FLOAT), chosen, gate, gate, down)
    yield lambda: contraction.matmul(x(4, 64, 128), x(4, 128, 64))
    codes = empty(8, 1024, kind=torch.int8), empty(512, 1024, kind=torch.int8)
    scales = empty(8, 1, kind=FLOAT), empty(512, kind=FLOAT)
    yield lambda: call(ops.quant_matmul, *codes, *scales, dtype=NAMES[kind])
    floats = [c.view(torch.float8_e4m3fn) for c in codes]
    yield lambda: call(ops.quant_matmul, *floats, *scales, dtype=NAMES[kind])
    yield lambda: contraction.int_matmul(codes[0], codes[1].T)


def decoding(kind: torch.dtype) -> Iterator[Call]:
    """A layer of an 8B model with weights of four bits, one token in each of 8 sequences of up to 4096."""

    def x(*shape: int) -> Tensor:
        return empty(*shape, kind=kind)

    pages, held = TorchPagedKV(x(9, 16, 8, 128), x(9, 16, 8, 128)), weight("q4_k", 512, 4096)
    lists = empty(9, kind=INT), empty(8, kind=INT), empty(8, 256, kind=INT)
    yield lambda: norm.add_rms_norm(x(8, 4096), x(8, 4096), x(4096), eps=1e-6)
    yield lambda: linear.linear(x(8, 4096), held)
    yield lambda: rotary.rotary_embedding(x(8, 32, 128), empty(8, 64, kind=FLOAT), empty(8, 64, kind=FLOAT))
    yield lambda: cache.write_cache(pages, x(8, 8, 128), x(8, 8, 128), empty(8, kind=INT))
    yield lambda: call(ops.paged_attention, x(8, 32, 128), pages, *lists, scale=0.1)
    yield lambda: gated.silu_and_mul(x(8, 14336), x(8, 14336))


FAMILIES = {"decoding": decoding, "rows": rows, "caches": caches, "products": products}
"""The functions above by name."""
