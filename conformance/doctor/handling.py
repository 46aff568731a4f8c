"""What a device does when it is opened, copied to and from, used by threads and processes, and misused."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xinheng.core.errors import DeviceError, XinhengError
from xinheng.core.hal import Device, DeviceSpec, StateSpace
from xinheng.core.ir import DType, StateType
from xinheng.core.ir.dtype import cast_to
from xinheng.core.plugins import PluginManager

from ..bounds import Rules
from ..case import SAMPLES, Case
from ..judge import judge
from ..operands import stored
from ..trial import Trial
from .symptom import Findings

FIRST = ("matmul", "linear", "add", "rms_norm")
"""Ops to try a device with; the first that it has a kernel for is taken."""
TURNS = 20
FORK_SECONDS = 60


def examine_handling(spec: str, findings: Findings) -> None:
    """Open a device in several ways and use it."""
    forked = _forked(spec)
    began = time.perf_counter()
    try:
        device = PluginManager().open(spec)
    except XinhengError as error:
        findings.error("device.open", str(error), "do what the message says, or let it say what to do")
        return
    findings.figures["open_seconds"] = round(time.perf_counter() - began, 3)
    case = _workable(device)
    if forked:
        findings.error("process.fork", forked, "open nothing and start no thread before open() is called")
    _declarations(spec, device, findings)
    _copies(device, findings)
    _states(device, findings)
    _errors(spec, findings)
    if case is None:
        findings.warning("kernel.none", f"{spec} runs none of {', '.join(FIRST)}", "begin with a kernel of matmul")
    else:
        _threads(spec, device, case, findings)


def _workable(device: Device) -> Case | None:
    """A case that the device runs by itself."""
    from .. import cases as cases  # fills the table

    for op in FIRST:
        case = next(SAMPLES[op][0].cases().__iter__())
        if device.supports(case.call.graph().nodes[0]):
            return case
    return None


def _runs(case: Case, device: Device) -> str:
    """What is wrong with a case on a device, or nothing."""
    made = Trial(case.call, device).run()
    found = judge(case.call, made, Rules.of(device.capabilities.arithmetic, case.kind, case.structured))
    return "" if found.ok else found.message


def _forked(spec: str) -> str:
    """What goes wrong when a process imports the plugin and its child opens the device; nothing where none forks."""
    PluginManager().records()
    if not hasattr(os, "fork"):
        return ""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            device = PluginManager().open(spec)
            case = _workable(device)
            status = 0 if case is None or not _runs(case, device) else 2
        finally:
            os._exit(status)
    until = time.monotonic() + FORK_SECONDS
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"a forked process that opens {spec} hangs"
        time.sleep(0.01)
    return f"a forked process that opens {spec} ends with status {ended[1]}" if ended[1] else ""


def _declarations(spec: str, device: Device, findings: Findings) -> None:
    known = device.capabilities
    if device.spec != spec:
        findings.error("device.spec", f"{spec} calls itself {device.spec!r}", "set spec to the name it was opened by")
    if known.arithmetic is None:
        findings.warning(
            "device.arithmetic",
            f"{spec} does not declare its arithmetic, so its error bounds are guesses and no level above L0 is open",
            "set Capabilities.arithmetic; 'xinheng conformance fingerprint' shows what it should be",
        )
    foreign = [kind for kind in known.dtypes if not isinstance(kind, DType)]
    if foreign:
        findings.error("device.dtypes", f"{foreign[0]!r} is no DType", "make them with xinheng.core.dtype(name)")
    stats = device.memory()
    if not 0 <= stats.available <= stats.total:
        text = f"memory() says {stats.available} bytes of {stats.total} are available"
        findings.error("device.memory", text, "return bytes, 0 <= available <= total")


def _copies(device: Device, findings: Findings) -> None:
    """Numbers of every dtype have to come back as they went."""
    for kind in sorted(device.capabilities.dtypes, key=lambda kind: kind.name):
        for shape in ((), (0, 3), (3, 5)):
            given = cast_to(np.arange(np.prod(shape), dtype=np.float64).reshape(shape) % 6 + 1, kind)
            buffer = device.upload(given, kind)
            back = device.download(buffer)
            alike = (back.dtype, back.shape) == (given.dtype, given.shape)
            if not (alike and np.array_equal(back, given)):
                text = f"{device.spec}: {kind}{list(shape)} comes back as {back.dtype}{list(back.shape)}"
                text += " with other numbers" if alike else ""
                findings.error("device.copy", text, "download returns what upload was given, in the same dtype")
                break
            if tuple(device.shape(buffer)) != shape:
                text = f"shape() says {device.shape(buffer)} of a tensor of shape {shape}"
                findings.error("device.shape", text, "return the sizes as a tuple")


def _states(device: Device, findings: Findings) -> None:
    """Every kind of state that a kernel of the device takes can be set and read."""
    for op in device.kernels.ops():
        for sample in SAMPLES.get(op, ())[:1]:
            case = next(sample.cases().__iter__())
            kinds = [(k, v) for k, v in zip(case.call.types, case.call.values, strict=True) if isinstance(k, StateType)]
            for kind, pages in kinds:
                text = _state(device, kind, pages)
                if text:
                    remedy = "implement Device.read_state and Device.write_state; the suite checks caches by them"
                    findings.error("state.unreadable", f"{op}: {text}", remedy)


def _state(device: Device, kind: StateType, pages: Any) -> str:
    sizes = device.capabilities.block_sizes
    given: Any = stored(kind, pages)
    size = given[0].shape[1] if given[0].ndim > 1 else 1
    if kind.kind.startswith("paged") and sizes and size not in sizes:
        given = type(given)(*(np.resize(p, (p.shape[0], min(sizes), *p.shape[2:])) for p in given))
        size = min(sizes)
    try:
        state = device.allocate_state(kind, StateSpace(given[0].shape[0], size))
        device.write_state(state, kind, given)
        back = device.read_state(state, kind)
    except DeviceError as error:
        return str(error)
    same = all(a.shape == b.shape and np.array_equal(a, b) for a, b in zip(given, back, strict=True))
    return "" if same else f"what write_state wrote to a {kind} is not what read_state returns"


def _errors(spec: str, findings: Findings) -> None:
    """A device that does not exist is refused by name."""
    name = spec.partition(":")[0]
    for wrong in (f"{name}:4711", f"{name}:no-such-word"):
        try:
            PluginManager().backend(name).open(DeviceSpec.parse(wrong))
        except XinhengError as error:
            if wrong not in str(error) and "4711" not in str(error) and "no-such-word" not in str(error):
                text = f"the error for {wrong} does not name it: {error}"
                findings.warning("error.unnamed", text, "say which device it was, and which there are")
        except Exception as error:
            text = f"opening {wrong} raises {type(error).__name__}: {error}"
            findings.error("error.untyped", text, "raise xinheng.core.errors.DeviceError with the reason")
        else:
            findings.error(
                "error.missing", f"{wrong} can be opened", "raise DeviceError for a device that is not there"
            )


def _threads(spec: str, device: Device, case: Case, findings: Findings) -> None:
    """One device in a thread, and two devices in two threads at once."""
    wrong = _in_threads([lambda: _runs(case, device)])
    if wrong:
        findings.error("thread.other", f"used by another thread, {spec} fails: {wrong}", "keep no state per thread")
        return
    try:
        second = PluginManager().open(spec)
    except DeviceError as error:
        findings.note("device.exclusive", f"{spec} can be opened once only: {error}")
        return
    if second is device:
        return
    wrong = _in_threads([lambda d=d: _runs(case, d) for d in (device, second)] * 2)
    if wrong:
        text = f"two opened devices that run at once fail: {wrong}"
        findings.error("thread.concurrent", text, "share nothing between devices without a lock")
    second.close()


def _in_threads(actions: Sequence[Callable[[], str]]) -> str:
    """Do all of it at once, often; the first thing that goes wrong."""
    wrong: list[str] = []
    start = threading.Barrier(len(actions))

    def work(action: Callable[[], str]) -> None:
        start.wait()
        for _ in range(TURNS):
            try:
                told = action()
            except Exception as error:
                told = f"{type(error).__name__}: {error}"
            if told or wrong:
                wrong.append(told)
                return

    threads = [threading.Thread(target=work, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return next(filter(None, wrong), "")
