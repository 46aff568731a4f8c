"""A Cambricon card, or an emulated one: torch_mlu's device with the kernels of the torch_mlu_ops that is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from xinheng.core.hal import (
    ANY_ORDER,
    Arithmetic,
    Buffer,
    Capabilities,
    DeviceOptions,
    Executable,
    Placement,
    StateSpace,
    WeightSource,
)
from xinheng.core.ir.dtype import dtype, int8
from xinheng.core.ir.graph import Graph
from xinheng.core.ir.types import StateType

from .._torch.accelerator import AcceleratorDevice
from .._torch.handles import DTYPES
from .chips import PREFILL_BLOCK, Chip
from .codes import coded, known
from .functions import Functions
from .handles import CodedRows, JointLatent, MLUWeight, joint
from .kernels import register_kernels
from .kernels.linear import CODED_PRODUCTS
from .step import Step


class CambriconDevice(AcceleratorDevice):
    """Keeps keys and values as [blocks, heads, block, width], the order that torch_mlu_ops reads."""

    def __init__(
        self,
        spec: str,
        name: str,
        device: torch.device,
        chip: Chip,
        library: Any | None,
        options: DeviceOptions | None = None,
        determinism: str = "D1",
    ) -> None:
        """Open a card.

        Args:
            library: the module torch_mlu_ops or a double of it; None if it is not installed.
            determinism: what the device promises; an emulation promises more than is known of a card.
        """
        capabilities = Capabilities(
            chip.dtypes,
            block_sizes=(PREFILL_BLOCK,),
            preferred_dtype=chip.preferred,
            arithmetic=Arithmetic(depth=ANY_ORDER, determinism=determinism),
        )
        capture = options is None or options.graph
        super().__init__(spec, name, device, capabilities, collective="cncl", graph="MLUGraph", capture=capture)
        self.chip, self.functions = chip, Functions(library)
        self.joint_latents = self.functions.takes("single_query_cached_kv_attn", "head_size_v")
        self._step: Step | None = None
        register_kernels(self)

    def notes(self) -> tuple[str, ...]:
        if not self.functions.installed:
            return ("torch_mlu_ops is not installed: all kernels are those of plain torch",)
        lost = self.functions.lacking()
        return (f"this torch_mlu_ops has no {', '.join(lost)}: plain torch runs instead",) if lost else ()

    def compile(self, graph: Graph, placement: Placement, bounds: Mapping[str, int]) -> Executable:
        self._step = Step()
        try:
            return super().compile(graph, placement, bounds)
        finally:
            self._step = None

    @property
    def step(self) -> Step:
        """What the nodes share that are being planned: those of the graph that is being compiled, or one alone."""
        return self._step or Step()

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        """Planes of codes and scales, or signed codes where a weight-only product reads them."""
        readers = self.readers.get(source.name, set())
        if not readers & CODED_PRODUCTS or not all(known(part.scheme) for part in source.parts):
            return super().prepare(source, uses)
        pieces = []
        for part in source.parts:
            made = coded(part)
            if made is None:
                plain = super().prepare(source, uses)
                return replace(plain, layout=f"{plain.layout}; zero points leave no room for signed codes")
            bits, codes, scale, kind = made
            pieces.append(CodedRows(self.upload(codes, int8), self.upload(scale, kind), bits))
        kept = super().prepare(source, uses).parts if readers - CODED_PRODUCTS else ()
        widths = " and ".join(str(bits) for bits in sorted({piece.bits for piece in pieces}))
        return MLUWeight(source.shape, kept, f"signed codes of {widths} bits", tuple(pieces))

    def allocate_state(self, type: StateType, space: StateSpace) -> Buffer:
        if type.kind != "paged_latent" or not self.joint_latents or not joint(type):
            return super().allocate_state(type, space)
        shape = (space.blocks, space.block_size, type["dim"] + type["rope_dim"])
        kind = DTYPES[dtype(type["scheme"])]
        with self.explaining(f"{space.blocks} cache blocks", prod(shape) * kind.itemsize):
            return JointLatent(self._cleared(shape, kind), type["dim"])

    def _keys(self, shape: tuple[int, int, int, int], kind: torch.dtype) -> torch.Tensor:
        blocks, block, heads, width = shape
        return self._cleared((blocks, heads, block, width), kind).transpose(1, 2)

    def _values(self, shape: tuple[int, int, int, int], kind: torch.dtype) -> torch.Tensor:
        return self._keys(shape, kind)
