"""The text form of graphs: one line per value, readable in a diff, and exact: parsing what was printed gives it back.

For example:

    graph double(tokens<=16) {
      input %x : float32[tokens, 4]
      constant %c0 : float32[] = 2.0
      %0 = mul(%x, %c0) : float32[tokens, 4]
      return out0=%0
    }
"""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import GraphError, nearest
from .dim import Check, Dim, Expr, Symbol, sym
from .dim_text import parse_dim
from .dtype import DTYPES, DType, dtype
from .graph import Builder, Graph, Value
from .op import Op
from .types import StateType, TensorType, Type, WeightType

_INLINE = 16


def print_graph(graph: Graph) -> str:
    """The text form of a graph."""
    sizes = ", ".join(_print_symbol(s) for _, s in sorted(graph.symbols().items()))
    lines = [f"graph {graph.name}({sizes}) {{"]
    lines += [f"  input %{v.name} : {v.type}" for v in graph.inputs]
    lines += [f"  parameter %{v.name} : {v.type}" for v in graph.parameters]
    lines += [f"  state %{s.name} : {s.type}" for s, _ in graph.states]
    lines += [f"  constant %{v.name} : {v.type} = {_print_data(v.data)}" for v in graph.constants]
    for node in graph.nodes:
        results = ", ".join(f"%{r.name}" for r in node.results)
        operands = ", ".join("none" if v is None else f"%{v.name}" for v in node.operands)
        attributes = ", ".join(f"{k}={_print_attribute(v)}" for k, v in node.attributes.items())
        types = ", ".join(str(r.type) for r in node.results)
        lines.append(f"  {results} = {node.op.name}({operands}){f' {{{attributes}}}' if attributes else ''} : {types}")
    lines += [f"  check {c.left} == {c.right} : {c.reason!r}" for c in graph.checks]
    lines.append("  return " + ", ".join(f"{name}=%{v.name}" for name, v in graph.outputs.items()))
    return "\n".join([*lines, "}"])


def _print_symbol(symbol: Symbol) -> str:
    return symbol.name + ("?" if symbol.unbacked else "") + ("" if symbol.maximum is None else f"<={symbol.maximum}")


def _print_data(data: Any) -> str:
    if isinstance(data, int | float):
        return repr(data)
    if data.size <= _INLINE and data.dtype.kind in "fiub" and bool(np.isfinite(data).all()):
        return f"dense {data.tolist()!r}"
    return "base64 " + base64.b64encode(data.tobytes()).decode()


def _print_attribute(value: Any) -> str:
    if isinstance(value, DType | Expr):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_print_attribute, value)) + "]"
    return repr(value)


