"""Mixtures of experts: choosing, sorting by expert, grouped products, and the weighted sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.hal.kernel import Condition
from xinheng.core.ir.graph import Node

from ..._torch.handles import TorchWeight
from ..._torch.kernels.contraction import linear as torch_linear
from ..._torch.kernels.moe import grouped_linear_kernel
from ..functions import Functions
from .linear import FLOATS, dense, tensor_of

if TYPE_CHECKING:
    from ..device import CambriconDevice

Tensor = torch.Tensor
SORTING = ("moe_gen_idx", "moe_expand_input", "moe_combine_result")


def register(kernels: KernelRegistry, device: CambriconDevice) -> None:
    """Enter these kernels for the functions that are there."""
    functions = device.functions
    for score in ("softmax", "sigmoid"):
        if f"moe_{score}_topk" in functions:
            _gating(kernels, functions, score)
    if all(name in functions for name in SORTING):
        _sorting(kernels, functions)
    if "group_gemm" in functions:
        _products(kernels, functions)
    if all(name in functions for name in (*SORTING, "group_gemm", "moe_active")):
        _fused(kernels, functions)


def _gated_by(score: str) -> Condition:
    """A condition: experts are chosen as the function of a score chooses them."""

    def condition(node: Node) -> bool | str:
        wants, biased = node.attributes, node.operand("bias") is not None
        if wants["score"] != score:
            return f"scores by {score}, not {wants['score']}"
        if biased and score == "softmax":
            return "knows no bias"
        rule = "top2" if biased else "max"
        if wants["groups"] > 1 and wants["group_score"] != rule:
            return f"compares groups by {rule} {'with' if biased else 'without'} a bias, not {wants['group_score']}"
        return True

    return condition


def _gating(kernels: KernelRegistry, functions: Functions, score: str) -> None:
    name = f"moe_{score}_topk"
    choose = functions[name]

    @kernels.register(ops.moe_gating_topk, name=f"tmo_{name}", dtypes=FLOATS, when=_gated_by(score))
    def moe_gating_topk(
        logits: Tensor,
        bias: Tensor | None = None,
        *,
        k: int,
        score: str = "softmax",
        renormalise: bool = True,
        scale: float = 1.0,
        groups: int = 1,
        groups_kept: int = 1,
        group_score: str = "top2",
    ) -> tuple[Tensor, Tensor]:
        grouped = (groups, groups_kept) if groups > 1 else (-1, 0)
        more = {} if bias is None else {"score_bias": bias.float().contiguous()}
        weights, experts = choose(logits.float().contiguous(), k, renormalise, *grouped, **more)
        return weights if scale == 1.0 else weights * scale, experts


def _movable(node: Node) -> bool | str:
    x = node.operand("x")
    assert x is not None
    return x.dtype in FLOATS or f"moves floats, not {x.dtype}"


def _sorting(kernels: KernelRegistry, functions: Functions) -> None:
    index, expand = functions["moe_gen_idx"], functions["moe_expand_input"]
    combine = functions["moe_combine_result"]

    @kernels.register(ops.moe_permute, name="tmo_moe_expand_input", when=_movable)
    def moe_permute(x: Tensor, experts: Tensor, *, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
        tokens, place, counts, ends = index(experts.to(torch.int32).contiguous(), num_experts)
        rows = expand(x.contiguous(), tokens, ends, 0, num_experts)
        return rows, torch.argsort(place).to(torch.int32), counts

    @kernels.register(ops.moe_unpermute, name="tmo_moe_combine_result", dtypes=FLOATS)
    def moe_unpermute(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
        place = torch.argsort(order).to(torch.int32)
        made: Tensor = combine(rows.contiguous(), weights.contiguous(), place, None, None, 0, 0)
        return made


def _products(kernels: KernelRegistry, functions: Functions) -> None:
    product, plain = functions["group_gemm"], grouped_linear_kernel(torch_linear)

    @kernels.register(ops.grouped_linear, name="tmo_group_gemm", dtypes=FLOATS, when=dense("weight"))
    def grouped_linear(x: Tensor, weight: TorchWeight, counts: Tensor) -> Tensor:
        held = tensor_of(weight, x)
        if held is None:
            return plain(x, weight, counts)
        b = held.reshape(weight.shape)
        made: Tensor = product(x.contiguous(), b, counts.to(torch.int32), None, None, None, None, x.shape[0])
        return made


def _fused(kernels: KernelRegistry, functions: Functions) -> None:
    index, expand, combine = (functions[name] for name in SORTING)
    product, active, plain = functions["group_gemm"], functions["moe_active"], grouped_linear_kernel(torch_linear)

    @kernels.register(ops.fused_moe, name="tmo_moe", dtypes=FLOATS, when=dense("gate", "up", "down"))
    def fused_moe(
        x: Tensor, weights: Tensor, experts: Tensor, gate: TorchWeight, up: TorchWeight, down: TorchWeight
    ) -> Tensor:
        count, most = gate.shape[0], x.shape[0] * experts.shape[1]
        tokens, place, counts, ends = index(experts.to(torch.int32).contiguous(), count)
        rows = expand(x.contiguous(), tokens, ends, 0, count)

        def through(rows: Tensor, weight: TorchWeight) -> Tensor:
            held = tensor_of(weight, rows)
            if held is None:
                return plain(rows, weight, counts)
            made: Tensor = product(rows, held.reshape(weight.shape), counts, None, None, None, None, most)
            return made

        inner = active(torch.cat((through(rows, gate), through(rows, up)), -1), "silu", True)
        made: Tensor = combine(through(inner, down), weights.contiguous(), place, None, None, 0, 0)
        return made
