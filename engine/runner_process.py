"""The other end of `SubprocessRunner`: `python -m xinheng.engine.runner_process` serves batches on its standard streams."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from xinheng.core.errors import XinhengError
from xinheng.core.settings import RuntimeSettings

from .batch import Batch
from .loading import load_runner
from .runner_handle import (
    BATCH,
    ERROR,
    READY,
    RESULT,
    STOP,
    info_to_json,
    keep_stdout_for_frames,
    read_frame,
    write_frame,
)
from .settings import EngineSettings


def main() -> int:
    """Load what the first frame asks for, then answer batches until told to stop."""
    frames = keep_stdout_for_frames()
    requests = sys.stdin.buffer
    first = read_frame(requests)
    if first is None:
        return 0
    start = json.loads(first[1])
    try:
        runtime, settings = RuntimeSettings(**start["runtime"]), EngineSettings(**start["engine"])
        runner = load_runner(Path(start["path"]), runtime, settings).runner
    except XinhengError as error:
        write_frame(frames, ERROR, _told(error))
        return 1
    write_frame(frames, READY, json.dumps(info_to_json(runner.info)).encode())
    while (frame := read_frame(requests)) is not None and frame[0] != STOP:
        assert frame[0] == BATCH
        try:
            write_frame(frames, RESULT, runner.run(Batch.from_bytes(frame[1])).to_bytes())
        except XinhengError as error:
            write_frame(frames, ERROR, _told(error))
    runner.close()
    return 0


def _told(error: XinhengError) -> bytes:
    return json.dumps({"type": type(error).__name__, "message": str(error)}).encode()


if __name__ == "__main__":
    raise SystemExit(main())
