"""A card as a torch device with Triton kernels, CUDA graphs and NCCL."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from xinheng.core.hal import Capabilities, DeviceOptions, Limits
from xinheng.core.ir.dtype import DType, dtype

from .._torch.accelerator import AcceleratorDevice
from .._torch.handles import DTYPES
from .._triton.interpreter import demand
from .kernels import arithmetic_of, kernels_of
from .limits import measured_limits

EIGHT_BIT_FLOATS = (8, 9)
"""The compute capability from which cards convert eight-bit floats."""
LEFT_OUT = frozenset(map(dtype, ("float64", "uint64", "float8_e4m3fnuz", "float8_e5m2fnuz")))
"""Dtypes that torch holds and no kernel here computes with."""
EIGHTS = frozenset(map(dtype, ("float8_e4m3fn", "float8_e5m2")))


def dtypes_of(capability: tuple[int, int]) -> frozenset[DType]:
    """The dtypes of tensors on a card of a compute capability."""
    known = frozenset(DTYPES) - LEFT_OUT
    return known if capability >= EIGHT_BIT_FLOATS else known - EIGHTS


class CUDADevice(AcceleratorDevice):
    """`cuda:0` and so on, as this process numbers its cards."""

    def __init__(self, index: int, options: DeviceOptions) -> None:
        spec, place = f"cuda:{index}", torch.device("cuda", index)
        if find_spec("triton") is not None:
            demand(False, spec)
        fast = options.numerics.mode == "fast"
        capability = torch.cuda.get_device_capability(place)
        capabilities = Capabilities(
            dtypes_of(capability),
            preferred_dtype="bfloat16",
            arithmetic=arithmetic_of(fast),
            cache_schemes=frozenset({"int8"}),
        )
        name = torch.cuda.get_device_name(place)
        super().__init__(spec, name, place, capabilities, collective="nccl", graph="CUDAGraph", capture=options.graph)
        _forbid_narrow_sums()
        self.kernels = kernels_of(self, place, fast)

    def limits(self, working_set: int) -> Limits | None:
        return measured_limits(self.runtime, self.device, self.memory(), working_set)

    def notes(self) -> tuple[str, ...]:
        if find_spec("triton") is not None:
            return ()
        return ("triton is not installed: kernels are those of plain torch; pip install 'xinheng[cuda]'",)


def _forbid_narrow_sums() -> None:
    """Keep the libraries below torch from cutting operands or sums, which no device declares here."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
