"""Graphs of an emulated device: the ops between the begin and the end of a capture, run again on the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .board import Board, board_of
from .tree import tree_leaves


class EmulatedGraph:
    """What `CUDAGraph` is to a CUDA device. Host values that ops were given are frozen, as they are there."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self._board: Board | None = None
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._made: set[int] = set()
        self._rows: list[tuple[torch.Tensor, Any, torch.Tensor]] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        board = board_of(None)
        if board.graph is not None:
            raise RuntimeError(f"a graph is already being captured on {board.device}")
        self._calls, self._board, board.graph = [], board, self
        self._before, self._made, self._rows = {}, set(), []

    def capture_end(self) -> None:
        if self._board is None or self._board.graph is not self:
            raise RuntimeError("capture_end without capture_begin")
        self._board.graph = None
        for storage, before in self._before.values():
            storage.copy_(before)
        for target, indices, before_rows in reversed(self._rows):
            target.index_put_(indices, before_rows)
        self._before, self._rows = {}, []

    def preserve(self, function: Any, args: Any, kwargs: Any) -> None:
        """Remember what a call is about to overwrite: capturing changes nothing, only replays do."""
        schema = getattr(function, "_schema", None)
        written = [*args, *kwargs.values()]
        if schema is not None:
            names = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
            given = {a.name: value for a, value in zip(schema.arguments, args, strict=False)} | dict(kwargs)
            written = [value for name, value in given.items() if name in names]
        if schema is not None and schema.name == "aten::index_put_" and not (len(args) > 3 and args[3]):
            self._preserve_rows(args[0], args[1])
            return
        for tensor in tree_leaves(written):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._before and storage._cdata not in self._made:
                    copy: Any = storage.clone  # torch does not type it
                    self._before[storage._cdata] = (storage, copy())

    def _preserve_rows(self, target: torch.Tensor, indices: Any) -> None:
        """Remember the rows of a tensor that are about to be overwritten: caches are too large to be copied."""
        key = target.untyped_storage()._cdata
        if key not in self._before and key not in self._made:
            self._rows.append((target, indices, torch.ops.aten.index.Tensor(target, indices)))

    def note(self, function: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Add a call to the graph. Views cost nothing on replay: they are of memory that stays."""
        read = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        results = [x for x in tree_leaves(made) if isinstance(x, torch.Tensor)]
        self._made.update(x.untyped_storage()._cdata for x in results)
        schema = getattr(function, "_schema", None)
        # not every vendor says of its out variants what they write to
        mutable = schema is None or schema.is_mutable or schema.overload_name.endswith("out")
        if results and not mutable and all(x.untyped_storage()._cdata in read for x in results):
            return
        self._calls.append((function, args, kwargs, results))

    @property
    def length(self) -> int:
        """How many calls are noted."""
        return len(self._calls)

    def renew(self, index: int, args: Any, kwargs: Any) -> None:
        """Give a noted call other operands; its results stay where they are."""
        function, _, _, results = self._calls[index]
        self._calls[index] = (function, args, kwargs, results)

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
