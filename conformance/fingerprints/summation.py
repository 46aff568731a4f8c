"""In which order a device adds the terms of a sum, told from sums alone.

Among terms that are all one unit, put a huge number at place i and its negative at place j: units that are added before
the two have met are lost in the huge number, the others are counted by the result. So each result is the number of
terms that lie outside the smallest subtree with both i and j, and all results together are the tree of additions
(Xie et al. 2024, "FPRev: Revealing the Order of Floating-Point Summation"). Choosing i in the middle of a subtree keeps
the number of sums near n log n in every family of orders. A step that adds several terms at once is one node.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
Adder = Callable[[Rows], Rows]
"""From rows [R, n] to their sums [R]."""

IN_A_ROW = 3
"""Subtrees of one size that make a chain of blocks."""
BATCH = 256
"""Rows that are summed in one call; always as many, so that a device compiles once."""


class NoTree(Exception):
    """The sums fit no tree of additions."""


@dataclass(slots=True)
class Spine:
    """A tree as the way up from one of its leaves: at each joint one or more other trees are added."""

    leaf: int
    joints: list[list[Spine]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Shape:
    """What matters of a tree of additions.

    Attributes:
        terms: its leaves.
        depth: longest chain of additions from a leaf to the root.
        run: most leaves that one chain takes in one after another; all of them in a sequential sum.
        block: the size of subtrees of which a chain takes in several one after another; 0 if there is none.
        arity: most operands of a node.
    """

    terms: int
    depth: int = 0
    run: int = 1
    block: int = 0
    arity: int = 1

    @property
    def family(self) -> str:
        """One of sequential, pairwise, and blocked with the length of a block."""
        together = f", {self.arity - 1} at a time" if self.arity > 2 else ""
        if self.run == self.terms:
            return f"sequential{together}"
        if not self.block and self.depth <= 2 * math.log2(self.terms) and self.run <= 4:
            return f"pairwise{together}"
        return f"blocked {self.block or self.run}{together}"


def reveal(add: Adder, terms: int, huge: float, unit: float) -> Shape | None:
    """The shape of the tree by which `add` sums `terms` terms; None if nothing is ever lost, so that there is none.

    Args:
        huge: a number that loses `terms` units added to it, in the format of the sum.
        unit: a number of which `terms` are added exactly there.

    Raises:
        NoTree: the sums fit no tree.
    """
    root: list[Spine] = []
    tasks = [(tuple(range(terms)), terms + 1, root)]
    while tasks:
        pairs = [(members[len(members) // 2], j) for members, *_ in tasks for j in members]
        sizes = _sizes(add, terms, huge, unit, [(i, j) for i, j in pairs if i != j])
        if len(root) == 0 and terms > 2 and set(sizes.values()) == {2}:
            return None
        tasks = [task for members, bound, place in tasks for task in _grow(members, bound, place, sizes)]
    if len(root) > 1:
        raise NoTree(f"its sums of {terms} terms fall apart")
    return _shape(root[0])[0]


_Task = tuple[tuple[int, ...], int, list[Spine]]


def _sizes(
    add: Adder, terms: int, huge: float, unit: float, pairs: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    """For each pair the number of leaves in the smallest subtree with both."""
    found: dict[tuple[int, int], int] = {}
    for start in range(0, len(pairs), BATCH):
        part = pairs[start : start + BATCH]
        rows = np.full((BATCH, terms), unit)
        for row, (i, j) in enumerate(part):
            rows[row, [i, j]] = huge, -huge
        outside = add(rows)[: len(part)] / unit
        for pair, count in zip(part, outside, strict=True):
            if not (0 <= count <= terms - 2 and count == int(count)):
                raise NoTree(f"{terms - 2} units beside {huge:g} and {-huge:g} sum up to {count:g} units")
            found[pair] = terms - int(count)
    return found


def _grow(members: tuple[int, ...], bound: int, place: list[Spine], sizes: dict[tuple[int, int], int]) -> list[_Task]:
    """Enter the spine of a tree of less than `bound` leaves; what is left to find out is returned."""
    first = members[len(members) // 2]
    spine = Spine(first)
    place.append(spine)
    by_size: dict[int, list[int]] = defaultdict(list)
    for j in members:
        if j != first:
            by_size[sizes[first, j]].append(j)
    count, tasks = 1, list[_Task]()
    for size, added in sorted(by_size.items()):
        if size >= bound:
            if size > bound:
                raise NoTree(f"places {first} and {added[0]} meet above the node that they are both under")
            tasks.append((tuple(added), bound, place))
            continue
        count += len(added)
        if count != size:
            raise NoTree(f"{count} places seem to make up a subtree of {size}")
        joint: list[Spine] = []
        spine.joints.append(joint)
        tasks.append((tuple(added), size, joint))
    return tasks


def _shape(spine: Spine) -> tuple[Shape, int]:
    """The shape of a tree, and how many leaves the chain that ends at its root takes in."""
    terms, depth, run, longest, arity, block = 1, 0, 1, 1, 1, 0
    bare = True  # what has been added so far is one leaf
    sizes: list[int] = []
    for joint in spine.joints:
        parts = [_shape(part) for part in joint]
        sizes.append(parts[0][0].terms if len(parts) == 1 else 0)
        if sizes[-1] > 1 and sizes[-IN_A_ROW:] == IN_A_ROW * sizes[-1:]:
            block = max(block, sizes[-1])
        block = max(block, *(part.block for part, _ in parts))
        leaves = sum(part.terms == 1 for part, _ in parts) + bare
        chains = [0 if bare else run, *(chain for part, chain in parts if part.terms > 1)]
        run, bare = (leaves + max(chains) if leaves else 0), False
        terms += sum(part.terms for part, _ in parts)
        depth = 1 + max(depth, *(part.depth for part, _ in parts))
        longest = max(longest, run, *(part.run for part, _ in parts))
        arity = max(arity, 1 + len(parts), *(part.arity for part, _ in parts))
    return Shape(terms, depth, longest, block, arity), run
