"""Mixtures of experts: choosing, sorting by expert, grouped products, and the weighted sum."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.graph import Node

from ..._torch.handles import TorchWeight
from ..._torch.kernels.contraction import linear as torch_linear
from ..._torch.kernels.moe import grouped_linear_kernel
from ..functions import Functions
from .linear import FLOATS, dense, tensor_of

Tensor = torch.Tensor


def register(kernels: KernelRegistry, functions: Functions) -> None:
    """Enter these kernels for the functions that are there."""
    if "moe_softmax_topk" in functions:
        _gating(kernels, functions)
    if all(name in functions for name in ("moe_gen_idx", "moe_expand_input", "moe_combine_result")):
        _sorting(kernels, functions)
    if "group_gemm" in functions:
        _products(kernels, functions)


def _plain(node: Node) -> bool | str:
    wants = node.attributes
    if wants["score"] != "softmax" or node.operand("bias") is not None or wants["groups"] != 1:
        return "moe_softmax_topk takes softmax scores without bias or groups"
    return True


def _gating(kernels: KernelRegistry, functions: Functions) -> None:
    choose = functions["moe_softmax_topk"]

    @kernels.register(ops.moe_gating_topk, name="tmo_moe_softmax_topk", dtypes=FLOATS, when=_plain)
    def moe_gating_topk(
        logits: Tensor, *, k: int, renormalise: bool = True, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        weights, experts = choose(logits.float().contiguous(), k, renormalise)
        return weights if scale == 1.0 else weights * scale, experts


def _sorting(kernels: KernelRegistry, functions: Functions) -> None:
    index, expand = functions["moe_gen_idx"], functions["moe_expand_input"]
    combine = functions["moe_combine_result"]

    @kernels.register(ops.moe_permute, name="tmo_moe_expand_input", dtypes=FLOATS)
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
