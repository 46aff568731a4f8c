"""Patterns over graphs, and rules that replace what matches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import GraphError
from ..ir.graph import Builder, Graph, Node, Value
from ..ir.op import Op, results
from .rewrite import keep, rebuild


@dataclass(frozen=True, slots=True)
class Var:
    """Any value; the same name stands for the same value everywhere. `constant` demands a number close to it."""

    name: str
    constant: float | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A node of one op whose operands match; `name` makes it known to the rule. Operands not listed must be absent."""

    op: Op[..., Any]
    operands: tuple[Pattern | Var, ...]
    name: str = ""


def pattern(op: Op[..., Any], *operands: Pattern | Var, name: str = "") -> Pattern:
    """A pattern, written like a call of the op."""
    return Pattern(op, operands, name)


COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "eq", "logical_and", "logical_or"})


@dataclass(slots=True)
class Match:
    """An occurrence of a pattern: the values of its variables, its named nodes, and all nodes it covers, root last."""

    values: dict[str, Value] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    covered: list[Node] = field(default_factory=list)

    @property
    def root(self) -> Node:
        return self.covered[-1]

    def copy(self) -> Match:
        return Match(dict(self.values), dict(self.nodes), list(self.covered))


@dataclass(frozen=True, slots=True)
class Rule:
    """Replaces what `pattern` matches.

    `replace(match, values)` gets the new values of the variables and returns a new value for the result of the root, as
    "root", and of each named node that is `kept`, by its name; results of other inner nodes must not be used outside.
    `when` may refuse a match, for example because attributes do not fit.
    """

    name: str
    pattern: Pattern
    replace: Callable[[Match, Mapping[str, Any]], Mapping[str, Any]]
    when: Callable[[Match], bool] = lambda match: True
    kept: tuple[str, ...] = ()


def find(rule: Rule, node: Node, made_by: Mapping[int, Node]) -> Match | None:
    """The occurrence of a rule's pattern whose root is `node`, if there is one that the rule accepts."""
    for match in _node(rule.pattern, node, made_by, Match()):
        if rule.when(match):
            return match
    return None


def _node(wanted: Pattern, node: Node, made_by: Mapping[int, Node], so_far: Match) -> Iterator[Match]:
    if node.op is not wanted.op or len(wanted.operands) > len(node.operands):
        return
    given: list[Value | None] = list(node.operands)
    if any(value is not None for value in given[len(wanted.operands) :]):
        return
    orders = [given[: len(wanted.operands)]]
    if node.op.name in COMMUTATIVE and len(wanted.operands) == 2:
        orders.append(orders[0][::-1])
    for order in orders:
        for match in _operands(wanted.operands, order, made_by, so_far.copy()):
            match.covered.append(node)
            if wanted.name:
                match.nodes[wanted.name] = node
            yield match


def _operands(
    wanted: Sequence[Pattern | Var], given: Sequence[Value | None], made_by: Mapping[int, Node], so_far: Match
) -> Iterator[Match]:
    if not wanted:
        yield so_far
        return
    first, value = wanted[0], given[0]
    if value is None:
        return
    if isinstance(first, Var):
        if _fits(first, value, so_far):
            so_far.values[first.name] = value
            yield from _operands(wanted[1:], given[1:], made_by, so_far)
        return
    node = made_by.get(id(value))
    if node is None or node.results[0] is not value:
        return
    for match in _node(first, node, made_by, so_far):
        yield from _operands(wanted[1:], given[1:], made_by, match)


def _fits(var: Var, value: Value, so_far: Match) -> bool:
    if var.constant is not None:
        number = isinstance(value.data, int | float)
        return number and abs(float(value.data) - var.constant) <= 1e-6 * max(1.0, abs(var.constant))  # type: ignore[arg-type]
    return so_far.values.get(var.name, value) is value


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """Apply rules until none matches; earlier rules win, and no node belongs to two matches of one round."""
    for _ in range(len(graph.nodes) + 1):
        matches = _round(graph, rules)
        if not matches:
            return graph
        graph = _replaced(graph, matches)
    raise GraphError(f"graph {graph.name!r}: rewriting does not come to an end; a rule produces what it matches")


def _replaced(graph: Graph, matches: Mapping[int, tuple[Rule, Match]]) -> Graph:
    inner = {id(node) for _, match in matches.values() for node in match.covered[:-1]}
    image: dict[int, Value] = {}

    def emit(builder: Builder, node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        if id(node) not in matches:
            return keep(builder, node, operands)
        rule, match = matches[id(node)]
        made = rule.replace(match, {name: image[id(value)] for name, value in match.values.items()})
        image.update((id(match.nodes[name].results[0]), made[name]) for name in rule.kept)
        return results(made["root"])

    # operands of a root may be results of skipped nodes: they stand for nothing, and the rule does not read them
    for _, match in matches.values():
        for node in match.covered[:-1]:
            image.update((id(result), node.results[0]) for result in node.results)
    return rebuild(graph, emit, inner, image)


def _round(graph: Graph, rules: Sequence[Rule]) -> dict[int, tuple[Rule, Match]]:
    made_by = {id(r): node for node in graph.nodes for r in node.results}
    place = {id(node): i for i, node in enumerate(graph.nodes)}
    users: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for value in node.operands:
            if value is not None:
                users.setdefault(id(value), []).append(node)
    outside = {id(v) for v in (*graph.outputs.values(), *(final for _, final in graph.states))}
    taken: set[int] = set()
    found: dict[int, tuple[Rule, Match]] = {}
    for node in graph.nodes:
        for rule in rules:
            match = find(rule, node, made_by)
            if match is None or any(id(n) in taken for n in match.covered):
                continue
            if _separable(rule, match, users, outside, place):
                taken.update(id(n) for n in match.covered)
                found[id(node)] = (rule, match)
                break
    return found


def _separable(
    rule: Rule, match: Match, users: Mapping[int, list[Node]], outside: set[int], place: Mapping[int, int]
) -> bool:
    """Whether inner results are used only inside, or belong to kept nodes and are used only behind the root.

    No variable may stand for an inner result, which is gone when the replacement is made.
    """
    inner = {id(r) for node in match.covered[:-1] for r in node.results}
    if any(id(value) in inner for value in match.values.values()):
        return False
    inside, kept = {id(n) for n in match.covered}, {id(match.nodes[name]) for name in rule.kept}
    for node in match.covered[:-1]:
        for result in node.results:
            later = [u for u in users.get(id(result), []) if id(u) not in inside]
            if not later and id(result) not in outside:
                continue
            if id(node) not in kept or any(place[id(u)] < place[id(match.root)] for u in later):
                return False
    return True
