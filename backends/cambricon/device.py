"""A Cambricon card, or an emulated one: torch_mlu's device with the kernels of the torch_mlu_ops that is installed."""

from __future__ import annotations

from typing import Any

import torch

from xinheng.core.hal import ANY_ORDER, Arithmetic, Capabilities, DeviceOptions

from .._torch.accelerator import AcceleratorDevice
from .chips import PREFILL_BLOCK, Chip
from .functions import Functions
from .kernels import register_kernels


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
        register_kernels(self.kernels, self.functions)

    def notes(self) -> tuple[str, ...]:
        if not self.functions.installed:
            return ("torch_mlu_ops is not installed: all kernels are those of plain torch",)
        lost = self.functions.lacking()
        return (f"this torch_mlu_ops has no {', '.join(lost)}: plain torch runs instead",) if lost else ()

    def _keys(self, shape: tuple[int, int, int, int], kind: torch.dtype) -> torch.Tensor:
        blocks, block, heads, width = shape
        return self._cleared((blocks, heads, block, width), kind).transpose(1, 2)

    def _values(self, shape: tuple[int, int, int, int], kind: torch.dtype) -> torch.Tensor:
        return self._keys(shape, kind)
