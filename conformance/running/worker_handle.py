"""A worker process as the runner sees it: requests go in, messages come out, and its end is a message too."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from xinheng.core import errors
from xinheng.core.errors import XinhengError
from xinheng.core.suite import Outcome

from .about import About, Seen
from .plan import Place, Plan

GRACE = 5.0
"""Seconds that an idle worker gets to end by itself."""
LAST = 6
"""Lines of what a worker printed that a message repeats when it crashed."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Ready:
    """The device is open."""

    about: About


@dataclass(frozen=True, slots=True)
class Failed:
    """The device could not be opened, or a suite not loaded."""

    error: XinhengError


@dataclass(frozen=True, slots=True)
class Ran:
    """An item is done; a device that is not healthy has to be opened anew."""

    outcome: Outcome
    healthy: bool


@dataclass(frozen=True, slots=True)
class Died:
    """The process has ended: by which signal or with which status, and what it printed last."""

    signal: str
    text: str


Message = Ready | Failed | Ran | Seen | Died


class WorkerHandle:
    """A worker process.

    Attributes:
        place: where in the run the item is that it has now; None if it has none.
        ready: it has opened the device.
        deadline: when it has to have answered, by `time.monotonic`; None while nothing is asked of it.
    """

    def __init__(self, plan: Plan, threads: int, sharers: int, patience: float) -> None:
        self.place: int | None = None
        self.ready = False
        self._expect(patience)
        self._rest = b""
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = _start(theirs.fileno(), threads, self._printed.fileno())
        self._send({"plan": plan.to_json(), "threads": threads, "sharers": sharers})

    def fileno(self) -> int:
        """For selectors."""
        return self._ours.fileno()

    def give(self, index: int, place: Place, patience: float) -> None:
        """Let it run an item, which may take so many seconds."""
        self.place = index
        self._expect(patience)
        self._send({"suite": place.suite, "item": asdict(place.item)})

    def ask_fingerprint(self, patience: float) -> None:
        """Let it take the fingerprint of the device."""
        self._expect(patience)
        self._send({"fingerprint": True})

    @property
    def seconds(self) -> float:
        """How long it has been busy with what it does."""
        return time.monotonic() - self._since

    def _expect(self, patience: float) -> None:
        self._since = time.monotonic()
        self.deadline: float | None = self._since + patience

    def messages(self) -> Iterator[Message]:
        """What it has said since the last time; to be asked when its descriptor is readable."""
        try:
            data = self._ours.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            yield self._died()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield _message(json.loads(line))

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Let it end, and end it if it does not."""
        self._ours.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed.close()

    def _send(self, request: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # its end is read as a message
            self._ours.sendall(json.dumps(request).encode() + b"\n")

    def _died(self) -> Died:
        try:
            status = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._printed.seek(0)
        last = _last_words(self._printed.read().decode(errors="replace"))
        name = signal.Signals(-status).name if status < 0 else ""
        how = f"was ended by {name}" if name else f"exited with status {status}"
        return Died(name, f"its process {how}; it printed: {last}" if last else f"its process {how}")


def _start(connection: int, threads: int, output: int) -> subprocess.Popen[bytes]:
    """The process, with this one's modules, deaf to ^C, its libraries held to so many threads."""
    environment = {**dict.fromkeys(_THREADS, str(threads)), "OMP_WAIT_POLICY": "passive", **os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "xinheng.conformance.running.worker", str(connection)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(connection,),
        env=environment,
        process_group=0,
    )


def _last_words(printed: str) -> str:
    """The end of what a process printed, or the beginning of what Python says of a fatal error: the innermost calls."""
    lines = [line.strip() for line in printed.splitlines() if line.strip() and "thread 0x" not in line.lower()]
    fatal = [i for i, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return " | ".join(lines[fatal[-1] :][:LAST] if fatal else lines[-LAST:])


def _message(data: dict[str, Any]) -> Message:
    if "ready" in data:
        return Ready(About.model_validate(data["ready"]))
    if "failed" in data:
        kind: type[XinhengError] = getattr(errors, data["failed"]["type"], XinhengError)
        return Failed(kind(data["failed"]["message"]))
    if "seen" in data:
        return Seen.model_validate(data["seen"])
    return Ran(Outcome.model_validate(data["outcome"]), data["healthy"])
