"""The suite `onnx`: ONNX's own tests of single nodes, imported as graphs of ours and run on a device.

Results are judged by the error bounds of the imported graph where it has useful ones, else by the tolerance that comes
with ONNX; the outcome's `program` says which. Each test also checks the importer: where the references do not give
what ONNX expects, the case is to blame and not the device.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError, GraphError, UnsupportedOp, XinhengError
from xinheng.core.hal import Device, Executable
from xinheng.core.interop import ImportedModel, import_onnx
from xinheng.core.ir import DType, Graph, Node, TensorType, Tolerance, evaluate, verify
from xinheng.core.ir.dtype import cast_to, float32, float64, round_to
from xinheng.core.ir.numeric import store
from xinheng.core.suite import DECLARED, Item, Outcome, Suite, Verdict

from ..bounds import Bounded, Check, MissingRule, Rules, check, operand
from ..judge import USELESS

BOUND = "imported-graph"
"""The program of results that lie within the bounds of the imported graph, each step rounded or kept wider."""
TOLERANCE = "onnx-tolerance"
"""That of results that are as close to what ONNX expects as its own runner demands."""
HALF = 2.0**-9
"""Two units of float16 in the last place, for devices: they round what lies between the nodes of a model one by one."""
NEEDS = ("must be known", "must not depend", "in `specialise`", "known number of turns")
"""What a refusal says that more knowledge may cure."""


@dataclass(frozen=True)
class NodeTest:
    """A model with one set of inputs and expected outputs, and the tolerance that comes with it."""

    name: str
    op: str
    model: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float

    @property
    def id(self) -> str:
        return f"onnx/{self.name}"

    @property
    def dtype(self) -> str:
        """That of the first result that is an array."""
        return next((str(x.dtype) for x in self.outputs if isinstance(x, np.ndarray)), "")


@dataclass(frozen=True)
class Prepared:
    """A test as a graph of ours with what it is fed; `specialised` says that shapes had to be given."""

    test: NodeTest
    model: ImportedModel
    feeds: Mapping[str, NDArray[Any]]
    specialised: bool

    @property
    def graph(self) -> Graph:
        return self.model.graph

    def reference(self) -> dict[str, Any]:
        """The results by the references, each rounded to its dtype, those of narrow floats to float32."""
        return evaluate(self.graph, self.feeds, self.model.parameters, visit=_rounded)[0]

    def bounded(self, rules: Rules) -> dict[str, Any] | None:
        """The results with error bounds; None where the graph takes decisions that have none."""
        kinds = {v.name: v.dtype for v in (*self.graph.inputs, *self.graph.parameters) if v.name in self._arrays}
        given = {name: operand(array, kinds[name], rules) for name, array in self._arrays.items()}
        last = {id(value) for value in self.graph.outputs.values()}

        def stored(node: Node, results: tuple[Any, ...]) -> tuple[Any, ...]:
            exact = node.op.tolerance is Tolerance.EXACT
            return tuple(
                x if exact or id(value) in last else store(x, value.dtype) if isinstance(x, Bounded) else x
                for x, value in zip(results, node.results, strict=True)
            )

        try:
            return evaluate(self.graph, given, given, visit=stored)[0]
        except MissingRule:
            return None

    @property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**self.feeds, **self.model.parameters}


@cache
def node_tests() -> Mapping[str, NodeTest]:
    """All tests by name; making them takes seconds.

    Raises:
        XinhengError: the package `onnx` is not installed.
    """
    try:
        import onnx.backend.test.loader as loader
    except ImportError as error:
        raise XinhengError(f"suite 'onnx' needs the package onnx: {error}; pip install 'xinheng[onnx]'") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases: Any = loader.load_model_tests(kind="node")
    plain = {case.name: case.model.graph.node[0].op_type for case in cases}
    tests = {}
    for case in cases:
        op = plain.get(case.name.partition("_expanded")[0], plain[case.name])
        inputs, outputs = case.data_sets[0]
        tests[case.name] = NodeTest(
            case.name, op, case.model, tuple(map(_array, inputs)), tuple(map(_array, outputs)), case.rtol, case.atol
        )
    return tests


def _array(given: Any) -> Any:
    """Tensors and numbers as arrays; sequences and absent optionals as they are."""
    from onnx import TensorProto, numpy_helper

    if isinstance(given, TensorProto):
        return numpy_helper.to_array(given)
    return np.asarray(given) if isinstance(given, np.generic) else given


def prepare(test: NodeTest) -> Prepared:
    """Import a test, with shape inputs given from its data where the importer needs them.

    Raises:
        GraphError: the importer refuses it; the message names the node and says what is not supported.
    """
    model, specialised = _imported(test)
    verify(model.graph)
    names = [declared.name for declared in test.model.graph.input]
    feeds = {model.inputs[n]: array for n, array in zip(names, test.inputs, strict=False) if n in model.inputs}
    return Prepared(test, model, feeds, specialised)


def _imported(test: NodeTest) -> tuple[ImportedModel, bool]:
    error: GraphError | None = None
    for given in _specialisations(test):
        try:
            return import_onnx(test.model, given), bool(given)
        except GraphError as refusal:
            error = refusal
            if not any(need in str(refusal) for need in NEEDS):
                break
    assert error is not None
    raise error


def _specialisations(test: NodeTest) -> Iterator[dict[str, NDArray[Any]]]:
    """Nothing; then short integer inputs after the first; then all short ones after it; then all short ones."""
    names = [declared.name for declared in test.model.graph.input]
    short = {
        name: array
        for name, array in zip(names, test.inputs, strict=False)
        if isinstance(array, np.ndarray) and array.ndim <= 1 and array.size <= 64
    }
    after = {name: array for name, array in short.items() if name != names[0]}
    yield {}
    yield {name: array for name, array in after.items() if array.dtype.kind in "iub"}
    yield after
    yield short


def _rounded(node: Node, results: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_kept(x, value.dtype) for x, value in zip(results, node.results, strict=True))


def _kept(x: Any, dtype: DType) -> Any:
    return round_to(x, dtype if dtype.bits >= 32 else float32) if dtype.is_float else cast_to(np.asarray(x), dtype)


def differences(test: NodeTest, model: ImportedModel, made: Mapping[str, Any], half: float = 0.0) -> str:
    """What is wrong with the results, or nothing.

    The tolerance is that of ONNX's own runner, which grants bfloat16 two units in the last place; `half` may grant
    float16 something too.
    """
    for declared, expected in zip(test.model.graph.output, test.outputs, strict=True):
        name = model.outputs[declared.name]
        want, got = np.asarray(expected), cast_to(np.asarray(made[name]), model.graph.outputs[name].dtype)
        if (want.dtype, want.shape) != (got.dtype, got.shape):
            return f"{declared.name} is {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        rtol = max(test.rtol, {"bfloat16": 2.0**-6, "float16": half}.get(want.dtype.name, 0.0))
        if want.dtype.kind in "fV" or not np.issubdtype(want.dtype, np.generic):
            with np.errstate(invalid="ignore"):
                want, got = want.astype(np.float64), got.astype(np.float64)
            if not np.allclose(got, want, rtol=rtol, atol=test.atol, equal_nan=True):
                return f"{declared.name} is off by up to {np.nanmax(np.abs(got - want))}"
        elif not np.array_equal(got, want):
            return f"{declared.name} differs in {np.count_nonzero(got != want)} elements"
    return ""


class OnnxSuite(Suite):
    """Items are called `onnx/` and the name that ONNX gives the test; their op is ONNX's."""

    name = "onnx"

    def items(self) -> Sequence[Item]:
        items = (Item(test.id, test.op, test.dtype) for test in node_tests().values())
        return [item for item in items if self.selection.admits(item)]

    def run(self, id: str, device: Device) -> Outcome:
        test = node_tests().get(id.removeprefix("onnx/"))
        if test is None:
            raise XinhengError(f"suite 'onnx' has no item {id!r}; it is onnx/ and the name of a node test of ONNX")
        began = time.perf_counter()
        made = self._outcome(test, device)
        return made.model_copy(update={"seconds": time.perf_counter() - began})

    def _outcome(self, test: NodeTest, device: Device) -> Outcome:
        try:
            prepared = prepare(test)
        except GraphError as error:
            return _outcome(test, Verdict.UNSUPPORTED, DECLARED, f"not imported: {error}")
        if fault := differences(test, prepared.model, prepared.reference()):
            return _outcome(test, Verdict.BAD_CASE, "importer", f"the references disagree with ONNX: {fault}")
        try:
            executable = compile(prepared.graph, device, numerics=self.numerics)
        except UnsupportedOp as error:
            defect = DECLARED if _undeclared(prepared.graph, device) else ""
            return _outcome(test, Verdict.UNSUPPORTED, defect, str(error))
        kernel = ", ".join(dict.fromkeys(line.kernel for line in executable.receipt.lines))
        try:
            made = _executed(executable, prepared)
        except DeviceError as error:
            return _outcome(test, Verdict.FAIL, "error", str(error), kernel=kernel)
        return _judged(prepared, made, device, kernel)


