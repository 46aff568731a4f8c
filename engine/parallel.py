"""A runner of several ranks: each a subprocess that holds a shard of the model, all given the same batches."""

from __future__ import annotations

import json
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from xinheng.core.errors import DeviceError, XinhengError
from xinheng.core.settings import RuntimeSettings

from .batch import Batch, BatchResult
from .runner import RunnerInfo
from .runner_handle import BATCH, READY, RESULT, RunnerProcess, info_from_json
from .seat import Seat
from .settings import EngineSettings

_SLICE = 0.05  # seconds that one rank is waited for before the others are looked at
_GRACE = 1.0  # seconds that the cause of a failure gets to show after the first rank told of it


class ParallelRunner:
    """`engine.tensor_parallel_size` ranks; the ids of rank 0 count, and the end of one rank is the end of all."""

    info: RunnerInfo

    def __init__(self, path: Path, runtime: RuntimeSettings, settings: EngineSettings) -> None:
        """Start all ranks and wait until each has loaded its shard.

        Raises:
            XinhengError: a rank failed; of the type it failed with, and it names the rank.
        """
        self._timeout, count = settings.runner_timeout, settings.tensor_parallel_size
        self._failure: DeviceError | None = None
        self._pending: deque[int] = deque()
        self._ranks: list[RunnerProcess] = []
        with tempfile.TemporaryDirectory(prefix="xinheng-ranks-") as folder:
            try:
                for rank in range(count):
                    seat = Seat(rank, count, f"file://{folder}/meeting")
                    self._ranks.append(RunnerProcess(path, runtime, settings, seat))
                told = [info_from_json(json.loads(payload)) for payload in self._gather(READY, 1)]
            except BaseException:
                self._end()
                raise
        self.info = joint_info(told)

    def submit(self, batch: Batch) -> None:
        if self._failure is not None:
            raise self._failure
        message, serial = batch.to_bytes(), 0
        for rank, process in enumerate(self._ranks):
            try:
                serial = process.send(BATCH, message)
            except XinhengError as error:
                raise self._failed(rank, error, serial) from error
            except BaseException:
                self._fail("the ranks were ended, since a message to them was interrupted")
                raise
        self._pending.append(serial)

    def collect(self) -> BatchResult:
        if self._failure is not None:
            raise self._failure
        return BatchResult.from_bytes(self._gather(RESULT, self._pending.popleft())[0])

    def discard(self) -> None:
        self._pending.clear()

    def close(self) -> None:
        if self._failure is None:
            for process in self._ranks:
                process.close()
            self._failure = DeviceError("the ranks have been closed")

    def _gather(self, expected: bytes, serial: int) -> list[bytearray]:
        """What each rank answers to a message, by rank."""
        answers: dict[int, bytearray] = {}
        begin = time.monotonic()
        while len(answers) < len(self._ranks):
            for rank in [rank for rank in range(len(self._ranks)) if rank not in answers]:
                try:
                    payload = self._ranks[rank].poll(expected, serial, _SLICE)
                except XinhengError as error:
                    raise self._failed(rank, error, serial) from error
                if payload is not None:
                    answers[rank] = payload
            late = [str(rank) for rank in range(len(self._ranks)) if rank not in answers]
            if late and time.monotonic() - begin > self._timeout:
                which = f"rank{'s' * (len(late) > 1)} {', '.join(late)} of {len(self._ranks)}"
                raise self._fail(f"{which} did not answer for {self._timeout:g} s; all ranks were ended")
        return [answers[rank] for rank in range(len(self._ranks))]

    def _failed(self, rank: int, error: XinhengError, serial: int) -> XinhengError:
        """The error of the rank that failed first, which may not be the one whose error came first; ends all ranks."""
        found = {rank: error}
        begin = time.monotonic()
        while len(found) < len(self._ranks) and time.monotonic() - begin < _GRACE:
            for other in [other for other in range(len(self._ranks)) if other not in found]:
                try:
                    self._ranks[other].poll(RESULT, serial, _SLICE)
                except XinhengError as its:
                    found[other] = its
        # a rank that is gone explains why others could not reach it, and so does one that could not load
        cause = min(found, key=lambda r: (not self._ranks[r].failed, isinstance(found[r], DeviceError)))
        message = f"rank {cause} of {len(self._ranks)}: {found[cause]}"
        failure = self._fail(f"{message}; all ranks were ended")
        return failure if isinstance(found[cause], DeviceError) else type(found[cause])(message)

    def _fail(self, message: str) -> DeviceError:
        """End all ranks; whatever is asked of them from now on gives this error."""
        self._failure = DeviceError(message)
        self._end()
        return self._failure

    def _end(self) -> None:
        for process in self._ranks:
            process.end()


def joint_info(ranks: Sequence[RunnerInfo]) -> RunnerInfo:
    """What all ranks together are: as many cache blocks as every one of them has."""
    first = ranks[0]
    blocks = {name: min(info.blocks[name] for info in ranks) for name in first.blocks}
    devices = ", ".join(dict.fromkeys(info.device for info in ranks))
    summary = f"{len(ranks)} ranks, of which each: {first.receipt_summary}"
    return replace(first, device=devices, blocks=blocks, receipt_summary=summary)
