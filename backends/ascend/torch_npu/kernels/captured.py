"""Fused attention inside a captured graph, whose host lists are replaced before each replay.

A graph has the lists of the run it was captured from in it. The vendor's remedy is a task group around the operator, an
external event in front of it that the graph waits for and resets, and an update of the task with new lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...chips import BLOCK_SIZE
from ..batches import Batch

if TYPE_CHECKING:
    from ..device import AscendDevice

Tensor = torch.Tensor


@dataclass
class Task:
    """The attention of one node in one captured graph."""

    handle: Any
    event: Any
    memory: tuple[Tensor, Tensor, Tensor]
    given: dict[str, Any]
    out: list[Tensor]
    seen: Tensor


class CapturedLists:
    """The host lists of one node in one graph: all rows belong to a sequence, those of padding to a last one.

    Rows that see no key come out as anything, so they are overwritten behind the operator.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self._names = names
        self._start: NDArray[Any] = np.zeros(1, np.int64)
        self._lengths: NDArray[Any] = np.zeros(0, np.int64)
        self._task: Task | None = None

    def renew(self, device: AscendDevice, host: dict[str, NDArray[Any]]) -> None:
        """Take the lists of the next run, and give them to the task if it was captured already."""
        self._start, self._lengths = host["query_start"].astype(np.int64), host["seq_lens"].astype(np.int64)
        task = self._task
        if task is None:
            return
        tokens, width = task.out[0].shape[0], task.given["block_table"].shape[1]
        task.seen.copy_(self._seen(device, tokens))
        stream = device.update_stream
        with device.runtime.stream(stream):
            device.runtime.graph_task_update_begin(stream, task.handle)
            try:
                torch.ops.npu.npu_fused_infer_attention_score(
                    *task.memory, **task.given, **self._lists(tokens, width), out=task.out
                )
            finally:
                device.runtime.graph_task_update_end(stream)
            task.event.record(stream)

    def capture(
        self, device: AscendDevice, memory: tuple[Tensor, Tensor, Tensor], table: Tensor, given: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Attend into the graph that is being captured."""
        q, npu = memory[0], torch.ops.npu
        tokens, heads, wide = q.shape[0], q.shape[1], table.shape[1]
        table = torch.cat((table.to(torch.int32), table.new_zeros((1, wide), dtype=torch.int32)))
        wants = given["softmax_lse_flag"]
        out = [torch.empty_like(q), q.new_empty((tokens, heads, 1) if wants else (1,), dtype=torch.float32)]
        lists = self._lists(tokens, wide)
        given = given | {"block_table": table}
        workspace = npu._npu_fused_infer_attention_score_get_max_workspace(*memory, **given, **lists)
        given |= {"workspace": workspace}
        seen = torch.empty((tokens, 1), dtype=torch.bool, device=q.device)  # filling it would be part of each replay
        stream, event = device.runtime.current_stream(device.device), device.runtime.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        device.runtime.graph_task_group_begin(stream)
        npu.npu_fused_infer_attention_score(*memory, **given, **lists, out=out)
        handle = device.runtime.graph_task_group_end(stream)
        self._task = Task(handle, event, memory, given, out, seen)
        made = torch.where(seen[..., None], out[0], 0.0)
        return made, torch.where(seen, out[1][..., 0], -torch.inf) if wants else None

    def _lists(self, tokens: int, width: int) -> dict[str, list[int]]:
        """The lists of a run: running sums of queries up to all tokens, and the keys of each sequence."""
        ends, lengths = [int(end) for end in self._start[1:]], [int(length) for length in self._lengths]
        rest = tokens - (ends[-1] if ends else 0)
        return dict(zip(self._names, ([*ends, tokens], [*lengths, min(rest, width * BLOCK_SIZE)]), strict=True))

    def _seen(self, device: AscendDevice, tokens: int) -> Tensor:
        """Which rows see a key, [tokens, 1]."""
        seen = np.zeros((tokens, 1), bool)
        seen[Batch.of(self._start, self._lengths, tokens).rows] = True
        return device.placed(seen)
