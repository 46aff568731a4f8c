"""The sandbox in which chat templates run: Jinja as transformers sets it up, with text that remembers its origin.

Jinja compiles a template to Python. Here every string literal of the template becomes `Traced` text that the template
wrote, and output is joined so that the marks survive `~`, `+`, macros, `set` blocks and filters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import DictLoader, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .provenance import Absent, Traced, concat, written


class _TracingCodeGenerator(CodeGenerator):
    """Writes string literals and template text as calls of `environment.written`."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(f"environment.written({value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(f"environment.written({node.data!r})")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.written({''.join(map(str, group))!r})"


class _Generation(Extension):
    """The tag `{% generation %}`, which marks an assistant's turn for training: its body, unchanged."""

    tags = {"generation"}  # noqa: RUF012 - the type is Jinja's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates; rendering one gives `Traced` text."""

    code_generator_class = _TracingCodeGenerator
    concat = staticmethod(concat)
    written = staticmethod(written)

    def __init__(self) -> None:
        # Constant folding would turn literals inside lists and mappings into values without origin.
        super().__init__(
            loader=DictLoader({}),
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.filters |= {"tojson": _tojson, "join": _join, "safe": _unchanged}
        self.tests |= {"none": _is_none}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str.__str__(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it into prompts: no HTML escapes, non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _join(values: Iterable[Any], separator: str = "", attribute: str | None = None) -> Traced:
    items = [value[attribute] if attribute is not None else value for value in values]
    return Traced(separator, separator._spans if isinstance(separator, Traced) else ()).join(map(str, items))


def _unchanged(value: Any) -> Any:
    return value


def _is_none(value: Any) -> bool:
    return value is None or isinstance(value, Absent)