def _undeclared(graph: Graph, device: Device) -> bool:
    """Whether a graph has a dtype that the device declares not to have."""
    kinds = {value.dtype for value in graph.values() if isinstance(value.type, TensorType)}
    return not kinds <= device.capabilities.dtypes


def _executed(executable: Executable, prepared: Prepared) -> dict[str, NDArray[Any]]:
    """The outputs of one run; DeviceError for whatever a kernel raises."""
    try:
        buffers = {name: executable.prepare(name, array) for name, array in prepared.model.parameters.items()}
        bound = executable.bind(buffers)
        bound.run(prepared.feeds).wait()
        return {name: executable.device.download(x) for name, x in bound.outputs.items()}
    except XinhengError:
        raise
    except Exception as error:
        raise DeviceError(f"{executable.device.spec}: {type(error).__name__}: {error}") from error


def _judged(prepared: Prepared, made: Mapping[str, NDArray[Any]], device: Device, kernel: str) -> Outcome:
    test, arithmetic = prepared.test, device.capabilities.arithmetic
    kinds = {value.dtype for value in prepared.graph.values() if isinstance(value.type, TensorType)}
    floats = {kind for kind in kinds if kind.is_float}
    rules = Rules.of(arithmetic, float64 if floats == {float64} else float32, structured=True)
    checks = _checks(prepared, made, replace(rules, evaluate=False))
    if checks is None:
        fault = differences(test, prepared.model, made, HALF)
        verdict = Verdict.FAIL if fault else Verdict.PASS
        return _outcome(test, verdict, "numbers" if fault else "", fault, kernel=kernel, program=TOLERANCE)
    wrong = {name: c for name, c in checks.items() if not c.ok}
    text = "; ".join(
        f"{c.failed_count} of {c.count} elements of {name} are outside their bounds, the worst at "
        f"{list(c.worst_index or ())} by {c.worst_ratio:.3g} bounds"
        for name, c in wrong.items()
    )
    worst = max((c.worst_ratio for c in checks.values()), default=0.0)
    useless = max((c.useless_share for c in checks.values()), default=0.0)
    verdict = Verdict.FAIL if wrong else Verdict.PASS
    more = {"kernel": kernel, "program": BOUND, "worst": worst, "useless": useless}
    return _outcome(test, verdict, "numbers" if wrong else "", text, **more)


def _checks(prepared: Prepared, made: Mapping[str, NDArray[Any]], rules: Rules) -> dict[str, Check] | None:
    """One check per output; None where the graph has no bounds, or none that say enough."""
    expected = prepared.bounded(rules)
    if expected is None:
        return None
    checks = {}
    for name, value in prepared.graph.outputs.items():
        want = expected[name] if isinstance(expected[name], Bounded) else np.asarray(expected[name])
        with np.errstate(invalid="ignore"):  # signalling NaN
            checks[name] = check(want, made[name].astype(np.float64), value.dtype)
    return None if any(c.useless_share > USELESS for c in checks.values()) else checks


def _outcome(test: NodeTest, verdict: Verdict, defect: str = "", message: str = "", **more: Any) -> Outcome:
    return Outcome(id=test.id, op=test.op, dtype=test.dtype, verdict=verdict, defect=defect, message=message, **more)
