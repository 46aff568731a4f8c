"""A device that torch can address by a device string."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError, OutOfMemory
from xinheng.core.hal import (
    Buffer,
    Capabilities,
    Device,
    MemoryGuard,
    MemoryStats,
    StateSpace,
    WeightPart,
    WeightSource,
    converted,
)
from xinheng.core.ir.dtype import DType, bfloat16, cast_to, dtype
from xinheng.core.ir.types import StateType
from xinheng.core.ops import state_of
from xinheng.core.schemes import scheme

from .collective import GlooCommunicator
from .handles import (
    DTYPES,
    NAMES,
    TorchPagedKV,
    TorchPagedLatent,
    TorchQuantizedKV,
    TorchSequenceState,
    TorchWeight,
    TorchWeightPart,
    array_of,
)
from .memory_guard import TorchGuard

FULL = ("out of memory", "can't allocate memory", "cannot allocate memory", "size calculation overflowed")
"""What torch and the libraries below it say when memory is full, or could never be large enough."""
ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB)")
"""How torch's allocators tell what they were asked for."""
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class TorchDevice(Device):
    """Memory and handles on one torch device; subclasses name it, bring kernels and measure memory."""

    def __init__(self, spec: str, name: str, device: torch.device, capabilities: Capabilities) -> None:
        self.spec, self.name, self.device, self.capabilities = spec, name, device, capabilities
        self.guard: TorchGuard | None = None

    def guard_memory(self) -> MemoryGuard | None:
        return TorchGuard(self)

    def upload(self, array: NDArray[Any], dtype: DType) -> Buffer:
        return self._placed(self._tensor(array, dtype))

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in memory of this device, which is guarded while somebody watches it."""
        there = tensor.to(self.device)
        return there if self.guard is None else self.guard.moved(there)

    def _tensor(self, array: NDArray[Any], kind: DType) -> torch.Tensor:
        if kind not in DTYPES:
            raise DeviceError(f"{self.spec}: torch has no dtype {kind}")
        if array.dtype != kind.numpy:
            array = cast_to(array, kind)
        if kind is bfloat16 or kind.name.startswith("float8"):
            bits = torch.from_numpy(np.ascontiguousarray(array).view(np.int16 if kind.bits == 16 else np.uint8))
            return bits.view(DTYPES[kind]).reshape(array.shape)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)

    def download(self, buffer: Buffer) -> NDArray[Any]:
        return array_of(buffer.detach().to("cpu").contiguous())

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        held, how = converted(source, self.capabilities.dtypes, self.spec)
        return TorchWeight(held.shape, tuple(self._part(part) for part in held.parts), how or "as stored")

    def _part(self, part: WeightPart) -> TorchWeightPart:
        data = part.load()
        dense = scheme(part.scheme).dense
        if dense is not None and dense in DTYPES:
            tensor = self._tensor(np.ascontiguousarray(data).view(dense.numpy), dense)
        else:
            tensor = self._tensor(np.ascontiguousarray(data), dtype("uint8"))
        return TorchWeightPart(part.scheme, part.rows, self._placed(tensor))

    def layout_of(self, buffer: Buffer) -> tuple[str, int]:
        return buffer.layout if isinstance(buffer, TorchWeight) else "as stored", buffer.nbytes

    def allocate_state(self, type: StateType, space: StateSpace) -> Buffer:
        lead = (space.blocks, space.block_size) if type.paged else (space.blocks,)
        shapes: list[tuple[Any, torch.dtype]] = [
            ((*lead, *part.shape), DTYPES[part.dtype]) for part in self.parts(type)
        ]
        try:
            if type.kind != "paged_kv":
                made = [self._cleared(*shape) for shape in shapes]
                return TorchPagedLatent(*made) if type.paged else TorchSequenceState(*made)
            pages = self._keys(*shapes[0]), self._values(*shapes[1])
            scales = [self._cleared(*shape) for shape in shapes[2:]]
            return TorchQuantizedKV(*pages, *scales) if scales else TorchPagedKV(*pages)
        except (MemoryError, RuntimeError) as error:
            asked = sum(prod(shape) * kind.itemsize for shape, kind in shapes)
            raise self.explained(error, f"{space.blocks} cache blocks", asked) from error

    def out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, MemoryError | OutOfMemory | torch.OutOfMemoryError):
            return True
        return any(words in str(error).lower() for words in FULL)

    def shortage(self, error: BaseException) -> tuple[int | None, int | None]:
        found = ASKED.search(str(error))
        asked = None if found is None else int(float(found[1]) * UNITS[found[2]])
        return asked, super().shortage(error)[1]

    def explained(self, error: BaseException, what: str, asked: int | None = None) -> DeviceError:
        """The error of something that could not be put into memory; OutOfMemory if there is no room for it.

        `asked` are the bytes of it, where they are known.
        """
        if not self.out_of_memory(error):
            return DeviceError(f"{self.spec}: {what} cannot be brought to the device: {error}")
        told, free = self.shortage(error)
        size = told if asked is None else asked
        sizes = [f"{size >> 20} MiB are asked for" if size is not None else "", _free(free)]
        spelled = ", ".join(filter(None, sizes)) or str(error)
        advice = "use a smaller model, a narrower weight scheme, or lower engine.cache_memory"
        return OutOfMemory(f"{self.spec}: no room for {what}: {spelled}; {advice}", size, free)

    def _keys(self, shape: tuple[int, int, int, int], kind: torch.dtype) -> torch.Tensor:
        """Pages of keys [blocks, block_size, heads, width], in the order in memory that the device likes."""
        return self._cleared(shape, kind)

    def _values(self, shape: tuple[int, int, int, int], kind: torch.dtype) -> torch.Tensor:
        """Pages of values, likewise."""
        return self._cleared(shape, kind)

    def read_state(self, state: Buffer, type: StateType) -> tuple[NDArray[Any], ...]:
        return state_of(type, [self.download(x.clone()) for x in state.parts])

    def write_state(self, state: Buffer, type: StateType, pages: tuple[NDArray[Any], ...]) -> None:
        for held, new in zip(state.parts, pages, strict=True):
            held.copy_(self.upload(new, NAMES[held.dtype]))

    def _cleared(self, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        """Memory of a state."""
        made = self._zeros(shape, kind)
        return made if self.guard is None else self.guard.moved(made)

    def _zeros(self, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=kind, device=self.device)

    def join(self, group: str, rank: int, size: int, address: str) -> None:
        self.connect(group, GlooCommunicator(rank, size, address))

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(buffer.shape)

    def memory(self) -> MemoryStats:
        raise DeviceError(f"{self.spec}: this backend does not report memory; set engine.cache_memory")


def _free(free: int | None) -> str:
    return "" if free is None else f"{free >> 20} MiB are free"
