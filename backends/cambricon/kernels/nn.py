"""Norms, rotary embedding and gated activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ir.graph import Node

from ..._torch.planner import Planner
from ..chips import ROTARY_HEAD
from ..functions import Functions

if TYPE_CHECKING:
    from ..device import CambriconDevice

Tensor = torch.Tensor
FLOATS = frozenset({float32, float16, bfloat16})


def register(kernels: KernelRegistry, device: CambriconDevice) -> None:
    """Enter these kernels for the functions that are there."""
    functions = device.functions
    if "fused_rms_norm" in functions:
        _rms_norms(kernels, functions)
    if "fused_layer_norm" in functions:
        _layer_norm(kernels, functions)
    if "apply_rotary" in functions:
        _rotary(kernels, device)
    if "active" in functions:
        _gated(kernels, functions)


def _rms_norms(kernels: KernelRegistry, functions: Functions) -> None:
    norm = functions["fused_rms_norm"]

    @kernels.register(ops.rms_norm, name="tmo_fused_rms_norm", dtypes=FLOATS)
    def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        made: Tensor = norm(x.contiguous(), None, weight.contiguous(), None, None, eps, False)
        return made

    @kernels.register(ops.add_rms_norm, name="tmo_fused_add_rms_norm", dtypes=FLOATS)
    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
        made = norm(x.contiguous(), residual.contiguous(), weight.contiguous(), None, None, eps, True)
        return made[0], made[1]


def _layer_norm(kernels: KernelRegistry, functions: Functions) -> None:
    norm = functions["fused_layer_norm"]

    @kernels.register(ops.layer_norm, name="tmo_fused_layer_norm", dtypes=FLOATS)
    def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
        given = [None if t is None else t.contiguous() for t in (weight, bias)]
        made: Tensor = norm(x.contiguous(), None, *given, None, eps, False)
        return made


def _narrow(node: Node) -> bool | str:
    cos = node.operand("cos")
    width = 2 * cos.shape[-1] if cos is not None else 0
    return (
        isinstance(width, int) and 2 <= width <= ROTARY_HEAD
    ) or f"apply_rotary turns 2 to {ROTARY_HEAD} elements, not {width}"


def _rotary(kernels: KernelRegistry, device: CambriconDevice) -> None:
    apply = device.functions["apply_rotary"]

    def tables(cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sines and cosines of full width, the row of each token in them, and the ends of the one sequence."""
        full = [t.repeat_interleave(2, -1) if interleaved else torch.cat((t, t), -1) for t in (sin, cos)]
        ids, ends = (torch.arange(n, dtype=torch.int32, device=cos.device) for n in (cos.shape[0], 2))
        return full[0], full[1], ids, ends * cos.shape[0]

    def planned(_: Node) -> Callable[..., Tensor]:
        place = device.step.place()

        def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
            """It works in place on tables of the dtype of its input: on a copy in float32, as the tables are."""
            step, width = place.enter(), 2 * cos.shape[-1]
            shared = step.get(("rotary", interleaved), (cos, sin), lambda: tables(cos, sin, interleaved))
            turned = x[..., :width].to(torch.float32, copy=True).contiguous()
            apply(turned, *shared, interleaved, True, False, x.shape[0])
            joined = turned.to(x.dtype)
            return torch.cat((joined, x[..., width:]), -1) if width < x.shape[-1] else joined

        return rotary_embedding

    kernels.register(ops.rotary_embedding, name="tmo_apply_rotary", dtypes=FLOATS, when=_narrow)(Planner(planned))


def _gated(kernels: KernelRegistry, functions: Functions) -> None:
    active = functions["active"]

    @kernels.register(ops.silu_and_mul, name="tmo_active_silu", dtypes=FLOATS, when=_alike)
    def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
        made: Tensor = active(torch.cat((gate, up), -1), "silu", True)
        return made

    @kernels.register(ops.gelu_and_mul, name="tmo_active_gelu", dtypes=FLOATS, when=_alike)
    def gelu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
        made: Tensor = active(torch.cat((gate, up), -1), "gelu", True)
        return made


def _alike(node: Node) -> bool | str:
    gate, up = node.operand("gate"), node.operand("up")
    assert gate is not None and up is not None
    if len(gate.shape) == 0 or gate.shape != up.shape:
        return "active takes gate and up of one shape, side by side"
    return True
