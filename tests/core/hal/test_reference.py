"""The reference device: exact, in place where states are, and careful about what it must not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError
from xinheng.core.hal import Done, ReferenceDevice, StateSpace, WeightPart, WeightSource
from xinheng.core.hal.host import host_memory
from xinheng.core.ir import Builder, TensorType, paged_kv, paged_latent, sequence_state, sym
from xinheng.core.ir.dtype import bfloat16, float16, float32, int32
from xinheng.core.ops import OPSET
from xinheng.core.schemes import scheme

DEVICE = ReferenceDevice()


def test_it_has_every_op() -> None:
    assert DEVICE.kernels.ops() == list(OPSET)


def test_each_result_is_rounded_once() -> None:
    b = Builder()
    x = b.input("x", TensorType(float16, (1,)))
    y = ops.mul(ops.exp(x), 3.0)
    bound = compile(b.build(y), DEVICE).bind({})
    bound.run({"x": np.array([0.3], np.float16)})
    once = np.float64(np.float16(0.3))
    assert bound.outputs["out0"].tolist() == [np.float16(np.float64(np.float16(np.exp(once))) * 3)]


def test_caches_are_written_in_place_and_read_where_told() -> None:
    b = Builder()
    cache = b.state("cache", paged_kv(1, 2, 2, "bfloat16"))
    n = sym("n")
    k, slots = b.input("k", TensorType(float32, (n, 1, 2))), b.input("slots", TensorType(int32, (n,)))
    start, lens = b.input("start", TensorType(int32, (2,))), b.input("lens", TensorType(int32, (1,)))
    table = b.input("table", TensorType(int32, (1, sym("blocks"))))
    written = ops.write_cache(cache, k, k, slots)
    exe = compile(b.build(ops.paged_attention(k, written, start, lens, table, scale=1.0, window=2)[0]), DEVICE)
    pages = exe.allocate_state(StateSpace(4, 2))["cache"]
    assert pages.k.dtype == bfloat16.numpy
    bound = exe.bind({"cache": pages})
    pages.k[0] = pages.v[0] = np.nan
    inputs: dict[str, Any] = {
        "k": np.full((1, 1, 2), 1 + 2.0**-8 + 2.0**-20, np.float32),
        "slots": np.array([5], np.int32),
        "start": np.array([0, 1], np.int32),
        "lens": np.array([6], np.int32),
    }
    for garbage in (-1, 0, 99, 10**9):
        bound.run({**inputs, "table": np.array([[garbage, garbage, 2]], np.int32)})
        out = bound.outputs["out0"]
        assert out.shape == (1, 1, 2)
        assert np.isfinite(out).all()
    assert pages.k.reshape(-1, 2)[5].tolist() == [1 + 2.0**-7] * 2


def test_latents_and_states_of_sequences_are_zero() -> None:
    latent = DEVICE.allocate_state(paged_latent(4, 2, "float16"), StateSpace(3, 8))
    assert [(x.shape, x.dtype.name) for x in latent] == [((3, 8, 4), "float16"), ((3, 8, 2), "float16")]
    (memory,) = DEVICE.allocate_state(sequence_state((2, 5), float32), StateSpace(3, 1))
    assert (memory.shape, memory.dtype, memory.any()) == ((3, 2, 5), np.float32, False)


@pytest.mark.parametrize("state", [paged_latent(4, 2, "q4_0"), paged_kv(1, 32, 32, "q8_0")])
def test_other_states_are_refused(state: Any) -> None:
    with pytest.raises(DeviceError, match="reference holds states of "):
        DEVICE.allocate_state(state, StateSpace(1, 1))


@pytest.mark.parametrize(("name", "kind"), [("float64", np.float64), ("q8_0", np.float32), ("float16", np.float32)])
def test_weights_are_expanded_without_loss(name: str, kind: Any) -> None:
    pack = scheme(name).pack
    assert pack is not None
    packed = pack(np.random.default_rng(0).normal(size=(3, 32)))
    made = DEVICE.prepare(WeightSource("w", (3, 32), (WeightPart(name, 3, lambda: packed),)), ["linear"])
    assert made.dtype == kind
    assert DEVICE.layout_of(made) == (f"expanded to {made.dtype.name}", made.nbytes)
    np.testing.assert_array_equal(made, scheme(name).unpack(packed, np.float64))


def test_memory_and_events() -> None:
    memory = DEVICE.memory()
    assert 0 < memory.available <= memory.total
    assert host_memory().total == memory.total
    assert isinstance(DEVICE.event(), Done)
    DEVICE.event().wait()
    DEVICE.synchronize()
    DEVICE.close()


def test_what_a_plain_device_answers() -> None:
    with pytest.raises(DeviceError, match="device 'reference' has no collective library; run it with one rank"):
        DEVICE.join("tp", 0, 2, "tcp://127.0.0.1:1")
    assert DEVICE.empty((2, 3), bfloat16).shape == (2, 3)
    b = Builder()
    ops.exp(b.input("x", TensorType(float32, (1,))))
    assert DEVICE.supports(b.build().nodes[0])
