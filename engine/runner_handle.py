"""How the engine talks to a runner, wherever it runs: one batch in, one result out, the same messages everywhere."""

from __future__ import annotations

import json
import os
import selectors
import struct
import subprocess
import sys
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Protocol

from xinheng.core import errors
from xinheng.core.errors import DeviceError, XinhengError
from xinheng.core.ir.types import StateType
from xinheng.core.settings import RuntimeSettings

from .batch import Batch, BatchResult
from .kv_cache import CacheGroup
from .runner import ModelRunner, RunnerInfo
from .settings import EngineSettings

READY, BATCH, RESULT, ERROR, STOP = b"I", b"B", b"R", b"E", b"S"
_FRAME = struct.Struct("<cQ")


class RunnerHandle(Protocol):
    """A runner as the engine sees it. Batches are answered in the order they were submitted."""

    info: RunnerInfo

    def submit(self, batch: Batch) -> None:
        """Start a batch."""

    def collect(self) -> BatchResult:
        """Wait for the oldest batch that was not collected yet; XinhengError if it failed."""

    def close(self) -> None:
        """End the runner and free what it holds."""


class InProcessRunner:
    """A runner in this process."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.info = runner, runner.info
        self._done: deque[BatchResult] = deque()

    def submit(self, batch: Batch) -> None:
        self._done.append(self.runner.run(batch))

    def collect(self) -> BatchResult:
        return self._done.popleft()

    def close(self) -> None:
        self.runner.close()


class SubprocessRunner:
    """A runner in a process of its own, which may hang or die without taking the engine with it."""

    def __init__(self, path: Path, runtime: RuntimeSettings, settings: EngineSettings) -> None:
        """Start the process and wait until the model is loaded; its errors are raised here as they were there."""
        self._timeout = settings.runner_timeout
        command = [sys.executable, "-m", "xinheng.engine.runner_process"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        self._pending = 0
        start = {
            "path": str(path),
            "runtime": runtime.model_dump(mode="json"),
            "engine": settings.model_dump(mode="json"),
        }
        try:
            self._send(READY, json.dumps(start).encode())
            self.info = info_from_json(json.loads(self._receive(READY)))
        except BaseException:
            self.close()
            raise

    def submit(self, batch: Batch) -> None:
        self._send(BATCH, batch.to_bytes())

    def collect(self) -> BatchResult:
        return BatchResult.from_bytes(self._receive(RESULT))

    def _send(self, kind: bytes, payload: bytes) -> None:
        try:
            write_frame(self._to, kind, payload)
        except BrokenPipeError:
            raise self._died() from None

    def _receive(self, expected: bytes) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            if not selector.select(self._timeout):
                self.close()
                raise DeviceError(f"the runner process has not answered for {self._timeout:g} s and was ended")
        frame = read_frame(self._from)
        if frame is None:
            raise self._died()
        kind, payload = frame
        if kind == ERROR:
            told = json.loads(payload)
            raise getattr(errors, told["type"], XinhengError)(told["message"])
        if kind != expected:
            raise XinhengError(f"the runner process sent a {kind!r} message where {expected!r} was due")
        return payload

    def _died(self) -> DeviceError:
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"status {code}"
        return DeviceError(f"the runner process ended with {how}; its last words are on standard error")

    def close(self) -> None:
        if self._process.poll() is None:
            try:
                write_frame(self._to, STOP, b"")
                self._to.close()
                self._process.wait(5)
            except (OSError, ValueError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
        self._to.close()
        self._from.close()


def write_frame(stream: IO[bytes], kind: bytes, payload: bytes) -> None:
    """One message: kind, length, payload."""
    stream.write(_FRAME.pack(kind, len(payload)))
    stream.write(payload)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The next message, or None at the end of the stream."""
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    kind, length = _FRAME.unpack(head)
    payload = stream.read(length)
    return (kind, payload) if len(payload) == length else None


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


def keep_stdout_for_frames() -> IO[bytes]:
    """Give standard output to the frames alone: whatever else prints goes to standard error."""
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return frames
