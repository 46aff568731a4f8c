"""What doubles of vendor operators share: the table they enter themselves in, and how a broken rule is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch

from ..._torch.emulation import require
from ..chips import Chip

F = TypeVar("F", bound=Callable[..., Any])

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)
NZ = 29
"""FRACTAL_NZ, the order of a matrix in tiles of 16 by 16 numbers."""
ND = 2
EVERY = ("310p", "910b", "910c", "950")
"""Generations with operators at all: which of them the first 910 has is not established, so it has none here."""
FUSED = ("910b", "910c", "950")


@dataclass(frozen=True, slots=True)
class Double:
    """An operator: what it computes, who has it, keywords that must be given, and operands that lie on the host."""

    function: Callable[..., Any]
    chips: tuple[str, ...]
    spoken: tuple[str, ...]
    hosted: tuple[str, ...]


DOUBLES: dict[str, Double] = {}
"""All doubles by qualified name, such as `npu::npu_rms_norm` or `npu::npu_fused_infer_attention_score.out`."""

_chip: list[Chip] = []
_chips: dict[torch.device, Chip] = {}


def emulate(chip: Chip) -> None:
    """Say which generation the doubles stand for from now on."""
    _chip[:] = [chip]


def stand_for(device: torch.device, chip: Chip) -> None:
    """Say which generation a device of torch is of."""
    _chips[device] = chip


def meet(device: torch.device) -> None:
    """Stand for the generation of a device, if it has one."""
    if device in _chips:
        emulate(_chips[device])


def emulated() -> Chip:
    """The generation the doubles stand for."""
    return _chip[0]


def double(
    name: str, chips: tuple[str, ...] = EVERY, spoken: tuple[str, ...] = (), hosted: tuple[str, ...] = ()
) -> Callable[[F], F]:
    """Enter a function as the double of an operator; it refuses to run on a generation that has no such operator."""

    def decorate(function: F) -> F:
        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            demand(name, emulated().word in chips, f"is not supported on {emulated().soc}")
            return function(*args, **kwargs)

        DOUBLES[name] = Double(checked, chips, spoken, hosted)
        return function

    return decorate


def demand(name: str, holds: bool, rule: str) -> None:
    """A rule of the vendor's manual; broken, it raises what the vendor's library would raise, and says which it was."""
    require(holds, name, rule)


def demand_dtype(name: str, what: str, tensor: torch.Tensor, kinds: tuple[torch.dtype, ...]) -> None:
    allowed = ", ".join(str(kind).removeprefix("torch.") for kind in kinds)
    demand(name, tensor.dtype in kinds, f"{what} must be {allowed}, not {str(tensor.dtype).removeprefix('torch.')}")
    demand(
        name, tensor.dtype is not torch.bfloat16 or emulated().bfloat16, f"{emulated().soc} has no bfloat16 ({what})"
    )


def demand_contiguous(name: str, **tensors: torch.Tensor | None) -> None:
    for what, tensor in tensors.items():
        demand(name, tensor is None or tensor.is_contiguous(), f"{what} must be contiguous")


def demand_transposable(name: str, what: str, tensor: torch.Tensor) -> None:
    """Contiguous, or so with its last two axes exchanged."""
    holds = tensor.is_contiguous() or tensor.transpose(-1, -2).is_contiguous()
    demand(name, holds, f"{what} must be contiguous, or a transposed view of something contiguous")


def marked(tensor: torch.Tensor, layout: int) -> torch.Tensor:
    """A tensor that says in which order its memory would be."""
    tensor.acl_format = layout  # type: ignore[attr-defined]
    return tensor


def format_of(tensor: torch.Tensor) -> int:
    return int(getattr(tensor, "acl_format", ND))
