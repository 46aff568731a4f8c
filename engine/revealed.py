"""A model whose graph also returns what goes into its first layer and what comes out of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from xinheng.core.errors import ModelError
from xinheng.core.ir import DType, Graph, Node, Value, verify

from .layers import WHOLE, ModelProgram, Shard
from .models import Model

_PARAMETER = re.compile(r"model\.layers\.(\d+)\.")


def layer_name(index: int) -> str:
    """The output that goes into layer `index`; that of the number of layers comes out of the last."""
    return f"layer.{index}"


class RevealedModel(Model):
    """The same model, and outputs called as `layer_name` says beside the logits: [tokens, hidden] each."""

    def build(self, dtype: DType, cache_scheme: str, shard: Shard = WHOLE) -> ModelProgram:
        program = Model.build(self, dtype, cache_scheme, shard)
        shown = {layer_name(i): value for i, value in enumerate(borders(program.graph, program.config.num_layers))}
        outputs = MappingProxyType({**program.graph.outputs, **shown})
        return replace(program, graph=verify(replace(program.graph, outputs=outputs)))


def borders(graph: Graph, layers: int) -> Iterator[Value]:
    """The values between layers, in order: what the first node with a parameter of a layer reads, and at the end what
    the rows whose logits are wanted are taken from.

    Raises:
        ModelError: a layer has no parameters, or begins with none.
    """
    begins: dict[int, Node] = {}
    end: Node | None = None
    for node in graph.nodes:
        for value in node.operands:
            found = _PARAMETER.match(value.name) if value is not None and value.kind == "parameter" else None
            if found is not None:
                begins.setdefault(int(found[1]), node)
            elif value is not None and value.name == "logit_rows" and value.kind == "input":
                end = end or node
    for place in (*(begins.get(i) for i in range(layers)), end):
        value = place.operands[0] if place is not None else None
        if value is None or value.kind != "result":
            raise ModelError(f"graph {graph.name!r} does not show where its layers begin")
        yield value
