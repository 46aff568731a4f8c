"""Sizes read from their text form."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ..errors import GraphError
from .dim import Dim, Expr, floordiv, maximum, minimum, mod, sym


def parse_dim(text: str, symbols: Mapping[str, Expr] | None = None) -> Dim:
    """Read a size from its text form; unknown names become symbols without a maximum unless `symbols` is given."""
    try:
        return _read(ast.parse(text.strip(), mode="eval").body, symbols)
    except SyntaxError:
        raise GraphError(f"size {text!r} is not an expression") from None


def _read(node: ast.expr, known: Mapping[str, Expr] | None) -> Dim:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            if known is None:
                return sym(name)
            if name in known:
                return known[name]
            raise GraphError(f"unknown size {name!r}; declared: {', '.join(known)}")
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return 0 - _read(inner, known)
        case ast.BinOp(left=left, op=operation, right=right):
            a, b = _read(left, known), _read(right, known)
            match operation:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return floordiv(a, b)
                case ast.Mod():
                    return mod(a, b)
        case ast.Call(func=ast.Name(id="min" | "max" as function), args=arguments, keywords=[]):
            return (minimum if function == "min" else maximum)(*(_read(a, known) for a in arguments))
    raise GraphError(f"size expression {ast.unparse(node)!r} uses something other than + - * // % min max")
