"""ONNX's own tests of single nodes: how they are imported and run here, and which of them are refused.

python -m tests.core.interop.node_suite     writes the file of refused tests anew, for review as a diff
"""

from __future__ import annotations

import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.compiler import compile
from xinheng.core.errors import GraphError, UnsupportedOp
from xinheng.core.hal import Device
from xinheng.core.interop import ImportedModel, import_onnx
from xinheng.core.ir import DType, Node, evaluate, verify
from xinheng.core.ir.dtype import cast_to, float32, round_to

REFUSED = Path(__file__).with_name("refused.toml")
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


@dataclass(frozen=True)
class Outcome:
    """What became of a test: right, wrong or refused; whether shapes had to be given; whether the device ran it."""

    verdict: str
    detail: str = ""
    specialised: bool = False
    on_device: bool = False


@cache
def node_tests() -> Mapping[str, tuple[NodeTest, ...]]:
    """All tests by the first letter of their op."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases: Any = load_model_tests(kind="node")
    plain = {case.name: case.model.graph.node[0].op_type for case in cases}
    groups: dict[str, list[NodeTest]] = {}
    for case in cases:
        op = plain.get(case.name.partition("_expanded")[0], plain[case.name])
        inputs, outputs = case.data_sets[0]
        test = NodeTest(
            case.name, op, case.model, tuple(map(_array, inputs)), tuple(map(_array, outputs)), case.rtol, case.atol
        )
        groups.setdefault(op[0], []).append(test)
    return {letter: tuple(tests) for letter, tests in groups.items()}


def _array(given: Any) -> Any:
    """Tensors and numbers as arrays; sequences and absent optionals as they are."""
    from onnx import TensorProto, numpy_helper

    if isinstance(given, TensorProto):
        return numpy_helper.to_array(given)
    return np.asarray(given) if isinstance(given, np.generic) else given


def imported(test: NodeTest) -> tuple[ImportedModel, bool]:
    """The model of a test, with shape inputs given from its data where it needs them; GraphError if it is refused."""
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


def run(test: NodeTest, device: Device) -> Outcome:
    """Import a test, run it by the references and on a device, and compare both with what it expects."""
    try:
        model, specialised = imported(test)
    except GraphError as error:
        return Outcome("refused", str(error))
    verify(model.graph)
    names = [declared.name for declared in test.model.graph.input]
    feeds = {model.inputs[n]: array for n, array in zip(names, test.inputs, strict=False) if n in model.inputs}
    made, _ = evaluate(model.graph, feeds, model.parameters, visit=rounded)
    if fault := differences(test, model, made):
        return Outcome("wrong", f"reference: {fault}", specialised)
    try:
        executable = compile(model.graph, device)
    except UnsupportedOp as error:
        return Outcome("right", str(error), specialised)
    bound = executable.bind({name: executable.prepare(name, array) for name, array in model.parameters.items()})
    bound.run(feeds).wait()
    fault = differences(test, model, {name: device.download(x) for name, x in bound.outputs.items()}, HALF)
    return Outcome("wrong" if fault else "right", f"{device.spec}: {fault}" if fault else "", specialised, True)


def rounded(node: Node, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results as a kernel hands them on: rounded to their dtype, narrow floats to float32."""
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


def expected_refusals() -> dict[str, str]:
    """The op of each test that is known to be refused."""
    listed = tomllib.loads(REFUSED.read_text(encoding="utf-8"))
    return {name: op for op, entry in listed.items() for name in entry["tests"]}


def write_refusals(outcomes: Mapping[str, tuple[NodeTest, Outcome]]) -> None:
    """Write the file of refused tests by op, each op with the reason of its first test."""
    lines = ["# ONNX node tests that the importer refuses, by op. Written by node_suite.py; stale entries fail.\n"]
    grouped: dict[str, list[tuple[str, str]]] = {}
    for test, outcome in outcomes.values():
        if outcome.verdict == "refused":
            grouped.setdefault(test.op, []).append((test.name, outcome.detail))
    for op, entries in sorted(grouped.items()):
        reason = entries[0][1].split("; supported:")[0].replace("\\", "").replace('"', "'")
        tests = "".join(f'    "{name}",\n' for name, _ in sorted(entries))
        lines.append(f'\n[{op}]\nreason = "{reason}"\ntests = [\n{tests}]\n')
    REFUSED.write_text("".join(lines), encoding="utf-8")


def summary(outcomes: Mapping[str, tuple[NodeTest, Outcome]]) -> str:
    """One line of counts."""
    found = [outcome for _, outcome in outcomes.values()]
    counts = Counter(o.verdict for o in found)
    right = [o for o in found if o.verdict == "right"]
    return (
        f"ONNX node tests: {len(found)} in all, {counts['right']} right ({sum(o.specialised for o in right)} of them "
        f"with shapes given, {sum(o.on_device for o in right)} on the device too), {counts['wrong']} wrong, "
        f"{counts['refused']} refused"
    )


def main() -> None:
    from xinheng.backends.cpu import CPUBackend
    from xinheng.core.hal import DeviceSpec

    device = CPUBackend().open(DeviceSpec.parse("cpu:0"))
    outcomes = {test.name: (test, run(test, device)) for tests in node_tests().values() for test in tests}
    write_refusals(outcomes)
    print(summary(outcomes))
    print(*(f"{name}: {o.detail}" for name, (_, o) in outcomes.items() if o.verdict == "wrong"), sep="\n")


if __name__ == "__main__":
    main()
