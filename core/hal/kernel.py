"""Kernels: the ways a device can run an op, and the choice between them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import PluginError
from ..ir.dtype import DType
from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import TensorType

F = TypeVar("F")
Condition = Callable[[Node], bool | str]
"""Whether a kernel takes a node: True, or False, or the reason why not."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to run one op.

    `function` has the op's operands and attributes under the same names, in the same order; it may leave out optional
    ones and is then eligible only where they have their default. Instead of a function it may be an object with
    `plan(node, bounds)`, which returns the function for one node. `host` names operands it wants as numpy arrays.
    """

    op: str
    name: str
    function: Any
    dtypes: frozenset[DType] | None
    when: Condition | None
    priority: int
    host: frozenset[str]
    parameters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a kernel was not taken for a node."""

    kernel: str
    reason: str


class KernelRegistry:
    """The kernels of one kind of device; those of `parent` are candidates too, after equal priorities of its own."""

    def __init__(self, parent: KernelRegistry | None = None) -> None:
        self._kernels: dict[str, list[Kernel]] = {}
        self._parent = parent

    def register(
        self,
        op: Op[..., Any],
        *,
        dtypes: Iterable[DType] | None = None,
        when: Condition | None = None,
        name: str | None = None,
        priority: int = 0,
        host: Sequence[str] = (),
    ) -> Callable[[F], F]:
        """Register a function as a kernel of `op`.

        Args:
            dtypes: the dtypes that all float tensor operands may have; None means any.
            when: further conditions on the node.
            name: how receipts and overrides call it; the function's name by default.
            priority: among several acceptable kernels the highest wins.
            host: operands wanted as numpy arrays on the host.

        Raises:
            PluginError: the function does not mirror the op.
        """

        def decorate(function: F) -> F:
            parameters = _mirrored(op, function)
            allowed = None if dtypes is None else frozenset(dtypes)
            label = name or str(getattr(function, "__name__", op.name))
            kernel = Kernel(op.name, label, function, allowed, when, priority, frozenset(host), parameters)
            self._kernels.setdefault(op.name, []).append(kernel)
            return function

        return decorate

    def candidates(self, op: str) -> list[Kernel]:
        """All kernels of an op, best first."""
        inherited = self._parent.candidates(op) if self._parent is not None else []
        return sorted([*self._kernels.get(op, []), *inherited], key=lambda k: -k.priority)

    def ops(self) -> list[str]:
        """Names of all ops with a kernel."""
        inherited = self._parent.ops() if self._parent is not None else []
        return sorted({*self._kernels, *inherited})

    def select(self, node: Node, only: str | None = None) -> tuple[Kernel | None, list[Refusal]]:
        """The best kernel that takes a node, and why better ones were refused. `only` admits one name."""
        refusals = []
        for kernel in self.candidates(node.op.name):
            reason = _refusal(kernel, node) if only in (None, kernel.name) else f"the override asks for @{only}"
            if reason is None:
                return kernel, refusals
            refusals.append(Refusal(kernel.name, reason))
        return None, refusals


def _mirrored(op: Op[..., Any], function: Any) -> frozenset[str]:
    """The parameter names of a kernel, after checking that they mirror the op's."""
    expected = [o.name for o in op.operands] + [a.name for a in op.attributes]
    if hasattr(function, "plan"):
        return frozenset(expected)
    declared = inspect.signature(function).parameters
    optional = {o.name for o in op.operands if o.optional} | {a.name for a in op.attributes if not a.required}
    unknown = [name for name in declared if name not in expected]
    missing = [name for name in expected if name not in declared and name not in optional]
    if unknown or missing:
        what = f"has no operand or attribute {unknown[0]!r}" if unknown else f"needs {missing[0]!r}"
        raise PluginError(
            f"kernel {getattr(function, '__name__', function)!r} does not mirror op {op.name!r}, which {what}"
        )
    return frozenset(declared)


def _refusal(kernel: Kernel, node: Node) -> str | None:
    if kernel.dtypes is not None:
        for value in node.operands:
            kind = value.type.dtype if value is not None and isinstance(value.type, TensorType) else None
            if kind is not None and kind.is_float and kind not in kernel.dtypes:
                return f"takes {', '.join(sorted(d.name for d in kernel.dtypes))}, not {kind}"
    for declared, value in zip(node.op.operands, node.operands, strict=False):
        if value is not None and declared.name not in kernel.parameters:
            return f"does not know operand {declared.name!r}"
    for attribute in node.op.attributes:
        if attribute.name not in kernel.parameters and node.attributes[attribute.name] != attribute.default:
            return f"does not know attribute {attribute.name!r}"
    verdict = True if kernel.when is None else kernel.when(node)
    if verdict is True:
        return None
    return verdict if isinstance(verdict, str) else "its condition does not hold"
