"""How the engine talks to a runner, wherever it runs: one batch in, one result out, the same messages everywhere."""

from __future__ import annotations

import json
import math
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from xinheng.core import errors
from xinheng.core.errors import DeviceError, XinhengError
from xinheng.core.ir.types import StateType
from xinheng.core.settings import RuntimeSettings

from .batch import Batch, BatchResult
from .kv_cache import CacheGroup
from .runner import ModelRunner, RunnerInfo
from .seat import Seat
from .settings import EngineSettings

READY, BATCH, RESULT, ERROR = b"I", b"B", b"R", b"E"
FAILURES = (RuntimeError, MemoryError, OSError)
"""What kernels and frameworks raise when a device fails; everything else is a bug of ours and stays what it is."""

_FRAME = struct.Struct("<cQQ")
_GRACE = 5.0  # seconds that an idle runner process gets to end by itself


class ByteStream(Protocol):
    """What frames are written to and read from."""

    def read(self, size: int, /) -> bytes: ...
    def write(self, data: bytes, /) -> object: ...
    def flush(self) -> None: ...


Frame = tuple[bytes, int, bytearray]
"""Kind, number of the batch it belongs to, payload."""


class RunnerHandle(Protocol):
    """A runner as the engine sees it. Batches are answered in the order they were submitted."""

    info: RunnerInfo

    def submit(self, batch: Batch) -> None:
        """Start a batch."""

    def collect(self) -> BatchResult:
        """Wait for the oldest batch that was not collected yet; XinhengError if it failed."""
        ...

    def discard(self) -> None:
        """Forget the batches that were submitted and not collected."""

    def close(self) -> None:
        """End the runner and free what it holds. A second call does nothing."""


