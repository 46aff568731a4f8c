"""Tasks of captured graphs whose host lists can be replaced: `graph_task_group_begin` and what belongs to it.

A graph waits for an external event before each task and resets it behind; whoever replays the graph gives the task new
lists and records the event. Where that was forgotten a card waits forever, and a replay here raises.
"""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_map

from ..._torch.emulation import EmulatedGraph, EmulatedTensor
from ..._torch.emulation.board import board_of


class Task:
    """The calls of a graph between the begin and the end of a group."""

    def __init__(self, graph: EmulatedGraph) -> None:
        self._graph, self._first, self._last, self._next = graph, graph.length, graph.length, 0

    def end(self) -> None:
        self._last = self._graph.length

    def begin_update(self) -> None:
        self._next = self._first

    def renew(self, operator: Any, args: Any, kwargs: Any) -> None:
        """Give the next call of the group other operands; nothing is computed."""
        if self._next >= self._last:
            raise RuntimeError("graph_task_update: more calls than the group has")
        plain, named = tree_map(lambda x: x.host if isinstance(x, EmulatedTensor) else x, (args, kwargs))
        self._graph.renew(self._next, plain, named)
        self._next += 1


class ExternalEvent:
    """An event that a graph waits for and somebody outside records."""

    def __init__(self) -> None:
        self._recorded = False

    def record(self, stream: Any = None) -> None:
        self._recorded = True

    def wait(self, stream: Any = None) -> None:
        graph = board_of(None).graph
        if graph is not None:
            graph.note(self._awaited, (), {}, None)

    def reset(self, stream: Any = None) -> None:
        graph = board_of(None).graph
        if graph is not None:
            graph.note(self._cleared, (), {}, None)

    def _awaited(self) -> None:
        if not self._recorded:
            raise RuntimeError(
                "a replayed graph waits forever: an external event was not recorded since the last replay"
            )

    def _cleared(self) -> None:
        self._recorded = False


_open: list[Task] = []
_updating: list[Task] = []


def updating() -> Task | None:
    """The task whose operands are being replaced."""
    return _updating[-1] if _updating else None


def _begin(stream: Any) -> None:
    graph = board_of(None).graph
    if graph is None:
        raise RuntimeError("graph_task_group_begin: no graph is being captured")
    _open.append(Task(graph))


def _end(stream: Any) -> Task:
    if not _open:
        raise RuntimeError("graph_task_group_end without graph_task_group_begin")
    task = _open.pop()
    task.end()
    return task


def _begin_update(stream: Any, handle: Task) -> None:
    handle.begin_update()
    _updating.append(handle)


def _end_update(stream: Any) -> None:
    if not _updating:
        raise RuntimeError("graph_task_update_end without graph_task_update_begin")
    _updating.pop()


def add_tasks(runtime: Any) -> None:
    """Put the functions where a program finds them, in `torch.npu`."""
    runtime.ExternalEvent = ExternalEvent
    runtime.graph_task_group_begin, runtime.graph_task_group_end = _begin, _end
    runtime.graph_task_update_begin, runtime.graph_task_update_end = _begin_update, _end_update
