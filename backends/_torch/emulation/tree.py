"""Nested lists, tuples and dicts of operands."""

from __future__ import annotations

from typing import Any


def tree_map(function: Any, tree: Any) -> Any:
    """A function applied to the leaves of nested lists, tuples and dicts."""
    if isinstance(tree, list | tuple):
        made = [tree_map(function, x) for x in tree]
        return type(tree)(made) if type(tree) in (list, tuple) else type(tree)(*made)
    if isinstance(tree, dict):
        return {key: tree_map(function, x) for key, x in tree.items()}
    return function(tree)


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts, in order."""
    if isinstance(tree, list | tuple):
        return [leaf for x in tree for leaf in tree_leaves(x)]
    if isinstance(tree, dict):
        return [leaf for x in tree.values() for leaf in tree_leaves(x)]
    return [tree]