class InProcessRunner:
    """A runner in this process."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.info = runner, runner.info
        self._done: deque[BatchResult] = deque()

    def submit(self, batch: Batch) -> None:
        try:
            self._done.append(self.runner.run(batch))
        except FAILURES as error:
            raise failure(error) from error

    def collect(self) -> BatchResult:
        return self._done.popleft()

    def discard(self) -> None:
        self._done.clear()

    def close(self) -> None:
        self.runner.close()


class RunnerProcess:
    """A process that loads a model, or a shard of it, and then answers batches."""

    def __init__(
        self, path: Path, runtime: RuntimeSettings, settings: EngineSettings, seat: Seat | None = None
    ) -> None:
        """Start the process and tell it what to load; its answer to message 1 comes when it has."""
        self._timeout = settings.runner_timeout
        self._failure: DeviceError | None = None
        self._serial = self._answered = 0
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = _start(theirs.fileno())
        seconds, rest = divmod(self._timeout, 1)
        limit = struct.pack("@ll", int(seconds), math.ceil(rest * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._reader = threading.Thread(target=self._read, name="xinheng-runner-reader", daemon=True)
        self._reader.start()
        start = {
            "path": str(path),
            "runtime": runtime.model_dump(mode="json"),
            "engine": settings.model_dump(mode="json"),
            "seat": asdict(seat) if seat else None,
        }
        try:
            self.send(READY, json.dumps(start).encode())
        except BaseException:
            self.end()
            raise

    @property
    def failed(self) -> bool:
        """Whether the process is gone."""
        return self._failure is not None

    def _read(self) -> None:
        """A thread, since an interrupt of the main thread must not lose half a message."""
        with self._socket.makefile("rb") as stream:
            try:
                while (frame := read_frame(stream)) is not None:
                    self._frames.put(frame)
            except OSError:
                pass  # the socket is gone: the same as the end of the stream
        self._frames.put(None)

    def send(self, kind: bytes, payload: bytes) -> int:
        """Send a message and return its number; DeviceError if the process does not take it."""
        if self._failure is not None:
            raise self._failure
        self._serial += 1
        try:
            self._socket.sendall(_FRAME.pack(kind, self._serial, len(payload)) + payload)
        except BlockingIOError:
            raise self._fail(f"the runner process has taken no message for {self._timeout:g} s and was ended") from None
        except OSError:
            raise self._died() from None
        except BaseException:
            self._fail("the runner process was ended, since a message to it was interrupted")
            raise
        return self._serial

    def _receive(self, expected: bytes, serial: int) -> bytearray:
        payload = self.poll(expected, serial, self._timeout)
        if payload is None:
            raise self._fail(f"the runner process has not answered for {self._timeout:g} s and was ended")
        return payload

    def poll(self, expected: bytes, serial: int, timeout: float) -> bytearray | None:
        """The answer to a message, None if it has not come in time."""
        if self._failure is not None:
            raise self._failure
        while True:
            try:
                frame = self._frames.get(timeout=timeout)
            except queue.Empty:
                return None
            if frame is None:
                raise self._died()
            kind, self._answered, payload = frame
            if self._answered == serial:
                break
        if kind == ERROR:
            raise _error(json.loads(payload))
        if kind != expected:
            raise self._fail(f"the runner process sent a {kind!r} message where {expected!r} was due")
        return payload

    def _died(self) -> DeviceError:
        try:
            code = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return self._fail("the runner process closed its connection and was ended")
        how = f"signal {-code}" if code < 0 else f"status {code}"
        return self._fail(f"the runner process ended with {how}; its last words are on standard error")

    def _fail(self, message: str) -> DeviceError:
        """End the process; whatever is asked of it from now on gives this error."""
        self._failure = DeviceError(message)
        self.end()
        return self._failure

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        with self._socket, suppress(OSError):  # it may be gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()

    def close(self) -> None:
        if self._failure is not None:
            return
        if self._answered == self._serial:
            self._socket.shutdown(socket.SHUT_WR)  # an idle process ends when its input does
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)
        self._fail("the runner process has been closed")


class SubprocessRunner(RunnerProcess):
    """A runner in a process of its own, which may hang or die without taking the engine with it.

    What was asked of a process that is gone fails with a DeviceError; the next batch starts another one.
    """

    def __init__(self, path: Path, runtime: RuntimeSettings, settings: EngineSettings) -> None:
        """Start the process and wait until the model is loaded; its errors are raised here as they were there."""
        self._arguments = path, runtime, settings
        self._pending: deque[int] = deque()
        self._closed = False
        self.info = self._loaded()

    def _loaded(self) -> RunnerInfo:
        """Start a process and wait for what it says about the model."""
        RunnerProcess.__init__(self, *self._arguments)
        try:
            return info_from_json(json.loads(self._receive(READY, self._serial)))
        except BaseException:
            self.end()
            raise

    def _restart(self) -> None:
        """Replace a process that is gone; DeviceError if the new one has less room for the cache than it had."""
        info = self._loaded()
        short = next((name for name, count in self.info.blocks.items() if info.blocks[name] < count), None)
        if short is not None:
            raise self._fail(
                f"the runner process was started again and has room for {info.blocks[short]} cache blocks, not "
                f"{self.info.blocks[short]}; set engine.cache_memory to what is sure to be free"
            )

    def submit(self, batch: Batch) -> None:
        if self.failed and not self._closed:
            self._restart()
        self._pending.append(self.send(BATCH, batch.to_bytes()))

    def collect(self) -> BatchResult:
        return BatchResult.from_bytes(self._receive(RESULT, self._pending.popleft()))

    def discard(self) -> None:
        self._pending.clear()

    def close(self) -> None:
        self._closed = True
        super().close()


def _start(connection: int) -> subprocess.Popen[bytes]:
    """The process, with this one's modules, deaf to ^C; what it prints goes to standard error."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "xinheng.engine.runner_process", str(connection)],
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=(connection,),
        env=environment,
        process_group=0,
    )


def failure(error: BaseException) -> DeviceError:
    """One of `FAILURES` as an error of ours."""
    return DeviceError(f"the device failed: {type(error).__name__}: {error}")


def _error(told: dict[str, str]) -> XinhengError:
    kind: Callable[[str], XinhengError] = getattr(errors, told["type"], XinhengError)
    return kind(told["message"])


def write_frame(stream: ByteStream, kind: bytes, serial: int, payload: bytes) -> None:
    """One message: kind, number, length, payload."""
    stream.write(_FRAME.pack(kind, serial, len(payload)))
    stream.write(payload)
    stream.flush()


def read_frame(stream: ByteStream) -> Frame | None:
    """The next message, or None at the end of the stream."""
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    kind, serial, length = _FRAME.unpack(head)
    payload = bytearray(stream.read(length))
    return (kind, serial, payload) if len(payload) == length else None


def info_to_json(info: RunnerInfo) -> dict[str, Any]:
    """Plain data that `info_from_json` reads."""
    return asdict(info)


def info_from_json(data: dict[str, Any]) -> RunnerInfo:
    """The inverse of `info_to_json`, also after a trip through JSON."""

    def fixed(value: Any) -> Any:
        return tuple(map(fixed, value)) if isinstance(value, list) else value

    groups = tuple(
        CacheGroup(g["name"], tuple(g["layers"]), StateType(g["state"]["kind"], fixed(g["state"]["spec"])), g["window"])
        for g in data["groups"]
    )
    return RunnerInfo(**{**data, "groups": groups, "stop_ids": tuple(data["stop_ids"])})
