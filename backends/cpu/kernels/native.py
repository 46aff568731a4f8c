"""Enters the native kernels into the registry of the CPU, each with the conditions under which it applies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import StateType, TensorType, WeightType

from .activation import gelu_kernel, silu_kernel
from .argmax import argmax_condition, argmax_kernel
from .attention import paged_attention_kernel, write_cache_kernel
from .embedding import dequantize_kernel, embedding_kernel
from .expanded import (
    NativeMatmul,
    expanded_batched_linear_kernel,
    expanded_grouped_linear_kernel,
    expanded_linear_kernel,
)
from .float_product import float_product_kernel
from .latent import batched_linear_kernel, mla_attention_kernel, write_latent_cache_kernel
from .library import Library
from .linear import linear_kernel
from .moe import fused_kernel, gating_kernel, grouped_kernel, permute_kernel, unpermute_kernel
from .movement import register_movement
from .norm import add_rms_norm_kernel, rms_norm_kernel
from .pointwise import FUNCTIONS, pointwise_condition, pointwise_kernel, rows_condition, rows_kernel
from .rotary import rotary_kernel
from .sampling import sample_kernel, uniform_kernel
from .tiles import tile_embedding_kernel, tile_linear_kernel, tileable

FLOATS = (float32, bfloat16, float16)
"""What native kernels read and write; they compute in float32 or wider."""

PRIORITY = 10


def native_kernels(library: Library) -> list[tuple[str, Callable[..., Any], str]]:
    """(op, function, name) of every native kernel."""
    made = {
        "linear": linear_kernel(library),
        "embedding": embedding_kernel(library),
        "dequantize": dequantize_kernel(library),
        "rms_norm": rms_norm_kernel(library),
        "add_rms_norm": add_rms_norm_kernel(library),
        "grouped_linear": grouped_kernel(library),
        "batched_linear": batched_linear_kernel(library),
        "rotary_embedding": rotary_kernel(library),
        "silu_and_mul": silu_kernel(library),
        "gelu_and_mul": gelu_kernel(library),
        "write_cache": write_cache_kernel(library),
        "paged_attention": paged_attention_kernel(library),
        "write_latent_cache": write_latent_cache_kernel(library),
        "mla_attention": mla_attention_kernel(library),
        "moe_gating_topk": gating_kernel(library),
        "moe_permute": permute_kernel(library),
        "moe_unpermute": unpermute_kernel(library),
        "fused_moe": fused_kernel(library),
        "random_uniform": uniform_kernel(library),
        "top_k_top_p_sample": sample_kernel(library),
    }
    return [(op, function, f"native_{op}") for op, function in made.items()]


def expanded_kernels(library: Library) -> list[tuple[str, Any, str]]:
    """(op, function, name) of products whose right side is expanded before a native kernel reads it."""
    made: dict[str, Any] = {
        "linear": expanded_linear_kernel(library),
        "grouped_linear": expanded_grouped_linear_kernel(library),
        "batched_linear": expanded_batched_linear_kernel(library),
    }
    named = [(op, function, f"expanded_{op}") for op, function in made.items()]
    return [("matmul", NativeMatmul(library), "native_matmul"), *named]


def register_native(
    registry: KernelRegistry, library: Library, *, fast: bool = False, priority: int = PRIORITY
) -> None:
    """Register all native kernels; they come before torch kernels by their priority.

    `fast` admits those that round activations: to int8, or to bfloat16 for weights of bfloat16.
    """

    def condition(node: Node) -> bool | str:
        return applies(node, library)

    for op, function, name in native_kernels(library):
        registry.register(getattr(ops, op), dtypes=FLOATS, when=condition, name=name, priority=priority)(function)
    for op, function, name in expanded_kernels(library):
        registry.register(getattr(ops, op), dtypes=FLOATS, when=fits, name=name, priority=priority - 1)(function)
    _register_pointwise(registry, library, priority)
    register_movement(registry, library, priority)
    _register_tiles(registry, library, priority + 5)
    if fast:
        _register_fast_tiles(registry, library, priority + 10)


def fits(node: Node) -> bool | str:
    """Whether float32 holds all that a product reads, or why not."""
    for value in node.operands:
        kind = None if value is None else value.type
        if isinstance(kind, TensorType) and node.op is ops.matmul and kind.dtype not in FLOATS:
            return f"native kernels multiply {', '.join(k.name for k in FLOATS)}, not {kind.dtype}"
        if isinstance(kind, WeightType) and any(scheme == "float64" for scheme, _ in kind.parts):
            return "float32 does not hold weights of float64"
    return True


def applies(node: Node, library: Library) -> bool | str:
    """Whether the weights and caches of a node are in forms that native kernels know, or why not."""
    names = {kind.name for kind in FLOATS}
    for value in node.operands:
        kind = None if value is None else value.type
        if isinstance(kind, WeightType):
            unknown = [scheme for scheme, _ in kind.parts if scheme not in library.schemes]
            if unknown:
                return f"no native reader for scheme {unknown[0]!r}"
        elif isinstance(kind, StateType) and not kind.quantized and kind["scheme"] not in names:
            return f"no native cache of {kind['scheme']}"
    return True


def _register_pointwise(registry: KernelRegistry, library: Library, priority: int) -> None:
    for name in FUNCTIONS:
        kernel = pointwise_kernel(library, name)
        registry.register(getattr(ops, name), when=pointwise_condition, name=f"native_{name}", priority=priority)(
            kernel
        )
    for op, kernel, when in (
        (ops.index_select, rows_kernel(library), rows_condition),
        (ops.argmax, argmax_kernel(library), argmax_condition),
    ):
        registry.register(op, when=when, name=f"native_{op.name}", priority=priority)(kernel)


def _register_tiles(registry: KernelRegistry, library: Library, priority: int) -> None:
    """Kernels that read tiles as they are, where all readers of the weight do."""
    for op, kernel, name in (
        (ops.linear, float_product_kernel(library), "native_linear_tiles"),
        (ops.embedding, tile_embedding_kernel(library), "native_embedding_tiles"),
    ):
        when = partial(_tiles_hold, library, floats=True)
        registry.register(op, dtypes=FLOATS, when=when, name=name, priority=priority)(kernel)


def _register_fast_tiles(registry: KernelRegistry, library: Library, priority: int) -> None:
    """Products of tiles with rounded activations."""
    when: Callable[[Node], bool | str]
    integers = partial(_tiles_hold, library, floats=False)
    for op, kernel, name, when in (
        (ops.linear, tile_linear_kernel(library), "native_linear_int8", integers),
        (ops.grouped_linear, grouped_kernel(library), "native_grouped_linear_int8", integers),
        (ops.fused_moe, fused_kernel(library), "native_fused_moe_int8", integers),
        (ops.linear, float_product_kernel(library, rounded=True), "native_linear_bf16", _gains_from_rounding),
    ):
        registry.register(op, dtypes=FLOATS, when=when, name=name, priority=priority)(kernel)


def _tiles_hold(library: Library, node: Node, *, floats: bool) -> bool | str:
    """Whether all weights of a node can be brought into tiles, or why not."""
    for value in node.operands:
        if value is not None and isinstance(value.type, WeightType):
            reason = tileable(library, value.type.parts, value.type.shape[-1], floats=floats)
            if reason is not None:
                return reason
    return True


def _gains_from_rounding(node: Node) -> bool | str:
    """Whether float32 activations meet weights of bfloat16 only, or why not."""
    x, weight = node.operand("x"), node.operand("weight")
    if x is None or x.dtype is not float32:
        return "rounds activations of float32 only"
    if weight is None or not isinstance(weight.type, WeightType):
        return "takes weights only"
    if any(scheme != "bfloat16" for scheme, _ in weight.type.parts):
        return "takes weights of bfloat16 only"
    return True
