"""Random numbers in halves of 32-bit integers: a card cuts int64 to int32, and multiplies no unsigned ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ops.sampling import MULTIPLIERS, WEYL

if TYPE_CHECKING:
    from ..device import CambriconDevice

Tensor = torch.Tensor
ROUNDS, MASK = 10, 0xFFFF


def register(kernels: KernelRegistry, device: CambriconDevice) -> None:
    """Enter the kernel of `random_uniform`."""

    def placed(halves: Sequence[Any]) -> Tensor:
        return torch.tensor(halves, dtype=torch.int32).to(device.device)

    # a factor is twice its upper 15 bits plus its last one, so that products with 16 bits have room in int32
    factors = [tuple(word >> at & MASK for at in (0, 16)) for word in MULTIPLIERS]
    upper = placed([tuple(half >> 1 for half in halves) for halves in factors])[:, :, None, None]
    last = placed([tuple(half & 1 for half in halves) for halves in factors])[:, :, None, None]
    keys = placed([[(r * word & MASK, r * word >> 16 & MASK) for word in WEYL] for r in range(ROUNDS)])[..., None]

    @kernels.register(ops.random_uniform, name="torch_random_uniform_int32")
    def random_uniform(seed: Tensor, counter: Tensor) -> Tensor:
        """Ten rounds of Philox over words [2, halves, rows]: the even ones are multiplied, the odd ones only mixed."""
        start = torch.stack(_halves(counter))
        even = torch.stack((start, torch.zeros_like(start)))
        odd = torch.zeros_like(even)
        low, high = (half.T for half in _halves(seed))
        sums = low + keys[:, :, 0]
        rounds = torch.stack((sums & MASK, (high + keys[:, :, 1] + (sums >> 16)) & MASK), 2)
        for key in rounds.unbind():
            below, above = _multiplied(even, upper, last)
            even, odd = above.flip(0) ^ odd ^ key, below.flip(0)
        return (even[0, 1] * 256 + (even[0, 0] >> 8)).to(torch.float32) * 2.0**-24


def _halves(words: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper 16 bits of uint32, as int32."""
    bits = words.contiguous().view(torch.int32)
    return bits & MASK, (bits >> 16) & MASK


def _multiplied(words: Tensor, upper: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper 32 bits of words times the factor of each, in halves [2, 2, rows].

    `upper` and `last` are the factors [2, halves, 1, 1] without their last bits, and these; no number exceeds 31 bits.
    """
    x = words[:, None]
    most = x * upper  # [word, half of the factor, half of the word, rows]
    least = ((most & 0x7FFF) << 1) + x * last
    low, high = least & MASK, (most >> 15) + (least >> 16)
    second = high[:, 0, 0] + low[:, 0, 1] + low[:, 1, 0]
    third = high[:, 0, 1] + high[:, 1, 0] + low[:, 1, 1] + (second >> 16)
    fourth = high[:, 1, 1] + (third >> 16)
    return torch.stack((low[:, 0, 0], second & MASK), 1), torch.stack((third & MASK, fourth & MASK), 1)
