"""Products with stored weights, as floats or as codes, and products of int8 codes, by their new and old names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.hal.kernel import Condition
from xinheng.core.ir.dtype import DType, bfloat16, float16, float32, int8
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import WeightType

from ..._torch.handles import DTYPES, TorchWeight
from ..._torch.kernels.contraction import linear as torch_linear
from ..._torch.planner import Planner
from ..codes import taken
from ..handles import CodedRows, MLUWeight

if TYPE_CHECKING:
    from ..device import CambriconDevice

Tensor = torch.Tensor
CODED_PRODUCTS = frozenset({"tmo_scaled_matmul", "tmo_weight_only_quant_matmul"})
"""The kernels of `linear` that read signed codes."""
FLOATS = frozenset({float32, float16, bfloat16})
HALVES = frozenset({float16, bfloat16})
WIDE = frozenset(kind.name for kind in FLOATS)


def register(kernels: KernelRegistry, device: CambriconDevice) -> None:
    """Enter these kernels for the functions that are there, under their new names or else their old ones."""
    functions = device.functions
    if "matmul" in functions:
        _linear(kernels, device)
    if "scaled_matmul" in functions or "weight_only_quant_matmul" in functions:
        _coded(kernels, device)
    if "scaled_matmul" in functions or "smooth_quant_matmul" in functions:
        _quantised(kernels, device)
    if "scaled_quantize" in functions or "per_token_smooth_quantize" in functions:
        _codes(kernels, device)


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


def _linear(kernels: KernelRegistry, device: CambriconDevice) -> None:
    matmul = device.functions["matmul"]

    @kernels.register(ops.linear, name="tmo_matmul", dtypes=FLOATS, when=dense("weight"))
    def linear(x: Tensor, weight: TorchWeight, bias: Tensor | None = None) -> Tensor:
        held = tensor_of(weight, x)
        if held is None:  # it was converted when it was prepared, as weights in a dtype that the card lacks are
            return torch_linear(x, weight, bias)
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        made: Tensor = matmul(flat, held, bias)
        return made.reshape(*x.shape[:-1], held.shape[0])


def _packed(node: Node) -> bool | str:
    x, weight = node.operand("x"), node.operand("weight")
    assert x is not None and weight is not None and isinstance(weight.type, WeightType)
    reasons = (taken(scheme, x.dtype) for scheme, _ in weight.type.parts)
    return next((reason for reason in reasons if reason is not True), True)


def _coded(kernels: KernelRegistry, device: CambriconDevice) -> None:
    name = "scaled_matmul" if "scaled_matmul" in device.functions else "weight_only_quant_matmul"
    function = device.functions[name]

    def product(x: Tensor, rows: CodedRows, bias: Tensor | None) -> Tensor:
        if name == "scaled_matmul":
            made: Tensor = function(x, rows.codes, None, rows.scale, x.dtype, bias, None, "none", rows.bits)
        else:
            made = function(x, rows.codes, rows.scale, None, bias, None, "none", rows.bits)
        return made

    @kernels.register(ops.linear, name=f"tmo_{name}", dtypes=HALVES, when=_packed)
    def linear(x: Tensor, weight: TorchWeight, bias: Tensor | None = None) -> Tensor:
        if not isinstance(weight, MLUWeight):  # its zero points leave no room for signed codes, as its layout says
            return torch_linear(x, weight, bias)
        flat, first, pieces = x.reshape(-1, x.shape[-1]).contiguous(), 0, []
        for rows in weight.coded:
            last = first + rows.codes.shape[0]
            pieces.append(product(flat, rows, None if bias is None else bias[first:last]))
            first = last
        made = pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)
        return made.reshape(*x.shape[:-1], weight.shape[0])


def _int8(node: Node) -> bool | str:
    x = node.operand("x")
    assert x is not None
    if x.dtype != int8:
        return f"takes codes of int8, not {x.dtype}"
    kind = node.attributes["dtype"]
    return kind in HALVES or f"results are float16 or bfloat16, not {kind}"


def _quantised(kernels: KernelRegistry, device: CambriconDevice) -> None:
    new = "scaled_matmul" in device.functions
    name = "scaled_matmul" if new else "smooth_quant_matmul"
    product = device.functions[name]

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


def _codes(kernels: KernelRegistry, device: CambriconDevice) -> None:
    new = "scaled_quantize" in device.functions
    name = "scaled_quantize" if new else "per_token_smooth_quantize"
    code = device.functions[name]

    def planned(_: Node) -> Callable[..., tuple[Tensor, Tensor]]:
        place = device.step.place()

        def dynamic_quant(x: Tensor, *, dtype: DType = int8) -> tuple[Tensor, Tensor]:
            step, flat = place.enter(), x.reshape(-1, x.shape[-1]).contiguous()
            width = flat.shape[-1]
            smooth = None if new else step.get(("ones", width), (), lambda: flat.new_ones(width, dtype=torch.float32))
            made, scale = code(flat, smooth)
            empty = (flat == 0).all(-1)  # a row of zeros has scale 1 here
            made = made.masked_fill(empty[:, None], 0)
            scale = scale.masked_fill(empty, 1.0)
            return made.reshape(x.shape), scale.reshape(*x.shape[:-1], 1)

        return dynamic_quant

    kernels.register(ops.dynamic_quant, name=f"tmo_{name}", dtypes=FLOATS, when=_signed)(Planner(planned))
