"""A chip may take the difficult side of several contracts at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from xinheng.backends.sim.cache_layouts import Fractal, HeadsFirst
from xinheng.backends.sim.deferred_device import DeferredDevice
from xinheng.backends.sim.device import SimDevice
from xinheng.backends.sim.profiles import HOST_LISTS, LENGTHS
from xinheng.backends.sim.recording_device import RECORDS, RecordingBound, RecordingDevice
from xinheng.backends.sim.static_device import StaticDevice
from xinheng.core.hal import BucketedExecutable, Profile
from xinheng.core.ir.dtype import int32

from .attention_graph import SPACE, answer, bound, built, open_device, step

COMBINATIONS: dict[str, Callable[[], SimDevice]] = {
    "deferred, fractal, host lists": lambda: DeferredDevice("sim:a", "a", layout=Fractal, host=HOST_LISTS),
    "static, heads first, host lists": lambda: StaticDevice("sim:b", "b", layout=HeadsFirst, host=HOST_LISTS),
    "recording, static": lambda: RecordingDevice("sim:c", "c", host=LENGTHS, dynamic_shapes=False),
}
STEPS = [(5, 3), (1,), (4, 4, 2), (12,), (5, 3)]


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations_give_the_same(name: str) -> None:
    device, exact = COMBINATIONS[name](), open_device("exact")
    layer, reference = bound(device), bound(exact)
    for seed, lengths in enumerate(STEPS):
        inputs = step(*lengths, seed=seed)
        np.testing.assert_array_equal(answer(layer, device, inputs), answer(reference, exact, inputs))


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_host_may_reuse_its_lists_at_once(name: str) -> None:
    device, inputs = COMBINATIONS[name](), step(5, 3)
    want = answer(bound(open_device("exact")), open_device("exact"), step(5, 3))
    layer = bound(device)
    layer.run(inputs)
    for array in inputs.values():
        array[...] = 0
    np.testing.assert_array_equal(device.download(layer.outputs["out"]), want)


def test_lists_beside_buffers_are_padded_like_them() -> None:
    device, inputs = COMBINATIONS["static, heads first, host lists"](), step(5, 3, 2)
    want = answer(bound(open_device("exact")), open_device("exact"), inputs)
    lists = {name: inputs[name] for name in ("query_start", "seq_lens")}
    layer = bound(device)
    layer.run(inputs | {name: device.upload(array, int32) for name, array in lists.items()}, host=lists).wait()
    np.testing.assert_array_equal(device.download(layer.outputs["out"]), want)


def test_records_under_buckets_are_few() -> None:
    executable = built(COMBINATIONS["recording, static"]())
    assert isinstance(executable, BucketedExecutable)
    layer = executable.bind(executable.allocate_state(SPACE))
    for tokens in range(1, 13):
        layer.run(step(tokens)).wait()
    assert executable.compiled == 5 + 1  # 1, 2, 4, 8 and 12 tokens of one sequence, and the largest sizes


def test_the_oldest_record_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("graph-capture")
    layer = bound(device)
    assert isinstance(layer, RecordingBound)
    monkeypatch.setattr("xinheng.backends.sim.recording_device.RECORDS", 2)
    for tokens in (1, 2, 1, 3, 1):
        layer.run(step(tokens)).wait()
    assert RECORDS == 64
    assert [dict(key)["tokens"] for key in layer._records] == [3, 1]


@pytest.mark.parametrize("word", ["graph-capture", "async", "static-buckets"])
def test_a_profiled_run_is_the_same_run(word: str) -> None:
    device = open_device(word)
    layer, profile = bound(device), Profile()
    layer.run(step(5, 3), profile=profile).wait()
    want = answer(bound(open_device("exact")), open_device("exact"), step(5, 3))
    np.testing.assert_array_equal(device.download(layer.outputs["out"]), want)
    assert [span.op for span in profile.spans] == ["write_cache", "paged_attention"]
