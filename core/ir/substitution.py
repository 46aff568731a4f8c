"""Other sizes in place of symbols, in sizes and in the attributes of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from .dim import Dim, Expr, Symbol, floordiv, maximum, minimum, mod, symbols
from .graph import Node, Value
from .types import TensorType

_FUNCTIONS: dict[str, Callable[..., Dim]] = {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum}


def substitute(dim: Dim, images: Mapping[str, Dim]) -> Dim:
    """A size with other sizes in place of the symbols that `images` names."""
    if isinstance(dim, int) or not any(s.name in images for s in symbols(dim)):
        return dim
    total: Dim = 0
    for monomial, factor in dim.terms:
        term: Dim = factor
        for atom in monomial:
            if isinstance(atom, Symbol):
                term = term * images.get(atom.name, Expr((((atom,), 1),)))
            else:
                term = term * _FUNCTIONS[atom.function](*(substitute(a, images) for a in atom.arguments))
        total = total + term
    return total


def learn_sizes(old: Value, new: Value, sizes: dict[str, Dim]) -> None:
    """Note what the sizes of a value that only a run will tell are called where `new` has taken its place."""
    if not isinstance(old.type, TensorType) or not isinstance(new.type, TensorType):
        return
    for before, after in zip(old.type.shape, new.type.shape, strict=True):
        if not isinstance(before, Expr) or not before.is_atom or before == after:
            continue
        if isinstance(symbol := before.terms[0][0][0], Symbol) and symbol.unbacked:
            sizes.setdefault(symbol.name, after)


def resized(node: Node, sizes: Mapping[str, Dim]) -> Node:
    """A node whose attributes name other sizes; the node itself where they name none of `sizes`."""

    def image(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(image, value))
        return substitute(value, sizes) if isinstance(value, Expr) else value

    if not sizes:
        return node
    attributes = {name: image(value) for name, value in node.attributes.items()}
    changed = any(attributes[name] != value for name, value in node.attributes.items())
    return replace(node, attributes=MappingProxyType(attributes)) if changed else node
