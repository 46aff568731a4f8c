"""An op is one Python function: its signature is the schema, its docstring the documentation, its body the meaning.

For example:

    @op(tolerance=Tolerance.REDUCTION)
    def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor: ...

Positional parameters are operands (`Tensor`, `Weight`, `State`, each optional with `| None = None`, variadic with `*`),
keyword-only parameters are attributes. Called on values of a graph the op adds a node; `.reference` computes on arrays.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import numpy as np

from ..errors import GraphError, nearest
from .dim import Check, Expr, collect_checks, rename_unbacked
from .dtype import DType, dtype
from .types import StateType, TensorType, Type, WeightType

if TYPE_CHECKING:
    from .graph import Value

P = ParamSpec("P")
R = TypeVar("R")
Inferred = tuple[tuple[Type, ...], tuple[Check, ...]]
"""What an infer rule tells of a node."""

Tensor = Any
"""An operand or result: a value of a graph, an array, or an array that carries error bounds."""
Weight = Any
"""A read-only parameter in some weight scheme; references see its values as an array [rows, columns]."""
State = Any
"""Memory that lives across steps; references see the named tuple of its kind."""


class Tolerance(Enum):
    """The class of arithmetic an op belongs to; which error bound a class gets is decided by the conformance suite."""

    EXACT = "exact"
    ELEMENTWISE = "elementwise"
    TRANSCENDENTAL = "transcendental"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    ATTENTION = "attention"
    QUANTISE = "quantise"
    SELECTION = "selection"
    STOCHASTIC = "stochastic"
    COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Operand:
    """A positional parameter of an op: its name, which kind of value it takes, and whether it may be absent."""

    name: str
    kind: str
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class Attribute:
    """A keyword-only parameter of an op; `required` says that it has no default."""

    name: str
    annotation: str
    required: bool
    default: Any = None


_KINDS: dict[str, type] = {"Tensor": TensorType, "Weight": WeightType, "State": StateType}
OPS: dict[str, Op[..., Any]] = {}
"""Every op defined so far by name; `core.ops.OPSET` is the view users see."""


class Op(Generic[P, R]):
    """A named meaning with its schema; composite if it has a decomposition, primitive otherwise."""

    def __init__(self, function: Callable[P, R], tolerance: Tolerance, since: int) -> None:
        self.name = function.__name__
        self.doc = inspect.getdoc(function) or ""
        self.tolerance = tolerance
        self.since = since
        self.reference = function
        self.operands, self.attributes = _schema(function)
        self._known = {attribute.name: attribute for attribute in self.attributes}
        self._infer: Callable[..., Any] | None = None
        self._decompose: Callable[..., Any] | None = None
        self.__doc__ = self.doc

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    @property
    def composite(self) -> bool:
        return self._decompose is not None

    @property
    def signature(self) -> str:
        """The schema as it was written."""
        declared, starred = [], False
        for parameter in inspect.signature(self.reference).parameters.values():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
                starred = True
                if not self.operands or not self.operands[-1].variadic:
                    declared.append("*")
            star = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
            spelled = json.dumps(parameter.default) if isinstance(parameter.default, str) else str(parameter.default)
            default = "" if parameter.default is inspect.Parameter.empty else f" = {spelled}"
            declared.append(f"{star}{parameter.name}: {parameter.annotation}{default}")
        result = str(inspect.signature(self.reference).return_annotation)
        return f"{self.name}({', '.join(declared)}) -> {result}"

    def infer(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule from operand types and attributes to the result type, or tuple of types."""
        self._infer = rule
        return rule

    def decompose(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the program of simpler ops that this op stands for."""
        self._decompose = rule
        return rule

    def expand(self, *operands: Any, **attributes: Any) -> Any:
        """Run the decomposition on values of a graph."""
        if self._decompose is None:
            raise GraphError(f"op {self.name!r} is a primitive; it has no decomposition")
        return self._decompose(*operands, **attributes)

    def result_types(self, operands: tuple[Type | None, ...], attributes: Mapping[str, Any]) -> tuple[Type, ...]:
        """Types of the results; GraphError names the op and what does not fit."""
        if self._infer is None:
            raise GraphError(f"op {self.name!r} has no infer rule")
        try:
            result = self._infer(*operands, **attributes)
        except GraphError as error:
            raise GraphError(f"{self.name}: {error}") from None
        types: tuple[Type, ...] = result if isinstance(result, tuple) else (result,)
        for kind in types:
            if isinstance(kind, TensorType) and any(isinstance(d, int) and d < 0 for d in kind.shape):
                raise GraphError(f"{self.name}: the result would be {kind}, with a negative size")
        return types

    def inferred(
        self,
        operands: tuple[Type | None, ...],
        attributes: Mapping[str, Any],
        rename: Callable[[str], str],
        known: dict[Any, Inferred],
    ) -> Inferred:
        """Types of the results, and equalities that only a run can check.

        Args:
            attributes: as `normalise` returns them.
            rename: names the sizes that the op makes anew; results with such sizes are inferred each time.
            known: what was inferred before in the same graph, where a size of one name is one size; layers are alike.

        Raises:
            GraphError: operands do not fit, as `result_types` tells.
        """
        key = (self, operands, tuple(attributes.values()))
        if key in known:
            return known[key]
        renamed = False

        def named(wanted: str) -> str:
            nonlocal renamed
            renamed = True
            return rename(wanted)

        with collect_checks() as checks, rename_unbacked(named):
            found = self.result_types(operands, attributes), tuple(checks)
        if not renamed:
            known[key] = found
        return found

    def normalise(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes in declared order, defaults filled in; GraphError for unknown, missing or unfit ones."""
        known = self._known
        for name in attributes:
            if name not in known:
                raise GraphError(f"{self.name}: unknown attribute {name!r}{nearest(name, list(known))}")
        missing = [a.name for a in self.attributes if a.required and a.name not in attributes]
        if missing:
            raise GraphError(f"{self.name}: attribute {missing[0]!r} is required")
        return {a.name: _attribute(self.name, a, attributes.get(a.name, a.default)) for a in self.attributes}

    def check_operands(self, types: tuple[Type | None, ...]) -> None:
        """Demand the right number and kind of operands."""
        fixed = [o for o in self.operands if not o.variadic]
        if len(types) < len(fixed) or (len(types) > len(fixed) and len(fixed) == len(self.operands)):
            raise GraphError(f"{self.name}: takes {len(self.operands)} operands, got {len(types)}")
        for i, given in enumerate(types):
            operand = self.operands[min(i, len(self.operands) - 1)]
            if given is None and not operand.optional:
                raise GraphError(f"{self.name}: operand {operand.name!r} is required")
            if given is not None and not isinstance(given, _KINDS[operand.kind]):
                raise GraphError(f"{self.name}: operand {operand.name!r} must be a {operand.kind}, not {given}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        names = [o.name for o in self.operands]
        operands: list[Any] = list(args)
        for name in names[len(operands) :]:
            if name in kwargs:
                operands.extend([None] * (names.index(name) - len(operands)))
                operands.append(kwargs.pop(name))
        if not (self.operands and self.operands[-1].variadic):
            operands.extend([None] * (len(names) - len(operands)))
        builder = next((o.builder for o in operands if hasattr(o, "builder")), None)
        if builder is None:
            raise GraphError(
                f"{self.name}: needs at least one value of a graph; use Builder.call for ops without operands"
            )
        result: Any = builder.call(self, operands, kwargs)
        return result  # type: ignore[no-any-return]


def op(*, tolerance: Tolerance, since: int = 1) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Make a function an op and enter it in `OPS`; GraphError if the name is taken."""

    def make(function: Callable[P, R]) -> Op[P, R]:
        made = Op(function, tolerance, since)
        if made.name in OPS:
            raise GraphError(f"op {made.name!r} is defined twice")
        OPS[made.name] = made
        return made

    return make


def require(condition: bool, reason: str) -> None:
    """Raise GraphError with `reason` unless `condition` holds; for infer rules."""
    if not condition:
        raise GraphError(reason)


def _schema(function: Callable[..., Any]) -> tuple[tuple[Operand, ...], tuple[Attribute, ...]]:
    operands, attributes = [], []
    for parameter in inspect.signature(function).parameters.values():
        annotation = str(parameter.annotation)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            required = parameter.default is inspect.Parameter.empty
            default = None if required else parameter.default
            attributes.append(Attribute(parameter.name, annotation, required, default))
            continue
        kind = annotation.split(" |")[0]
        if kind not in _KINDS:
            raise GraphError(
                f"op {function.__name__!r}: operand {parameter.name!r} is annotated {annotation!r}; write Tensor, "
                "Weight or State in a module with 'from __future__ import annotations'"
            )
        variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        operands.append(Operand(parameter.name, kind, parameter.default is None, variadic))
    return tuple(operands), tuple(attributes)


def _attribute(op_name: str, attribute: Attribute, value: Any) -> Any:
    """Bring an attribute to its canonical immutable form and check it against the annotation."""
    value = _plain(value)
    kinds = attribute.annotation.split(" | ")
    if "DType" in kinds and isinstance(value, str):
        return dtype(value)
    if "float" in kinds and "int" not in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if any(_fits(value, kind) for kind in kinds):
        return value
    raise GraphError(f"{op_name}: attribute {attribute.name!r} must be {attribute.annotation}, not {value!r}")


def _plain(value: Any) -> Any:
    """Lists as tuples and numbers of numpy as those of Python, which print and parse exactly."""
    if isinstance(value, list | tuple):
        return tuple(_plain(v) for v in value)
    return value.item() if isinstance(value, np.generic) else value


def _fits(value: Any, kind: str) -> bool:
    if kind.startswith("tuple["):
        return isinstance(value, tuple) and all(_fits(v, kind[6:].split(",")[0]) for v in value)
    matches = {
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, float),
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
        "DType": isinstance(value, DType),
        "None": value is None,
        "Dim": isinstance(value, int | Expr) and not isinstance(value, bool),
    }
    return matches.get(kind, False)


def results(value: Any) -> tuple[Value, ...]:
    """The results of an op call as a tuple, however many there are."""
    return value if isinstance(value, tuple) else (value,)
