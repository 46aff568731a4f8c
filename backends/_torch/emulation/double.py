"""Doubles of a vendor's functions: they compute on the processor and refuse what the vendor's documents forbid."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .board import board_of
from .tensor import EmulatedTensor, execute, placed
from .tree import tree_leaves, tree_map

F = TypeVar("F", bound=Callable[..., Any])


def require(condition: bool, op: str, rule: str) -> None:
    """RuntimeError that names a vendor's op and the rule that a call of it breaks, unless the condition holds."""
    if not condition:
        raise RuntimeError(f"{op}: {rule}")


def device_function(function: F) -> F:
    """A function over host tensors as one over tensors of the emulated device, for vendors that have plain functions.

    All tensors have to be on the device; what it returns is too. A result that is an operand is that very tensor.
    """
    name = getattr(function, "__name__", "a function of the vendor")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ours = [leaf for leaf in given if isinstance(leaf, EmulatedTensor)]
        require(len(ours) == len(given), name, "a tensor is on the host, not on the device")
        board = board_of(given[0].device if given else None)
        known = {id(leaf.host): leaf for leaf in ours}

        def wrapped(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            return known[id(x)] if id(x) in known else placed(x, board, name)

        return tree_map(wrapped, execute(function, args, kwargs, board))

    return call  # type: ignore[return-value]
