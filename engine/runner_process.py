"""The other end of `SubprocessRunner`: a process that answers batches on a socket it was given."""

from __future__ import annotations

import json
import socket
import sys
import traceback
from pathlib import Path

from xinheng.core.errors import XinhengError
from xinheng.core.settings import RuntimeSettings

from .batch import Batch
from .loading import load_runner
from .runner import ModelRunner
from .runner_handle import (
    BATCH,
    ERROR,
    FAILURES,
    READY,
    RESULT,
    ByteStream,
    failure,
    info_to_json,
    read_frame,
    write_frame,
)
from .seat import Seat
from .settings import EngineSettings


def main(connection: int) -> int:
    """Load what the first frame on the socket of descriptor `connection` asks for, then answer batches to its end."""
    with socket.socket(fileno=connection) as ours, ours.makefile("rwb") as stream:
        try:
            return serve(stream)
        except BrokenPipeError:
            return 1  # the engine is gone


def serve(stream: ByteStream) -> int:
    """Answer the frames of a stream."""
    first = read_frame(stream)
    if first is None:
        return 0
    _, serial, payload = first
    try:
        runner = _load(payload)
    except XinhengError as error:
        write_frame(stream, ERROR, serial, _told(error))
        return 1
    write_frame(stream, READY, serial, json.dumps(info_to_json(runner.info)).encode())
    while (frame := read_frame(stream)) is not None:
        kind, serial, payload = frame
        assert kind == BATCH
        try:
            answer = RESULT, runner.run(Batch.from_bytes(payload)).to_bytes()
        except XinhengError as error:
            answer = ERROR, _told(error)
        except FAILURES as error:
            traceback.print_exc()
            answer = ERROR, _told(failure(error))
        write_frame(stream, answer[0], serial, answer[1])
    runner.close()
    return 0


def _load(payload: bytearray) -> ModelRunner:
    start = json.loads(payload)
    runtime, settings = RuntimeSettings(**start["runtime"]), EngineSettings(**start["engine"])
    seat = Seat(**start["seat"]) if start["seat"] else None
    return load_runner(Path(start["path"]), runtime, settings, seat=seat).runner


def _told(error: XinhengError) -> bytes:
    return json.dumps({"type": type(error).__name__, "message": str(error)}).encode()


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
