"""What an emulated chip is like, as far as programs can tell."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class EmulatedChip:
    """A chip to emulate.

    Args:
        name: what its framework calls it.
        memory: bytes; allocations beyond them fail as on the chip.
        major, minor: its compute capability, where its framework tells one.
        lacking: element types that no tensor may have.
        hosted: ops of which some operands are tensors of the host, by qualified name.
        unsupported: ops that its framework does not run, by qualified name such as `aten::multinomial`.
    """

    name: str
    memory: int = 64 << 30
    major: int = 0
    minor: int = 0
    lacking: frozenset[torch.dtype] = field(default_factory=frozenset)
    hosted: frozenset[str] = field(default_factory=frozenset)
    unsupported: frozenset[str] = field(default_factory=frozenset)
