"""The caches and weights of a Cambricon card, in the layouts that torch_mlu_ops reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from xinheng.core.ir.types import StateType

from .._torch.handles import TorchPagedLatent, TorchWeight
from .chips import HEADS

Tensor = torch.Tensor


def joint(cache: StateType) -> bool:
    """Whether latents and rotary keys of a cache lie side by side, as heads of a width that attention knows."""
    width = cache["dim"] + cache["rope_dim"]
    return cache["scheme"] in ("float16", "bfloat16") and width in HEADS and cache["dim"] in HEADS


class JointLatent(TorchPagedLatent):
    """A paged latent cache in one memory [blocks, block_size, dim + rope_dim], of which both parts are views."""

    __slots__ = ("whole",)
    whole: Tensor

    def __init__(self, whole: Tensor, dim: int) -> None:
        super().__init__(whole[..., :dim], whole[..., dim:])
        object.__setattr__(self, "whole", whole)


@dataclass(frozen=True, slots=True)
class CodedRows:
    """Some rows of a weight as signed codes that products read as they are.

    codes: int8 [rows, columns]; for 4 bits [rows, columns / 2], the even columns in the low halves.
    scale: [rows, groups] of the dtype of activations, or float32 [rows] where a whole row shares one.
    """

    codes: Tensor
    scale: Tensor
    bits: int


@dataclass(frozen=True)
class MLUWeight(TorchWeight):
    """A weight with, besides or instead of its planes, rows of codes for products; in the order of its rows."""

    coded: tuple[CodedRows, ...] = ()

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(rows.codes.nbytes + rows.scale.nbytes for rows in self.coded)
