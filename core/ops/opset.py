"""A versioned family of ops; the one that ships is `OPSET`, and a vendor may bring its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import GraphError, nearest
from ..ir.op import OPS, Op
from . import (
    attention,
    collective,
    contraction,
    convolution,
    division,
    elementwise,
    fused,
    indexing,
    latent,
    moe,
    movement,
    nn,
    pooling,
    product,
    quantization,
    recurrent,
    reduction,
    sampling,
    transcendental,
    varlen,
)


class OpSet(Mapping[str, Op[..., Any]]):
    """Ops by name, of one version."""

    def __init__(self, name: str, version: int, ops: Mapping[str, Op[..., Any]]) -> None:
        self.name = name
        self.version = version
        self._ops = dict(sorted(ops.items()))

    def __getitem__(self, name: str) -> Op[..., Any]:
        if name not in self._ops:
            raise GraphError(f"op set {self.name} {self.version} has no op {name!r}{nearest(name, list(self._ops))}")
        return self._ops[name]

    def __contains__(self, name: object) -> bool:
        return name in self._ops

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def at(self, version: int) -> OpSet:
        """The ops that existed in an earlier version."""
        return OpSet(self.name, version, {n: o for n, o in self._ops.items() if o.since <= version})


FAMILIES = {
    module.__name__.rsplit(".", 1)[-1]: tuple(o for o in OPS.values() if o.reference.__module__ == module.__name__)
    for module in (
        elementwise,
        movement,
        reduction,
        contraction,
        nn,
        attention,
        varlen,
        latent,
        moe,
        quantization,
        recurrent,
        fused,
        collective,
        sampling,
        transcendental,
        division,
        product,
        indexing,
        convolution,
        pooling,
    )
}
"""The ops of each family, in the order they are written."""

OPSET = OpSet("xinheng", 1, OPS)
