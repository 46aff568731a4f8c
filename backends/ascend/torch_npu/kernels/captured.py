"""Fused attention inside a captured graph, whose host lists are replaced before each replay.

A graph has the lists of the run it was captured from in it. The vendor's remedy is a task group around the operator, an
external event in front of it that the graph waits for and resets, and an update of the task with new lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from xinheng.core.ir.graph import Node

from ...._torch.capture import Record
from ..host_lists import RowLists, SequenceLists
from ..version import Version

if TYPE_CHECKING:
    from ..device import AscendDevice

Tensor = torch.Tensor


@dataclass(frozen=True)
class Task:
    """The call of one node in one captured graph, without its lists."""

    handle: Any
    event: Any
    memory: tuple[Tensor, Tensor, Tensor]
    given: dict[str, Any]
    out: list[Tensor]


class CapturedAttention:
    """The attention of one node in one captured graph."""

    def __init__(self, version: Version, lists: SequenceLists) -> None:
        self._version, self.lists = version, lists
        self._task: Task | None = None

    def update(self, device: AscendDevice) -> None:
        """Give the lists of the next run to the task, if it was captured already."""
        task = self._task
        if task is None:
            return
        stream = device.update_stream
        with device.runtime.stream(stream):
            device.runtime.graph_task_update_begin(stream, task.handle)
            try:
                self._version.operator()(*task.memory, **task.given, **self._renewed(), out=task.out)
            finally:
                device.runtime.graph_task_update_end(stream)
            task.event.record(stream)

    def capture(
        self, device: AscendDevice, memory: tuple[Tensor, Tensor, Tensor], table: Tensor, given: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Attend into the graph that is being captured: queries [rows, heads, width], keys and values in pages."""
        version, lists, q = self._version, self.lists, memory[0]
        tokens, heads, _ = q.shape
        given = given | {"block_table": lists.bind(tokens, table), "input_layout": lists.layout}
        wants = given[version.sums]
        shape = (tokens, heads, 1) if lists.layout == "TND" else (tokens, heads, 1, 1)
        if lists.layout == "BSND":
            memory = (q[:, None], *memory[1:])
        out = [torch.empty_like(memory[0]), q.new_empty(shape if wants else (1,), dtype=torch.float32)]
        given |= {"workspace": version.workspace()(*memory, **given, **self._renewed())}
        stream, event = device.runtime.current_stream(device.device), device.runtime.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        device.runtime.graph_task_group_begin(stream)
        version.operator()(*memory, **given, **self._renewed(), out=out)
        handle = device.runtime.graph_task_group_end(stream)
        self._task = Task(handle, event, memory, given, out)
        seen = lists.seen[:tokens]
        made = torch.where(seen[..., None], out[0].reshape(q.shape), 0.0)
        return made, torch.where(seen, out[1].reshape(tokens, heads), -torch.inf) if wants else None

    def _renewed(self) -> dict[str, Any]:
        return self._version.lists(*self.lists.lists())


class Renewal:
    """The captured attentions of one node, one for each graph.

    Those of nodes that read the same lists share them: `by_row` says how they are told, and `window` what is hidden.
    """

    def __init__(
        self, device: AscendDevice, version: Version, node: Node, by_row: bool, window: int | None = None
    ) -> None:
        self._device, self._version, self._by_row, self._window = device, version, by_row, window
        given = [node.operand(name) for name in ("query_start", "seq_lens")]
        self._names = tuple(value.name for value in given if value is not None)

    def update(self, host: dict[str, NDArray[Any]]) -> None:
        """Take the lists of the run that is about to be captured or replayed."""
        record = self._device.record
        assert record is not None
        if id(self) not in record.notes:
            shared = (self._names, self._by_row, self._window)
            if shared not in record.notes:
                record.notes[shared] = self._lists(host["seq_lens"].size)
            record.notes[id(self)] = CapturedAttention(self._version, record.notes[shared])
        attention = self.within(record)
        attention.lists.renew(host)
        attention.update(self._device)

    def within(self, record: Record) -> CapturedAttention:
        """The attention in one graph."""
        found: CapturedAttention = record.notes[id(self)]
        return found

    def _lists(self, sequences: int) -> SequenceLists:
        if self._by_row:
            return RowLists(self._device, sequences, self._window)
        return SequenceLists(self._device, sequences)
