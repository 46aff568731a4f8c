"""The worker processes of a run: they take items, and what ends one of them is the verdict of the item it had."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from xinheng.core.errors import DeviceError
from xinheng.core.suite import Outcome, Verdict

from .about import About, Seen
from .plan import Place, Plan
from .worker_handle import Died, Failed, Message, Ran, Ready, WorkerHandle

OPENING = 600.0
"""Seconds that opening a device may take, the compilation of its kernels included."""

FINGERPRINT = 120.0
"""Seconds that taking the fingerprint may take."""

Done = Callable[[int, Outcome], None]


class Crew:
    """Workers that are hired as they are needed.

    Args:
        places: the items of the run.
        patience: seconds that an item of each suite may take before it counts as hung.
        size: how many workers there may be; it can be changed as long as only one is there.
        threads: host threads of each.
    """

    def __init__(self, plan: Plan, places: Sequence[Place], patience: Sequence[float], size: int, threads: int) -> None:
        self.size = size
        self._plan, self._places, self._patience, self._threads = plan, places, patience, threads
        self._workers: list[WorkerHandle] = []
        self._selector = selectors.DefaultSelector()
        self._about: About | None = None
        self._seen: Seen | None = None
        self._done: Done = _unexpected

    def open(self) -> About:
        """Open the device in a first worker.

        Raises:
            DeviceError, PluginError: it cannot be opened, or a suite cannot be loaded.
        """
        self._hire()
        while self._about is None:
            self._listen()
        return self._about

    def work(self, indices: Iterable[int], done: Done) -> None:
        """Have items run, by their places; `done` is told of each. Errors are those of `open`."""
        pending, self._done = deque(indices), done
        while pending or any(worker.place is not None for worker in self._workers):
            busy = sum(worker.place is not None for worker in self._workers)
            while len(self._workers) < min(self.size, busy + len(pending)):
                self._hire()
            for worker in self._workers:
                if worker.ready and worker.place is None and pending:
                    index = pending.popleft()
                    place = self._places[index]
                    worker.give(index, place, self._patience[place.suite])
            self._listen()

    def fingerprint(self) -> Seen:
        """What crafted inputs tell of the device, found out by a worker of its own."""
        self.dismiss()
        self._hire()
        self._seen = None
        asked = False
        while self._seen is None:
            (worker,) = self._workers
            if worker.ready and not asked:
                worker.ask_fingerprint(FINGERPRINT)
                asked = True
            self._listen()
        return self._seen

    def dismiss(self) -> None:
        """Let idle workers end, and end those that are busy; later items get new ones."""
        for worker in list(self._workers):
            self._part(worker, at_once=worker.deadline is not None)

    def _hire(self) -> None:
        worker = WorkerHandle(self._plan, self._threads, self.size, OPENING)
        self._workers.append(worker)
        self._selector.register(worker, selectors.EVENT_READ, worker)

    def _part(self, worker: WorkerHandle, at_once: bool = False) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker)
        worker.kill() if at_once else worker.close()

    def _listen(self) -> None:
        """Wait for the next message or the next deadline, and act on it."""
        deadline = min((worker.deadline for worker in self._workers if worker.deadline is not None), default=None)
        wait = None if deadline is None else max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(wait):
            worker: WorkerHandle = key.data
            for message in worker.messages():
                self._act(worker, message)
        now = time.monotonic()
        for worker in [w for w in self._workers if w.deadline is not None and w.deadline < now]:
            self._give_up(worker)

    def _act(self, worker: WorkerHandle, message: Message) -> None:
        match message:
            case Ready(about):
                worker.ready, worker.deadline = True, None
                self._about = self._about or about
            case Failed(error):
                raise error
            case Ran(outcome, healthy):
                index, worker.place, worker.deadline = worker.place, None, None
                assert index is not None
                self._done(index, outcome)
                if not healthy:
                    self._part(worker)
            case Seen():
                self._seen, worker.deadline = message, None
            case Died(how, text):
                self._bury(worker, how, text)

    def _bury(self, worker: WorkerHandle, how: str, text: str) -> None:
        index, seconds = worker.place, worker.seconds
        self._part(worker)
        if not worker.ready:
            raise DeviceError(f"{self._plan.device} cannot be opened: {text}")
        if index is None:
            self._seen = Seen(note=f"no fingerprint could be taken: {text}")
            return
        if how == "SIGKILL":
            # nobody here sent it; the system does when memory runs out
            self._ended(
                index, Verdict.OUT_OF_MEMORY, "out-of-memory", f"killed, as by a lack of memory: {text}", seconds
            )
        else:
            self._ended(index, Verdict.CRASH, "crash", text, seconds)

    def _give_up(self, worker: WorkerHandle) -> None:
        index, seconds = worker.place, worker.seconds
        self._part(worker, at_once=True)
        if not worker.ready:
            raise DeviceError(f"{self._plan.device} cannot be opened: nothing was heard of it for {OPENING:.0f} s")
        if index is None:
            self._seen = Seen(note=f"no fingerprint could be taken within {FINGERPRINT:g} s")
            return
        limit = self._patience[self._places[index].suite]
        self._ended(index, Verdict.HANG, "hang", f"it did not end within {limit:g} s", seconds)

    def _ended(self, index: int, verdict: Verdict, defect: str, text: str, seconds: float) -> None:
        item = self._places[index].item
        self._done(
            index,
            Outcome(
                id=item.id,
                op=item.op,
                dtype=item.dtype,
                verdict=verdict,
                defect=defect,
                message=text,
                seconds=seconds,
            ),
        )


def _unexpected(index: int, outcome: Outcome) -> None:
    raise AssertionError(f"nobody asked for item {index}")
