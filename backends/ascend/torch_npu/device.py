"""An Ascend card that torch addresses as npu: memory in the vendor's layouts, and kernels by generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core.errors import OutOfMemory
from xinheng.core.hal import (
    ANY_ORDER,
    Arithmetic,
    Buffer,
    Capabilities,
    DeviceOptions,
    Kernel,
    Refusal,
    StateSpace,
    WeightSource,
)
from xinheng.core.ir.dtype import DType, bfloat16, bool_, dtype, float32
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import StateType
from xinheng.core.ops import KVPages

from ..._torch import AcceleratorDevice, TorchWeight
from ..._torch.handles import DTYPES, Rows
from ..._torch.plane_part import PlanePart, plane_part
from ..chips import BLOCK_SIZE, Chip
from .batches import Batch, Remembered
from .grouped import ROWS, coding_of, fits
from .handles import TILE, GroupedRows, NPUPagedKV, NPUPagedLatent, NPUWeight, TiledPagedKV
from .kernels import register_kernels
from .kernels.tiled import tiled

Tensor = torch.Tensor
FUSED_PRODUCT = "npu_weight_quant_batchmatmul"
NZ = 29
"""The vendor's number of FRACTAL_NZ."""
FAST = {"linear": ("int8-activations-by-row",)}
"""What fast mode computes beside the programs of strict mode."""
MOST = 2**31 - 1
"""Numbers that one cache may have, for single queries."""


