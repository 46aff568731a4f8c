"""Products with stored weights, and products of int8 codes in the names of new and old releases."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.hal.kernel import Condition
from xinheng.core.ir.dtype import DType, bfloat16, float16, float32, int8
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import WeightType

from ..._torch.handles import DTYPES, TorchWeight
from ..._torch.kernels.contraction import linear as torch_linear
from ..functions import Functions

Tensor = torch.Tensor
FLOATS = frozenset({float32, float16, bfloat16})
HALVES = frozenset({float16, bfloat16})
WIDE = frozenset(kind.name for kind in FLOATS)


def register(kernels: KernelRegistry, functions: Functions) -> None:
    """Enter these kernels for the functions that are there, under their new names or else their old ones."""
    if "matmul" in functions:
        _linear(kernels, functions)
    if "scaled_matmul" in functions or "smooth_quant_matmul" in functions:
        _quantised(kernels, functions)
    if "scaled_quantize" in functions or "per_token_smooth_quantize" in functions:
        _codes(kernels, functions)


def dense(*names: str) -> Condition:
    """A condition: the named weights are matrices of floats in one piece."""

    def condition(node: Node) -> bool | str:
        for name in names:
            value = node.operand(name)
            assert value is not None and isinstance(value.type, WeightType)
            if value.type.scheme not in WIDE:
                return f"{name} is stored as {value.type.scheme}, which plain torch expands"
        return True

    return condition


def tensor_of(weight: TorchWeight, like: Tensor) -> Tensor | None:
    """The matrix of a weight if it lies in one piece in the dtype of an operand."""
    parts = weight.parts
    return parts[0].data if len(parts) == 1 and parts[0].data.dtype is like.dtype else None


def _linear(kernels: KernelRegistry, functions: Functions) -> None:
    matmul = functions["matmul"]

    @kernels.register(ops.linear, name="tmo_matmul", dtypes=FLOATS, when=dense("weight"))
    def linear(x: Tensor, weight: TorchWeight, bias: Tensor | None = None) -> Tensor:
        held = tensor_of(weight, x)
        if held is None:  # it was converted when it was prepared, as weights in a dtype that the card lacks are
            return torch_linear(x, weight, bias)
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        made: Tensor = matmul(flat, held, bias)
        return made.reshape(*x.shape[:-1], held.shape[0])


def _int8(node: Node) -> bool | str:
    x = node.operand("x")
    assert x is not None
    if x.dtype != int8:
        return f"takes codes of int8, not {x.dtype}"
    kind = node.attributes["dtype"]
    return kind in HALVES or f"results are float16 or bfloat16, not {kind}"


def _quantised(kernels: KernelRegistry, functions: Functions) -> None:
    new = "scaled_matmul" in functions
    name = "scaled_matmul" if new else "smooth_quant_matmul"
    product = functions[name]

    @kernels.register(ops.quant_matmul, name=f"tmo_{name}", when=_int8)
    def quant_matmul(
        x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None = None, *, dtype: DType
    ) -> Tensor:
        a, b, rows = x.contiguous(), weight.contiguous(), x_scale.reshape(-1).contiguous()
        given = (a, b, rows, weight_scale) if new else (a, rows, b, weight_scale)
        made: Tensor = product(*given, DTYPES[dtype], bias)
        return made


def _signed(node: Node) -> bool | str:
    kind = node.attributes["dtype"]
    return kind == int8 or f"makes codes of int8, not {kind}"


def _codes(kernels: KernelRegistry, functions: Functions) -> None:
    new = "scaled_quantize" in functions
    name = "scaled_quantize" if new else "per_token_smooth_quantize"
    code = functions[name]

    @kernels.register(ops.dynamic_quant, name=f"tmo_{name}", dtypes=FLOATS, when=_signed)
    def dynamic_quant(x: Tensor, *, dtype: DType = int8) -> tuple[Tensor, Tensor]:
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        ones = torch.ones(flat.shape[-1], dtype=torch.float32, device=x.device)
        made, scale = code(flat, ones)
        empty = (flat == 0).all(-1)  # a row of zeros has scale 1 here
        made = made.masked_fill(empty[:, None], 0)
        scale = torch.where(empty, torch.ones_like(scale), scale)
        return made.reshape(x.shape), scale.reshape(*x.shape[:-1], 1)
