"""Kernels: the ways a device can run an op, and the choice between them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import PluginError
from ..ir.dtype import DType
from ..ir.graph import Node, Value
from ..ir.op import Op
from ..ir.types import TensorType

F = TypeVar("F")
Condition = Callable[[Node], bool | str]
"""Whether a kernel takes a node: True, or False, or the reason why not."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to run one op.

    `function` has the op's operands under the same names in the same order, and its attributes under the same names; it
    may leave out optional ones and is then eligible only where they have their default. Instead of a function it may be
    an object with `plan(node, bounds)`, which returns the function for one node. `host` names operands it wants as
    numpy arrays; it is eligible where they are inputs of the graph. Where a device records a run to replay it, values
    on the host would be frozen in the record: the planned function of such a kernel has a method `update(host)`, which
    gets the arrays of these operands by name before each replay, and may be given those of the recorded run before it.

    Tensors come as buffers of the device, also constants; only where an elementwise op combines a scalar constant with
    a tensor, the constant comes as a Python number.

    A device that takes whole graphs has no functions: the kernels its `select` makes only tell the receipt what runs.
    """

    op: str
    name: str
    function: Any = None
    dtypes: frozenset[DType] | None = None
    when: Condition | None = None
    priority: int = 0
    host: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a kernel was not taken for a node."""

    kernel: str
    reason: str


class KernelRegistry:
    """The kernels of one kind of device; those of `parent` are candidates too, after equal priorities of its own.

    A parent that costs something to make, such as the import of a framework, may be given as a function, which is
    called when the turn of its kernels comes. They must have no priority above 0.
    """

    def __init__(self, parent: KernelRegistry | Callable[[], KernelRegistry] | None = None) -> None:
        self._kernels: dict[str, list[Kernel]] = {}
        self._parent = parent

    @property
    def parent(self) -> KernelRegistry | None:
        """The registry behind this one, made now if it has not been."""
        if callable(self._parent):
            self._parent = self._parent()
        return self._parent

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
            dtypes: the dtypes that the first float tensor operand may have, or the first float result where no operand
                is one; the op says how the others follow. None means any.
            when: further conditions on the node.
            name: how receipts and overrides call it; the function's name by default.
            priority: among several acceptable kernels the highest wins.
            host: operands wanted as numpy arrays on the host.

        Raises:
            PluginError: the function does not mirror the op, or the op has a kernel of that name here.
        """

        def decorate(function: F) -> F:
            parameters = _mirrored(op, function)
            allowed = None if dtypes is None else frozenset(dtypes)
            label = name or str(getattr(function, "__name__", op.name))
            unknown = [o for o in host if o not in parameters or o not in (x.name for x in op.operands)]
            if unknown:
                raise PluginError(
                    f"kernel {label!r} of op {op.name!r} has no operand {unknown[0]!r} to want on the host"
                )
            if any(k.name == label for k in self._kernels.get(op.name, [])):
                raise PluginError(f"op {op.name!r} has two kernels called {label!r}; give one of them another name")
            kernel = Kernel(op.name, label, function, allowed, when, priority, frozenset(host), parameters)
            self._kernels.setdefault(op.name, []).append(kernel)
            return function

        return decorate

    def extend(self, other: KernelRegistry) -> None:
        """Take in the kernels that another registry has of its own.

        Raises:
            PluginError: an op would have two kernels of one name.
        """
        for op, kernels in other._kernels.items():
            taken = {kernel.name for kernel in self._kernels.get(op, [])}
            double = next((kernel.name for kernel in kernels if kernel.name in taken), None)
            if double is not None:
                raise PluginError(f"op {op!r} has two kernels called {double!r}; give one of them another name")
            self._kernels.setdefault(op, []).extend(kernels)

    def own(self, op: str) -> tuple[Kernel, ...]:
        """The kernels of an op without those of the parent."""
        return tuple(self._kernels.get(op, ()))

    def candidates(self, op: str) -> list[Kernel]:
        """All kernels of an op, best first."""
        inherited = self.parent.candidates(op) if self.parent is not None else []
        return _by_priority([*self._kernels.get(op, []), *inherited])

    def ranked(self, op: str) -> Iterator[Kernel]:
        """The same one by one, so that a parent is made only if none of the first is taken."""
        if not callable(self._parent):
            yield from self.candidates(op)
            return
        own = _by_priority(self._kernels.get(op, []))
        yield from (kernel for kernel in own if kernel.priority >= 0)
        yield from (kernel for kernel in self.candidates(op) if kernel not in own or kernel.priority < 0)

    def ops(self) -> list[str]:
        """Names of all ops with a kernel."""
        inherited = self.parent.ops() if self.parent is not None else []
        return sorted({*self._kernels, *inherited})

    def select(
        self, node: Node, only: str | None = None, known: Container[DType] | None = None
    ) -> tuple[Kernel | None, list[Refusal]]:
        """The best kernel that takes a node, and why better ones were refused.

        `only` admits one name; `known` are the dtypes that tensors on the device may have, None for any.
        """
        refusals: list[Refusal] = []
        for kernel in self.ranked(node.op.name):
            reason = _refusal(kernel, node) if only in (None, kernel.name) else f"the override asks for @{only}"
            reason = reason or (None if known is None else _unknown_dtype(kernel, node, known))
            if reason is None:
                return kernel, refusals
            refusals.append(Refusal(kernel.name, reason))
        return None, refusals


def _by_priority(kernels: Iterable[Kernel]) -> list[Kernel]:
    return sorted(kernels, key=lambda kernel: -kernel.priority)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_PLACES = {False: _POSITIONAL, True: (inspect.Parameter.VAR_POSITIONAL,)}


def _mirrored(op: Op[..., Any], function: Any) -> frozenset[str]:
    """The parameter names of a kernel, after checking that they mirror the op's."""
    expected = [o.name for o in op.operands] + [a.name for a in op.attributes]
    if hasattr(function, "plan"):
        return frozenset(expected)
    declared = inspect.signature(function).parameters
    name = str(getattr(function, "__name__", function))
    optional = {o.name for o in op.operands if o.optional} | {a.name for a in op.attributes if not a.required}
    unknown = [name for name in declared if name not in expected]
    missing = [name for name in expected if name not in declared and name not in optional]
    if unknown or missing:
        what = f"has no operand or attribute {unknown[0]!r}" if unknown else f"needs {missing[0]!r}"
        raise PluginError(f"kernel {name!r} does not mirror op {op.name!r}, which {what}")
    order = [o.name for o in op.operands if o.name in declared]
    if order != [n for n in declared if n in order]:
        raise PluginError(f"kernel {name!r} takes operands in another order than op {op.name!r}: {', '.join(order)}")
    for operand in op.operands:
        parameter = declared.get(operand.name)
        if parameter is not None and parameter.kind not in _PLACES[operand.variadic]:
            kind = "variadic" if operand.variadic else "positional"
            raise PluginError(f"kernel {name!r}: operand {operand.name!r} of op {op.name!r} is {kind}")
    for attribute in op.attributes:
        if attribute.name in declared and declared[attribute.name].kind not in _KEYWORD:
            raise PluginError(f"kernel {name!r}: attribute {attribute.name!r} of op {op.name!r} is passed by name")
    return frozenset(declared)


