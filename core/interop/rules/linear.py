"""Import rules of matrix products, Gemm and Einsum."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...ir.dim import Dim, product
from ...ir.graph import Value
from ..call import Call, like, rule, wide
from .movement import transposed


def multiplied(a: Value, b: Value) -> Value:
    """numpy's matmul, which also takes vectors."""
    left, right = a.tensor.rank == 1, b.tensor.rank == 1
    x = ops.reshape(a, shape=(1, *a.shape)) if left else a
    y = ops.reshape(b, shape=(*b.shape, 1)) if right else b
    made: Value = ops.matmul(x, y)
    if left or right:
        shape = made.shape[:-2]
        tail = (*(() if left else (made.shape[-2],)), *(() if right else (made.shape[-1],)))
        made = ops.reshape(made, shape=(*shape, *tail))
    return made


@rule("MatMul")
def _matmul(c: Call) -> Any:
    return multiplied(c.x(0), c.x(1))


@rule("Gemm")
def _gemm(c: Call) -> Any:
    a, b = c.x(0), c.x(1)
    a = ops.permute(a, axes=(1, 0)) if c.attr("transA", 0) else a
    b = ops.permute(b, axes=(1, 0)) if c.attr("transB", 0) else b
    y = ops.matmul(a, b)
    alpha, beta = c.attr("alpha", 1.0), c.attr("beta", 1.0)
    if alpha != 1.0:
        y = ops.mul(y, alpha) if y.dtype.is_float else ops.mul(y, int(alpha))
    if c.has(2) and beta != 0.0:
        bias = c.x(2)
        scaled = bias if beta == 1.0 else ops.mul(bias, beta if bias.dtype.is_float else int(beta))
        y = ops.add(y, scaled)
    return y


@rule("Einsum")
def _einsum(c: Call) -> Any:
    """One operand after the other: summed axes that no later term names disappear in a matrix product."""
    equation = c.attr("equation").replace(" ", "")
    left, arrow, output = equation.partition("->")
    terms = left.split(",")
    xs = [wide(x) for x in c.all()]
    if len(terms) != len(xs):
        raise c.refuse(f"the equation {equation!r} is not for {len(xs)} operands")
    ranks = [x.tensor.rank - len(t.replace("...", "")) for x, t in zip(xs, terms, strict=True)]
    most = max(ranks)
    names = "".join(chr(0x3B1 + i) for i in range(most))
    terms = [t.replace("...", names[most - r :]) for t, r in zip(terms, ranks, strict=True)]
    if arrow:
        output = output.replace("...", names)
    else:
        letters = sorted({s for s in left if s.isalpha()})
        output = names + "".join(s for s in letters if left.count(s) == 1)
    term, total = _diagonal(c, terms[0], xs[0])
    for i in range(1, len(xs)):
        later = set(output).union(*map(set, terms[i + 1 :]))
        term, total = _contracted((term, total), _diagonal(c, terms[i], xs[i]), later)
    for letter in [s for s in term if s not in output]:
        total = ops.sum(total, axis=term.index(letter))
        term = term.replace(letter, "")
    return like(transposed(total, [term.index(s) for s in output]), c.x(0))


def _diagonal(c: Call, term: str, x: Value) -> tuple[str, Value]:
    """A term in which no letter occurs twice."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            size = x.shape[first]
            steps = c.arange(size)
            shape: list[Dim] = [1] * x.tensor.rank
            shape[first] = size
            wanted = list(x.shape)
            wanted[second] = 1
            index = ops.expand(ops.reshape(steps, shape=tuple(shape)), shape=tuple(wanted))
            x = ops.gather(x, index, axis=second)
            x = ops.reshape(x, shape=tuple(d for i, d in enumerate(x.shape) if i != second))
            term = term[:second] + term[second + 1 :]
    return term, x


def _contracted(a: tuple[str, Value], b: tuple[str, Value], later: set[str]) -> tuple[str, Value]:
    """The product of two terms, as one batched matrix product."""
    (ta, xa), (tb, xb) = a, b
    batch = [s for s in ta if s in tb and s in later]
    summed = [s for s in ta if s in tb and s not in later]
    rows, columns = [s for s in ta if s not in tb], [s for s in tb if s not in ta]
    size = {s: d for t, x in (a, b) for s, d in zip(t, x.shape, strict=True) if d != 1}

    def shaped(term: str, x: Value, groups: tuple[list[str], ...]) -> Value:
        order = [s for group in groups for s in group]
        moved = transposed(x, [term.index(s) for s in order])
        full = tuple(size.get(s, 1) for s in order)
        moved = ops.expand(moved, shape=full) if moved.shape != full else moved
        made: Value = ops.reshape(moved, shape=tuple(product([size.get(s, 1) for s in g]) for g in groups))
        return made

    y = ops.matmul(shaped(ta, xa, (batch, rows, summed)), shaped(tb, xb, (batch, summed, columns)))
    term = "".join([*batch, *rows, *columns])
    return term, ops.reshape(y, shape=tuple(size.get(s, 1) for s in term))
