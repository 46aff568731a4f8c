"""Declaring the operators to torch, with doubles as what they compute on the host."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import torch

from ..chips import Chip
from . import atb, attention, cache, formats, linear, moe, norm, sampling  # noqa: F401 (they enter doubles)
from .call import OperatorDouble
from .rules import DOUBLES, emulate

HOSTED = frozenset(name for name, double in DOUBLES.items() if double.hosted)
"""Operators of which some operands are tensors of the host."""

_libraries: list[Any] = []


def schemas() -> dict[str, str]:
    """The schemas of all operators by qualified name."""
    lines = files(__package__).joinpath("schemas.txt").read_text().splitlines()
    return {line.split("(", 1)[0]: line for line in lines if line and not line.startswith("#")}


def install(chip: Chip, declare: bool = True) -> None:
    """Make the operators known to torch and let them compute on the host, as those of a generation.

    `declare` is False where the vendor's package has made them known.
    """
    emulate(chip)
    if _libraries:
        return
    for namespace in ("npu", "atb"):
        # torch forgets what a library brought as soon as nothing refers to it
        library: Any = torch.library.Library(namespace, "FRAGMENT" if declare else "IMPL")  # type: ignore[no-untyped-call]
        _libraries.append(library)
        mine = {n: s for n, s in schemas().items() if n.startswith(f"{namespace}::")}
        for name, schema in mine.items():
            short = name.removeprefix(f"{namespace}::")
            if declare:
                library.define(schema.removeprefix(f"{namespace}::"))
            library.impl(short, DOUBLES[name].function, "CPU")
        for packet in {name.removeprefix(f"{namespace}::").split(".")[0] for name in mine}:
            space = getattr(torch.ops, namespace)
            setattr(space, packet, OperatorDouble(getattr(space, packet), DOUBLES[f"{namespace}::{packet}"], packet))
