"""Graphs of an emulated device: the ops between the begin and the end of a capture, run again on the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .board import Board, board_of


class EmulatedGraph:
    """What `CUDAGraph` is to a CUDA device. Host values that ops were given are frozen, as they are there."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self._board: Board | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        board = board_of(None)
        if board.graph is not None:
            raise RuntimeError(f"a graph is already being captured on {board.device}")
        self._calls, self._board, board.graph = [], board, self

    def capture_end(self) -> None:
        if self._board is None or self._board.graph is not self:
            raise RuntimeError("capture_end without capture_begin")
        self._board.graph = None

    def note(self, function: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Add a call to the graph. Views cost nothing on replay: they are of memory that stays."""
        read = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        results = [x for x in tree_leaves(made) if isinstance(x, torch.Tensor)]
        mutable = getattr(getattr(function, "_schema", None), "is_mutable", True)
        if results and not mutable and all(x.untyped_storage()._cdata in read for x in results):
            return
        self._calls.append((function, args, kwargs, results))

    def replay(self) -> None:
        if self._board is None or self._board.graph is not None:
            raise RuntimeError("replay of a graph that was not captured")
        for function, args, kwargs, results in self._calls:
            made = [x for x in tree_leaves(function(*args, **kwargs)) if isinstance(x, torch.Tensor)]
            for old, new in zip(results, made, strict=True):
                if old is not new and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def reset(self) -> None:
        self._calls = []

    def pool(self) -> tuple[int, int]:
        return (0, id(self))


@contextmanager
def graph(captured: EmulatedGraph, pool: Any = None, stream: Any = None, **_: Any) -> Iterator[None]:
    """Capture what the block does."""
    captured.capture_begin(pool)
    try:
        yield
    finally:
        captured.capture_end()