class AscendDevice(AcceleratorDevice):
    """A card or the emulation of one; `chip` says of which generation it is."""

    def __init__(
        self, spec: str, name: str, device: torch.device, chip: Chip, options: DeviceOptions, determinism: str
    ) -> None:
        self.chip, self.remembered = chip, Remembered()
        self.fast = options.numerics.mode == "fast"
        """Whether kernels may round activations to int8."""
        arithmetic = Arithmetic(ANY_ORDER, determinism=determinism, programs=FAST if self.fast and chip.fused else {})
        capabilities = Capabilities(
            _dtypes(chip), block_sizes=(BLOCK_SIZE,), preferred_dtype=chip.dtype, arithmetic=arithmetic
        )
        graph = "NPUGraph" if chip.graphs else None
        super().__init__(spec, name, device, capabilities, "hccl", graph, capture=options.graph)
        register_kernels(self.kernels, self)

    def select(self, node: Node, only: str | None = None) -> tuple[Kernel | None, list[Refusal]]:
        known = {kind.name for kind in self.capabilities.dtypes}
        for value in node.operands:
            if value is not None and isinstance(value.type, StateType):
                coding = str(value.type["dtype" if value.type.kind == "sequence_state" else "scheme"])
                if coding not in known:
                    return None, [Refusal(node.op.name, f"the device has no states of {coding}")]
        return super().select(node, only)

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        """Packed rows, rows for the fused product where a kernel reads them so, or matrices in NZ order."""
        readers = self.readers.get(source.name, set())
        fused = (
            self.chip.fused
            and len(source.shape) == 2
            and all(fits(p.scheme, p.rows, source.shape[1]) for p in source.parts)
        )
        if fused and (FUSED_PRODUCT in readers or not readers):
            rows = tuple(made for part in source.parts for made in self._grouped(part.scheme, part.load()))
            kept = () if readers == {FUSED_PRODUCT} else super().prepare(source, uses).parts
            return NPUWeight(source.shape, kept, "groups for the fused product", rows)
        if not self.chip.bfloat16 and any(part.scheme.endswith("_bf16") for part in source.parts):
            planes = tuple(plane_part(part, source.shape[-1], self._upload_scales) for part in source.parts)
            return TorchWeight(source.shape, planes, "planes of codes and scales")
        held = super().prepare(source, uses)
        if self.chip.nz_weights and list(uses) == ["linear"] and isinstance(held, TorchWeight):
            parts = tuple(self._tiled_matrix(part) for part in held.parts)
            if any(made is not part for made, part in zip(parts, held.parts, strict=True)):
                return TorchWeight(held.shape, parts, "FRACTAL_NZ")
        return held

    def _upload_scales(self, array: NDArray[Any], kind: DType) -> Buffer:
        """A plane, in float32 if it is in bfloat16, which the chip lacks."""
        return self.upload(array, float32 if kind is bfloat16 else kind)

    def _tiled_matrix(self, part: Rows) -> Rows:
        """Rows of float16 numbers in NZ order; others as they are."""
        if not isinstance(part, PlanePart) or part.codes.dtype is not torch.float16:
            return part
        return replace(part, codes=torch.ops.npu.npu_format_cast(part.codes, NZ))

    def _grouped(self, scheme: str, data: NDArray[Any]) -> list[GroupedRows]:
        """Rows of a scheme in pieces that one product takes."""
        coding, made = coding_of(scheme), []
        assert coding is not None
        for first in range(0, len(data), ROWS):
            codes, scale, offset = coding.unpack(np.ascontiguousarray(data[first : first + ROWS]))
            placed = self.upload(np.ascontiguousarray(codes.T), dtype("int8"))
            if coding.bits == 4:
                placed = torch.ops.npu.npu_convert_weight_to_int4pack(placed.to(torch.int32))
            scales = self.upload(np.ascontiguousarray(scale.T), coding.dtype)
            offsets = None if offset is None else self.upload(np.ascontiguousarray(offset.T), coding.dtype)
            group = coding.group if coding.group < codes.shape[1] else 0
            made.append(GroupedRows(placed, scales, offsets, group))
        return made

    def allocate_state(self, type: StateType, space: StateSpace) -> Buffer:
        if type.kind == "sequence_state" or not (self.chip.fused or self.chip.atb):
            return super().allocate_state(type, space)
        wide = StateSpace(space.blocks + 1, space.block_size)
        if self.chip.atb and tiled(type):
            return self._tiled(type, wide)
        if not self.chip.fused:
            return super().allocate_state(type, space)
        widths = ("k_dim", "v_dim") if type.kind == "paged_kv" else ("dim", "rope_dim")
        row = max(int(type[width]) for width in widths) * (int(type["heads"]) if type.kind == "paged_kv" else 1)
        if wide.blocks * wide.block_size * row > MOST:
            raise OutOfMemory(
                f"{self.spec}: a cache of {space.blocks} blocks has more than {MOST} numbers, which attention does "
                "not address; lower engine.cache_memory or engine.max_num_seqs"
            )
        held = super().allocate_state(type, wide)
        return NPUPagedKV.of(held.k, held.v) if type.kind == "paged_kv" else NPUPagedLatent.of(held.latent, held.rope)

    def _tiled(self, type: StateType, space: StateSpace) -> TiledPagedKV:
        shape = (space.blocks, type["heads"] * type["k_dim"] // TILE, space.block_size, TILE)
        with self.explaining(f"{space.blocks} cache blocks", 2 * prod(shape) * torch.float16.itemsize):
            k, v = (self._cleared(shape, torch.float16) for _ in range(2))
        return TiledPagedKV((k, v), type["heads"])

    def read_state(self, state: Buffer, type: StateType) -> tuple[NDArray[Any], ...]:
        if isinstance(state, TiledPagedKV):
            pages = state.every()
            return KVPages(self.download(pages.k), self.download(pages.v))
        return super().read_state(state, type)

    def write_state(self, state: Buffer, type: StateType, pages: tuple[NDArray[Any], ...]) -> None:
        if isinstance(state, TiledPagedKV):
            k, v = (self.upload(new, dtype("float16")) for new in pages)
            state.overwrite(k, v)
        else:
            super().write_state(state, type, pages)

    @cached_property
    def causal_mask(self) -> Tensor:
        """The one mask of sparse modes: 2048 by 2048, 1 above the diagonal, where a key is hidden."""
        return self.placed(np.triu(np.ones((2048, 2048), np.int8), 1))

    @cached_property
    def update_stream(self) -> Any:
        """The queue by which captured graphs are given new host lists."""
        return self.runtime.Stream(device=self.device)

    def placed(self, array: NDArray[Any]) -> Tensor:
        """An array on the device, in its own dtype."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def batch(self, query_start: NDArray[Any], seq_lens: NDArray[Any], tokens: int, window: int | None = None) -> Batch:
        """What the host lists of a step mean, found out once per step."""
        lists = (query_start, seq_lens)
        return self.remembered.get("batch", lists, (tokens, window), lambda: Batch.of(*lists, tokens, window))

    def rows_of_queries(self, q: Tensor, batch: Batch) -> Tensor:
        """The queries that see a key, contiguous."""
        if batch.leading:
            return q[: batch.rows.size].contiguous()
        return q[self._rows(batch)]

    def _rows(self, batch: Batch) -> Tensor:
        return self.remembered.get("rows", (batch.rows,), (), lambda: self.placed(batch.rows))

    def rows_of_table(self, table: Tensor, batch: Batch) -> Tensor:
        """The rows of a block table for the sequences of a batch, int32, without the blocks that are skipped."""
        kept = table.to(torch.int32)
        if not np.array_equal(batch.sequences, np.arange(table.shape[0])):
            kept = kept[self.remembered.get("sequences", (batch.sequences,), (), lambda: self.placed(batch.sequences))]
        if batch.skipped.any():
            wide, most = -(-int(batch.lengths.max()) // BLOCK_SIZE), table.shape[1] - 1
            columns = np.minimum(batch.skipped[:, None] + np.arange(wide), most)
            kept = kept.gather(
                1, self.remembered.get("columns", (columns,), columns.shape, lambda: self.placed(columns))
            )
        return kept.contiguous()

    def spread(self, out: Tensor, lse: Tensor | None, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Results of the rows that see a key among those of all rows: 0 and -inf elsewhere."""
        if batch.rows.size == batch.tokens:
            return out, lse
        rows, made = self._rows(batch), out.new_zeros((batch.tokens, *out.shape[1:]))
        made[rows] = out
        if lse is None:
            return made, None
        sums = lse.new_full((batch.tokens, lse.shape[1]), -torch.inf)
        sums[rows] = lse
        return made, sums


def _dtypes(chip: Chip) -> frozenset[DType]:
    """Those that torch_npu computes with; float64 and wide unsigned integers are not among them."""
    there = {kind for kind in DTYPES if kind.is_float and kind.bits in (16, 32)} | {bool_}
    there |= {dtype(name) for name in ("int64", "int32", "int16", "int8", "uint8", "uint32")}
    return frozenset(there if chip.bfloat16 else there - {bfloat16})
