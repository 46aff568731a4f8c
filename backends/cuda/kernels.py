"""The kernels of a CUDA device: Triton's, those of torch for what is left, and what depends on device and mode."""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.nn.functional as F

from xinheng.core import ops
from xinheng.core.hal import ANY_ORDER, Arithmetic, Device, KernelRegistry
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import WeightType

from .._torch import TORCH_KERNELS, TorchWeight
from .._torch.kernels.collective import register_collectives
from .._torch.kernels.contraction import matmul
from .._torch.kernels.movement import register_makers
from .providers import register_providers
from .unsigned import register_unsigned

Tensor = torch.Tensor

STRICT = Arithmetic(ANY_ORDER, determinism="D4")
"""With Triton: an element is added up in one order, whatever else is in the batch."""
FAST = Arithmetic(ANY_ORDER, determinism="D1")
"""cuBLAS and attention libraries choose their order by the sizes of a call."""


def arithmetic_of(fast: bool) -> Arithmetic:
    """What a device with these kernels declares."""
    return FAST if fast or find_spec("triton") is None else STRICT


def kernels_of(device: Device, place: torch.device, fast: bool) -> KernelRegistry:
    """The registry of one device, whose tensors lie at `place`; `fast` admits other rounding and orders of sums."""
    if find_spec("triton") is None:
        registry = KernelRegistry(TORCH_KERNELS)
    else:
        from .._triton.kernels import TRITON_KERNELS

        registry = KernelRegistry(TRITON_KERNELS)
        if fast:
            _register_rounded(registry)
    register_makers(registry, place)
    register_collectives(registry, device)
    register_unsigned(registry)
    if fast:
        _register_dense(registry)
        register_providers(registry)
    return registry


def _dense(node: Node) -> bool | str:
    """All rows of the weight are stored in the dtype of the activations."""
    x, weight = node.operands[:2]
    assert x is not None and weight is not None and isinstance(weight.type, WeightType)
    return weight.type.scheme == x.tensor.dtype.name or "multiplies weights in the dtype of the activations"


def _register_dense(registry: KernelRegistry) -> None:
    """Products of dense matrices by cuBLAS."""
    registry.register(ops.matmul, name="cublas_matmul", when=_floats, priority=5)(matmul)

    @registry.register(ops.linear, name="cublas_linear", when=_dense, priority=5)
    def linear(x: Tensor, weight: TorchWeight, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight.parts[0].data, bias)


def _floats(node: Node) -> bool | str:
    x = node.operands[0]
    return (x is not None and x.tensor.dtype.is_float) or "multiplies floats only"


def _register_rounded(registry: KernelRegistry) -> None:
    """Attention whose exponentials are rounded to the dtype of the values."""
    from .._triton.kernels import attention

    attention.register_rounded(registry)