def parse_graph(text: str, ops: Mapping[str, Op[..., Any]]) -> Graph:
    """Read a graph from its text form.

    Raises:
        GraphError: the text is not a graph; the message names the line.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or lines[-1][1] != "}":
        raise GraphError("a graph starts with 'graph name(sizes) {' and ends with '}'")
    parser: _Parser | None = None
    for number, line in lines[:-1]:
        try:
            if parser is None:
                header = _match(r"graph (\S+?)\((.*)\) \{", line)
                parser = _Parser(Builder(header[1]), ops, _parse_symbols(header[2]))
            else:
                parser.line(line)
        except (GraphError, ValueError, TypeError, LookupError, ArithmeticError, SyntaxError) as error:
            raise GraphError(f"line {number}: {error}: {line}") from error
    if parser is None:
        raise GraphError("a graph starts with 'graph name(sizes) {' and ends with '}'")
    return parser.finish()


def _parse_symbols(text: str) -> dict[str, Expr]:
    found = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"(\w+)(\?)?(?:<=(\d+))?", part)
        if match is None:
            raise GraphError(f"size declaration {part!r} is not 'name', 'name?' or 'name<=maximum'")
        found[match[1]] = sym(match[1], int(match[3]) if match[3] else None, bool(match[2]))
    return found


class _Parser:
    def __init__(self, builder: Builder, ops: Mapping[str, Op[..., Any]], sizes: dict[str, Expr]) -> None:
        self.builder, self.ops, self.sizes = builder, ops, sizes
        self.values: dict[str, Value] = {}
        self.checks: list[Check] = []
        self.outputs: dict[str, Value] | None = None

    def line(self, line: str) -> None:
        word = line.split(" ", 1)[0]
        if word in ("input", "parameter", "state"):
            match = _match(r"\w+ %(\S+) : (.*)", line)
            self.values[match[1]] = getattr(self.builder, word)(match[1], self.type(match[2]))
        elif word == "constant":
            match = _match(r"constant %(\S+) : (\S+?\[.*?\]) = (.*)", line)
            self.values[match[1]] = self.constant(match[1], self.type(match[2]), match[3])
        elif word == "check":
            match = _match(r"check (.*?) == (.*?) : (.*)", line)
            self.checks.append(Check(self.dim(match[1]), self.dim(match[2]), ast.literal_eval(match[3])))
        elif word == "return":
            pairs = (part.split("=%") for part in split_top(line[7:]))
            self.outputs = {name: self.value(value) for name, value in pairs}
        else:
            self.node(line)

    def value(self, name: str) -> Value:
        if name not in self.values:
            raise GraphError(f"%{name} is used before it is defined")
        return self.values[name]

    def dim(self, text: str) -> Dim:
        return parse_dim(text, self.sizes)

    def type(self, text: str) -> Type:
        if match := re.fullmatch(r"state<(\w+)(.*)>", text):
            fields = dict(pair.split("=") for pair in match[2].split())
            return StateType(match[1], tuple((k, _state_field(v)) for k, v in fields.items()))
        if match := re.fullmatch(r"weight<(.*)>\[(.*)\]", text):
            return WeightType(tuple(int(d) for d in match[2].split(", ")), match[1])
        match = _match(r"(\w+)\[(.*)\]", text)
        return TensorType(dtype(match[1]), tuple(self.dim(d) for d in split_top(match[2])))

    def constant(self, name: str, kind: Type, text: str) -> Value:
        if not isinstance(kind, TensorType):
            raise GraphError(f"constant %{name} must be a tensor")
        form, _, body = text.partition(" ")
        shape = [int(str(d)) for d in kind.shape]
        if form == "dense":
            array = np.array(ast.literal_eval(body), kind.dtype.numpy).reshape(shape)
        elif form == "base64":
            array = np.frombuffer(base64.b64decode(body), kind.dtype.numpy).reshape(shape)
        else:
            return self.builder.constant(float(text) if kind.dtype.is_float else int(text), kind.dtype, name)
        return self.builder.constant(array, kind.dtype, name)

    def node(self, line: str) -> None:
        match = _match(r"(%.*?) = (\w+)\((.*?)\)(?: \{(.*)\})? : (.*)", line)
        if match[2] not in self.ops:
            raise GraphError(f"unknown op {match[2]!r}{nearest(match[2], list(self.ops))}")
        names = [name[1:] for name in match[1].split(", ")]
        operands = [None if o == "none" else self.value(o[1:]) for o in split_top(match[3])]
        attributes = {}
        for part in split_top(match[4] or ""):
            key, _, text = part.partition("=")
            attributes[key] = self.attribute(text)
        results = self.builder.call_named(self.ops[match[2]], operands, attributes, names)
        printed = [self.type(t) for t in split_top(match[5])]
        if [r.type for r in results] != printed:
            raise GraphError(f"{match[2]} gives {', '.join(str(r.type) for r in results)}, the text says {match[5]}")
        self.values.update(zip(names, results, strict=True))

    def attribute(self, text: str) -> Any:
        if text.startswith("["):
            return tuple(self.attribute(part) for part in split_top(text[1:-1]))
        if text in DTYPES:
            return DTYPES[text]
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return float(text) if text in ("inf", "-inf", "nan") else self.dim(text)

    def finish(self) -> Graph:
        if self.outputs is None:
            raise GraphError("the graph has no return line")
        graph = self.builder.build(**self.outputs)
        if set(graph.checks) != set(self.checks):
            raise GraphError("the check lines of the text are not those that the ops demand")
        return graph


def _state_field(text: str) -> Any:
    if re.fullmatch(r"\d+", text):
        return int(text)
    return tuple(map(int, filter(None, text[1:-1].split(",")))) if text.startswith("[") else text


def _match(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise GraphError("this is not a line of a graph")
    return match


def split_top(text: str) -> list[str]:
    """Split at commas that are not inside brackets or quotes."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote and text[i - 1] != "\\" else quote
        elif char in "'\"":
            quote = char
        elif char in "([{<":
            depth += 1
        elif char in ")]}>":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [p for p in [*parts, text[start:].strip()] if p]
