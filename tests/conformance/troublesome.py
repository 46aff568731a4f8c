"""A suite whose items end as their ids say, for tests of the runner; workers import it by this module's name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from xinheng.core.errors import OutOfMemory
from xinheng.core.hal import Device
from xinheng.core.suite import Item, Outcome, Suite, Verdict

SUITE = "troublesome:TroublesomeSuite"


class TroublesomeSuite(Suite):
    """Items `troublesome/0` to `troublesome/N-1` of option `items`, those of option `ends` (such as "3=crash") apart.

    Option `seconds` is how long each takes; `digest` is "process" for results that no other process makes again; in
    the file of option `pids` each process leaves its id.
    """

    name: ClassVar[str] = "troublesome"

    def items(self) -> Sequence[Item]:
        return [Item(f"troublesome/{i}", "trouble") for i in range(int(self.selection.options.get("items", "10")))]

    def run(self, id: str, device: Device) -> Outcome:
        options = self.selection.options
        if "pids" in options:
            with Path(options["pids"]).open("a") as file:
                file.write(f"{os.getpid()}\n")
        time.sleep(float(options.get("seconds", "0")))
        number = id.partition("/")[2]
        ends = dict(text.split("=") for text in options.get("ends", "").split(",") if text)
        _end(ends.get(number, ""))
        digest = f"{os.getpid()}" if options.get("digest") == "process" else f"bits of {number}"
        return Outcome(id=id, op="trouble", verdict=Verdict.PASS, digest=digest, seconds=time.time())


def _end(how: str) -> None:
    match how:
        case "crash":
            print("about to fall")
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(5)
        case "hang":
            time.sleep(1000)
        case "memory":
            raise MemoryError
        case "device memory":
            raise OutOfMemory("no room")
        case "bug":
            raise ZeroDivisionError("a bug of the suite")
