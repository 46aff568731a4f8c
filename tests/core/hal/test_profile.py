"""Profiles time every step and export a trace."""

from __future__ import annotations

import json

import numpy as np

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.hal import Profile
from xinheng.core.hal.profile import Span
from xinheng.core.ir import Builder, TensorType, sym
from xinheng.core.ir.dtype import float32

from ..toy import Toy


def profiled(runs: int = 2) -> tuple[Profile, Toy]:
    device = Toy("neg", "mul")
    b = Builder()
    x = b.input("x", TensorType(float32, (sym("n"), 2)))
    bound = compile(b.build(ops.neg(ops.mul(ops.neg(x), 2.0))), device).bind({})
    profile = Profile()
    for _ in range(runs):
        bound.run({"x": np.ones((3, 2), np.float32)}, profile=profile)
    return profile, device


def test_every_step_is_timed_and_waited_for() -> None:
    profile, device = profiled()
    assert [span.op for span in profile.spans] == ["neg", "mul", "neg"] * 2
    assert device.waits == 6
    assert all(span.duration >= 0 for span in profile.spans)
    starts = [span.start for span in profile.spans]
    assert starts == sorted(starts)
    assert profile.spans[0].result == "float32[n, 2]"


def test_kernels_are_summed_and_sorted() -> None:
    profile = Profile([Span("a", "k", "t", 0.0, 1.0), Span("b", "k", "t", 1.0, 3.0), Span("a", "k", "t", 4.0, 1.5)])
    assert profile.by_kernel() == [("b", "k", 1, 3.0), ("a", "k", 2, 2.5)]
    assert Profile().by_kernel() == []


def test_a_trace_is_in_the_trace_event_format() -> None:
    profile, _ = profiled(1)
    trace = json.loads(profile.chrome_trace())
    assert trace["displayTimeUnit"] == "ms"
    assert len(trace["traceEvents"]) == 3
    for event, span in zip(trace["traceEvents"], profile.spans, strict=True):
        assert event["ph"] == "X"
        assert (event["name"], event["cat"]) == (span.op, span.kernel)
        assert abs(event["ts"] - span.start * 1e6) < 1
        assert abs(event["dur"] - span.duration * 1e6) < 1
        assert {"pid", "tid"} <= set(event)
        assert event["args"] == {"kernel": f"toy_{span.op}", "result": "float32[n, 2]"}


def test_a_failing_step_leaves_no_span() -> None:
    profile, device = profiled(0)
    node = Builder()
    x = node.input("x", TensorType(float32, (1,)))
    ops.neg(x)
    try:
        with profile.step(node.build().nodes[0], "k", device):
            raise ValueError
    except ValueError:
        pass
    assert profile.spans == []
