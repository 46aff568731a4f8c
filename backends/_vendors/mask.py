"""Masks: variables that name the cards a process may see."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TypeVar

T = TypeVar("T")


def shown(cards: Container[T | None], named: Iterable[T | None]) -> tuple[T, ...]:
    """The cards that a mask shows, in its order: those it names, up to the first that is none or comes again.

    Args:
        cards: those that are there.
        named: what each entry of the mask means; None for one that means no card.
    """
    found: list[T] = []
    for card in named:
        if card is None or card not in cards or card in found:
            break
        found.append(card)
    return tuple(found)