def _refusal(kernel: Kernel, node: Node) -> str | None:
    if kernel.dtypes is not None:
        for kind in (_floats(node.operands) or _floats(node.results))[:1]:
            if kind not in kernel.dtypes:
                return f"takes {', '.join(sorted(d.name for d in kernel.dtypes))}, not {kind}"
    for declared, value in zip(node.op.operands, node.operands, strict=False):
        if value is not None and declared.name not in kernel.parameters:
            return f"does not know operand {declared.name!r}"
        if value is not None and declared.name in kernel.host and value.kind != "input":
            return f"wants {declared.name!r} on the host, but it is a {value.kind} of the graph, not an input"
    for attribute in node.op.attributes:
        if attribute.name not in kernel.parameters and node.attributes[attribute.name] != attribute.default:
            return f"does not know attribute {attribute.name!r}"
    verdict = True if kernel.when is None else kernel.when(node)
    if verdict is True:
        return None
    return verdict if isinstance(verdict, str) else "its condition does not hold"


def _unknown_dtype(kernel: Kernel, node: Node, known: Container[DType]) -> str | None:
    """The reason to refuse a tensor that the device cannot hold; operands on the host never get there."""
    names = [node.op.operands[min(i, len(node.op.operands) - 1)].name for i in range(len(node.operands))]
    there = [v for name, v in zip(names, node.operands, strict=True) if name not in kernel.host]
    for value in (*there, *node.results):
        if value is not None and isinstance(value.type, TensorType) and value.type.dtype not in known:
            return f"the device has no {value.type.dtype} tensors"
    return None


def _floats(values: Sequence[Value | None]) -> list[DType]:
    types = [value.type for value in values if value is not None]
    return [kind.dtype for kind in types if isinstance(kind, TensorType) and kind.dtype.is_float]
