"""Times of single kernels in a run, for `explain --time` and a trace viewer."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..ir.graph import Node
from .device import Device


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel call: start and duration in seconds of a monotonic clock.

    `in_program` says that it was one of several in a program that the host starts as a whole.
    """

    op: str
    kernel: str
    result: str
    start: float
    duration: float
    in_program: bool = False


@dataclass(slots=True)
class Profile:
    """The kernel calls of one or more runs, in order."""

    spans: list[Span] = field(default_factory=list)

    @contextmanager
    def step(self, node: Node, kernel: str, device: Device) -> Iterator[None]:
        """Time one step, including the wait for the device."""
        start = time.perf_counter()
        yield
        device.synchronize()
        result = str(node.results[0].type)
        self.spans.append(Span(node.op.name, kernel, result, start, time.perf_counter() - start))

    @property
    def seconds(self) -> float:
        """The time inside kernels."""
        return sum(span.duration for span in self.spans)

    @property
    def host_calls(self) -> int:
        """Kernels that the host called one by one."""
        return sum(not span.in_program for span in self.spans)

    def by_kernel(self) -> list[tuple[str, str, int, float]]:
        """(op, kernel, calls, seconds), the most expensive first."""
        calls: dict[tuple[str, str], int] = defaultdict(int)
        seconds: dict[tuple[str, str], float] = defaultdict(float)
        for span in self.spans:
            calls[span.op, span.kernel] += 1
            seconds[span.op, span.kernel] += span.duration
        rows = [(op, kernel, calls[op, kernel], seconds[op, kernel]) for op, kernel in calls]
        return sorted(rows, key=lambda row: -row[3])

    def chrome_trace(self) -> str:
        """The spans in the Trace Event Format that chrome://tracing and Perfetto read."""
        return chrome_trace({"": self})


def chrome_trace(profiles: Mapping[str, Profile]) -> str:
    """Several profiles in the same format, each as a thread of its name."""
    events: list[dict[str, Any]] = []
    for thread, (name, profile) in enumerate(profiles.items()):
        place = {"pid": 0, "tid": thread}
        if name:
            events.append({"name": "thread_name", "ph": "M", **place, "args": {"name": name}})
        for span in profile.spans:
            times = {"ts": span.start * 1e6, "dur": span.duration * 1e6}
            told = {"kernel": span.kernel, "result": span.result}
            events.append({"name": span.op, "cat": span.kernel, "ph": "X", **times, **place, "args": told})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
