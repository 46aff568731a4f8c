"""The process that runs items: it opens the device once and answers requests, a line of JSON each, on a socket.

It is on its own so that a kernel may crash, hang or eat all memory and take nothing but its item with it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import socket
import sys
import threading
from io import BufferedRWPair
from pathlib import Path
from typing import Any

import numpy as np

from xinheng.core.errors import XinhengError
from xinheng.core.hal import Device, DeviceOptions, Numerics
from xinheng.core.ir.dtype import int32
from xinheng.core.plugins import PluginManager
from xinheng.core.suite import Item, Outcome, Suite, Verdict

from ..fingerprints.fingerprint import contradictions, fingerprint
from .about import About, Seen
from .plan import Plan

Stream = BufferedRWPair
GONE = 3
"""Exit status of a worker whose runner went away."""


def main(connection: int) -> int:
    """Serve the runner at the other end of a socket of this descriptor, to its end."""
    faulthandler.enable()
    with socket.socket(fileno=connection) as ours, ours.makefile("rwb") as stream:
        requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(stream, requests), daemon=True)
        reader.start()
        try:
            return serve(stream, requests)
        except BrokenPipeError:
            return GONE


def _read(stream: Stream, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Queue requests; when the runner is gone this process ends at once, whatever it is busy with."""
    for line in stream:
        requests.put(json.loads(line))
    os._exit(GONE)


def serve(stream: Stream, requests: queue.SimpleQueue[dict[str, Any]]) -> int:
    """Open the device that the first request asks for, tell about it, then run item after item."""
    start = requests.get()
    plan = Plan.from_json(start["plan"])
    manager = PluginManager(disabled=plan.disabled)
    options = DeviceOptions(
        threads=start["threads"],
        cache_dir=Path(plan.cache_dir) if plan.cache_dir else None,
        numerics=plan.numerics,
        sharers=start["sharers"],
    )
    try:
        device = manager.open(plan.device, options)
        suites = plan.load()
    except XinhengError as error:
        _tell(stream, {"failed": {"type": type(error).__name__, "message": str(error)}})
        return 1
    _tell(stream, {"ready": About.of(device, manager, plan.numerics).model_dump()})
    while True:
        request = requests.get()
        if "item" in request:
            outcome = attempt(suites[request["suite"]], Item(**request["item"]), device)
            _tell(stream, {"outcome": outcome.model_dump(exclude_defaults=True), "healthy": healthy(device, outcome)})
        elif "fingerprint" in request:
            _tell(stream, {"seen": seen(device, plan.numerics).model_dump()})
        else:
            break
    for suite in suites:
        suite.close()
    device.close()
    return 0


def attempt(suite: Suite, item: Item, device: Device) -> Outcome:
    """Run an item; what the suite raises is the suite's fault, and memory that runs out the item's."""
    try:
        return suite.run(item.id, device)
    except MemoryError as error:
        verdict, defect, text = Verdict.OUT_OF_MEMORY, "out-of-memory", str(error) or "the host has no memory left"
    except Exception as error:
        verdict, defect, text = Verdict.BAD_CASE, "error", f"the suite failed: {type(error).__name__}: {error}"
    return Outcome(id=item.id, op=item.op, dtype=item.dtype, verdict=verdict, defect=defect, message=text)


def seen(device: Device, numerics: Numerics) -> Seen:
    """The fingerprint of the device, held against what it declares."""
    try:
        found = fingerprint(device, numerics)
    except XinhengError as error:
        return Seen(note=f"no fingerprint could be taken: {error}")
    return Seen(fingerprint=found, contradictions=tuple(contradictions(found, device.capabilities.arithmetic)))


def healthy(device: Device, outcome: Outcome) -> bool:
    """Whether the device still works after an item; one that ran out of memory, or cannot copy, is opened anew."""
    if outcome.verdict is Verdict.OUT_OF_MEMORY:
        return False
    if outcome.defect != "error":
        return True
    numbers = np.arange(8, dtype=np.int32)
    try:
        return bool(np.array_equal(device.download(device.upload(numbers, int32)), numbers))
    except Exception:
        return False


def _tell(stream: Stream, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message, default=str).encode() + b"\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
