"""What a device can run: its kernels, the ops that each level asks for, and whether it tells the truth about them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import islice

from xinheng.core.compiler import compile
from xinheng.core.errors import UnsupportedOp, XinhengError
from xinheng.core.hal import Device
from xinheng.core.ops import OPSET
from xinheng.core.plugins import PluginManager
from xinheng.core.suite import Selection, Verdict

from ..case import SAMPLES
from ..declared import excuse
from ..paging import repaged
from ..running.levels import levels
from ..suites.ops import OpSuite
from .symptom import Findings

TRIED = 3
"""Cases of an op of which one has to compile for it to count as covered."""
SHOWN = 12


def examine_kernels(spec: str, findings: Findings) -> None:
    """Look at the kernels of a device, compile each op for it, and run a sample of cases."""
    from .. import cases as cases  # fills the table

    device = PluginManager().open(spec)
    findings.figures["kernels"] = len(device.kernels.ops())
    _registered(device, findings)
    _coverage(device, findings)
    _honesty(device, findings)


def _registered(device: Device, findings: Findings) -> None:
    known = device.capabilities.dtypes
    for op in device.kernels.ops():
        if op not in OPSET:
            findings.error("kernel.unknown", f"there is a kernel of {op!r}, which is no op", "see 'xinheng ops'")
            continue
        for kernel in device.kernels.candidates(op):
            ours = str(getattr(kernel.function, "__module__", "")).startswith("xinheng.")
            if ours and kernel not in device.kernels.own(op):
                continue  # a kernel that this project lends to many devices, such as those of plain torch
            beyond = sorted(kind.name for kind in (kernel.dtypes or frozenset()) - known)
            if beyond:
                text = f"kernel {kernel.name!r} of {op} takes {', '.join(beyond)}, which the device does not list"
                findings.warning("kernel.dtype", text, "add them to Capabilities.dtypes, or take them off the kernel")
            function = kernel.function
            if function is not None and not hasattr(function, "plan"):
                _mirrored(op, kernel.name, function, findings)


def _mirrored(op: str, name: str, function: object, findings: Findings) -> None:
    """The registry demands the names; defaults that differ from those of the op change its meaning."""
    defaults = {a.name: a.default for a in OPSET[op].attributes if not a.required}
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        theirs = parameter.default
        ours = defaults.get(parameter.name, theirs)
        if theirs is not inspect.Parameter.empty and ours is not inspect.Parameter.empty and theirs != ours:
            text = f"kernel {name!r} of {op}: {parameter.name} is {theirs!r} by default, in the op {ours!r}"
            findings.warning("kernel.default", text, "give it the default of the op")


def _coverage(device: Device, findings: Findings) -> None:
    """Which ops of which level run on the device, by a kernel or by decomposition."""
    reached = True
    for level in levels():
        lacking = {op: why for op in level.ops if (why := _refused(op, device)) is not None}
        findings.figures[f"covered_{level.name}"] = f"{len(level.ops) - len(lacking)}/{len(level.ops)}"
        if not lacking:
            continue
        names = sorted(lacking)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        text = f"{level.name} ({level.title}) lacks {len(names)} ops: {', '.join(names[:SHOWN])}{more}"
        remedy = f"write kernels; {names[0]}: {lacking[names[0]]}"
        (findings.warning if level.name == "L0" else findings.note)("level.ops", text, remedy)
        if not reached:
            break
        reached = False


def _refused(op: str, device: Device) -> str | None:
    """Why an op does not compile for the device, by the last of the cases tried; None if one of them does."""
    known, reason = device.capabilities, None
    calls = (case.call for sample in SAMPLES.get(op, ()) for case in sample.cases())
    for call in islice((call for call in calls if excuse(call, known) is None), TRIED):
        try:
            compile(repaged(call, known).graph(), device)
            return None
        except XinhengError as error:
            reason = str(error)
    return reason


def _honesty(device: Device, findings: Findings) -> None:
    """Run some cases of every op: what is said to be supported has to run, and rightly."""
    suite, ran = OpSuite(Selection()), 0
    for id in _sampled(device, suite):
        try:
            outcome = suite.run(id, device)
        except UnsupportedOp:
            continue
        ran += outcome.verdict is Verdict.PASS
        if outcome.verdict not in (Verdict.FAIL, Verdict.OUT_OF_MEMORY):
            continue
        code = "supports.lie" if outcome.defect == "supports" else "kernel.wrong"
        remedy = f"xinheng conformance case {id} --device {device.spec}"
        findings.error(code, f"{id}: {outcome.defect}: {outcome.message}", remedy)
    findings.figures["cases_passed"] = ran


def _sampled(device: Device, suite: OpSuite) -> Iterator[str]:
    """A case of each op in each dtype that the device lists, from the middle of all there are."""
    names = {kind.name for kind in device.capabilities.dtypes}
    cells: dict[tuple[str, str], list[str]] = {}
    for item in suite.items():
        if item.dtype in names:
            cells.setdefault((item.op, item.dtype), []).append(item.id)
    for ids in cells.values():
        yield ids[len(ids) // 2]
