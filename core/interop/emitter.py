"""Writing nodes into one ONNX graph or function body, with sizes computed where they are symbolic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..ir.dim import Call as SizeCall
from ..ir.dim import Dim, Symbol
from ..ir.dtype import DType
from .item import ELEMENT_TYPES

NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}
"""ONNX's number of each element type by name."""

_FUNCTIONS = {"min": "Min", "max": "Max", "mod": "Mod"}


def number_of(dtype: DType) -> int:
    """ONNX's number of an element type."""
    return NUMBERS[dtype.name]


@dataclass(slots=True)
class Emitter:
    """A growing list of nodes. `sizes` names the scalar (int64) that holds each symbol; `used` are those read."""

    sizes: dict[str, str] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    cells: dict[str, str] = field(default_factory=dict)

    def name(self, wanted: str) -> str:
        """A name that nothing else here has."""
        label, index = wanted, 0
        while label in self.names:
            index += 1
            label = f"{wanted}_{index}"
        self.names.add(label)
        return label

    def node(
        self, op: str, inputs: Sequence[str], outputs: int | Sequence[str] = 1, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node; its outputs get the given names, or so many fresh ones."""
        from onnx import helper

        given = [self.name(f"{op.lower()}") for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        self.nodes.append(helper.make_node(op, list(inputs), given, domain=domain, **attributes))
        return given

    def one(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return its name."""
        return self.node(op, inputs, **attributes)[0]

    def constant(self, data: Any, dtype: DType) -> str:
        """A constant; equal small ones are shared."""
        array = np.asarray(data)
        array = array if array.dtype == dtype.numpy else array.astype(dtype.numpy)
        key = f"{dtype.name}{array.shape}{array.tobytes()!r}" if array.size <= 64 else ""
        if key and key in self.cells:
            return self.cells[key]
        made = self.one("Constant", value=tensor(array, dtype))
        if key:
            self.cells[key] = made
        return made

    def ints(self, values: Iterable[int]) -> str:
        from ..ir.dtype import int64

        return self.constant(np.array(list(values), np.int64), int64)

    def size(self, dim: Dim) -> str:
        """A size as an int64 scalar."""
        from ..ir.dtype import int64

        if isinstance(dim, int):
            return self.constant(np.array(dim, np.int64), int64)
        key = f"size {dim}"
        if key not in self.cells:
            total: str | None = None
            for monomial, factor in dim.terms:
                term = None if factor != 1 or not monomial else self._atom(monomial[0])
                rest = monomial[1:] if term is not None else monomial
                term = term or self.size(factor)
                for atom in rest:
                    term = self.one("Mul", term, self._atom(atom))
                total = term if total is None else self.one("Add", total, term)
            assert total is not None
            self.cells[key] = total
        return self.cells[key]

    def _atom(self, atom: Symbol | SizeCall) -> str:
        if isinstance(atom, Symbol):
            if atom.name not in self.sizes:
                raise GraphError(f"size {atom.name!r} is not the size of any input, so that ONNX cannot compute it")
            self.used.add(atom.name)
            return self.sizes[atom.name]
        parts = [self.size(a) for a in atom.arguments]
        if atom.function == "floordiv":
            # ONNX divides integers towards zero; sizes may be negative on the way
            rest = self.one("Mod", parts[0], parts[1])
            return self.one("Div", self.one("Sub", parts[0], rest), parts[1])
        return self.one(_FUNCTIONS[atom.function], *parts)

    def shape(self, dims: Sequence[Dim]) -> str:
        """Sizes as an int64 vector."""
        if all(isinstance(d, int) for d in dims):
            return self.ints(dims)  # type: ignore[arg-type]
        axis = self.ints([0])
        return self.one("Concat", *(self.one("Unsqueeze", self.size(d), axis) for d in dims), axis=0)

    def learn_sizes(self, name: str, shape: Sequence[Dim]) -> None:
        """Take the symbols that a tensor alone has from its shape, unless they are known."""
        for axis, dim in enumerate(shape):
            if isinstance(dim, int):
                continue
            symbols = [(m[0], f) for m, f in dim.terms if len(m) == 1 and isinstance(m[0], Symbol)]
            offset = sum(factor for monomial, factor in dim.terms if not monomial)
            if len(symbols) != 1 or len(dim.terms) != 1 + bool(offset):
                continue
            symbol, factor = symbols[0]
            if not isinstance(symbol, Symbol) or symbol.name in self.sizes:
                continue
            length = self.one("Squeeze", self.one("Shape", name, start=axis, end=axis + 1))
            if offset:
                length = self.one("Sub", length, self.size(offset))
            self.sizes[symbol.name] = length if factor == 1 else self.one("Div", length, self.size(factor))


def tensor(array: NDArray[Any], dtype: DType, name: str = "") -> Any:
    """An array as ONNX's `TensorProto`."""
    from onnx import TensorProto, helper, numpy_helper

    if dtype.name in ("int4", "uint4", "float4_e2m1fn", "float8_e8m0fnu") or dtype.name.startswith("float8"):
        flat = array.astype(np.float32).reshape(-1)
        return helper.make_tensor(name, number_of(dtype), array.shape, flat.tolist())
    if dtype.name == "bfloat16":
        made = TensorProto(name=name, data_type=number_of(dtype), dims=array.shape)
        made.raw_data = array.tobytes()
        return made
    return numpy_helper.from_array(np.array(array, order="C"), name)
