"""What the Ascend backend opens, and what it says about everything that it cannot."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from xinheng.backends.ascend import AscendBackend
from xinheng.core.errors import DeviceError
from xinheng.core.hal import Device, DeviceSpec, StateSpace, WeightPart, WeightSource
from xinheng.core.ir.dtype import bfloat16, float8_e5m2, float64, int32
from xinheng.core.ir.types import paged_kv, sequence_state
from xinheng.core.plugins import PluginManager
from xinheng.core.schemes import scheme


@pytest.fixture(scope="module")
def device() -> Device:
    return AscendBackend().open(DeviceSpec.parse("ascend:cpu@mindspore"))


def test_importing_the_backend_imports_no_framework() -> None:
    code = """
import sys
from xinheng.backends.ascend import AscendBackend
backend = AscendBackend()
print(backend.probe(), len(backend.diagnose()) > 0, {"torch", "mindspore", "torch_npu"} & sys.modules.keys())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[] True set()"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ascend", ["ascend (runtime torch_npu)", "use ascend:cpu@mindspore"]),
        ("ascend:0", ["runtime torch_npu", "no Huawei Ascend card with a driver", "CANN", "set_env.sh"]),
        ("ascend:0@mindspore", ["cards by torch_npu only", "ascend:cpu@mindspore"]),
        ("ascend:910d", ["the emulations ascend:310p, ascend:910a, ascend:910b"]),
        ("ascend:910b@mindspore", ["does not exist"]),
        ("ascend:cpu@torch_npu", ["ascend:cpu@torch_npu does not exist"]),
        ("ascend:cpu@mindspor", ["no runtime 'mindspor', did you mean 'mindspore'?"]),
    ],
)
def test_what_cannot_be_opened_says_why_and_what_next(spec: str, words: list[str]) -> None:
    with pytest.raises(DeviceError) as caught:
        AscendBackend().open(DeviceSpec.parse(spec))
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_manager_tells_the_same() -> None:
    manager = PluginManager()
    with pytest.raises(DeviceError, match=r"backend 'ascend' has no device: .*driver.*CANN.*torch_npu"):
        manager.open("ascend:0")
    (record,) = [record for record in manager.records() if record.name == "ascend"]
    assert (record.status, record.devices) == ("no device", ())


def test_without_mindspore_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from xinheng.backends.ascend import backend

    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"needs mindspore.*pip install 'xinheng\[mindspore\]'"):
        AscendBackend().open(DeviceSpec.parse("ascend:cpu@mindspore"))


def test_the_device_is_named_by_its_whole_spec(device: Device) -> None:
    assert device.spec == AscendBackend().open(DeviceSpec.parse("ascend:cpu")).spec == "ascend:cpu@mindspore"
    assert device.name.startswith("MindSpore 2.")
    assert device.memory().total > 0
    device.synchronize()
    device.event().wait()


def test_a_process_has_one_number_of_threads() -> None:
    code = """
from xinheng.backends.ascend import AscendBackend
from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceOptions, DeviceSpec
for threads in (1, 1, 2):
    try:
        print(AscendBackend().open(DeviceSpec.parse("ascend:cpu@mindspore"), DeviceOptions(threads=threads)).spec)
    except DeviceError as error:
        print(str(error)[:20])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["ascend:cpu@mindspore"] * 2 + ["runtime.threads is 2"]


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_come_back_as_they_were(device: Device, shape: tuple[int, ...]) -> None:
    for kind in device.capabilities.dtypes:
        array = np.ones(shape).astype(kind.numpy)
        buffer = device.upload(array, kind)
        assert device.shape(buffer) == shape
        array[...] = 0
        back = device.download(buffer)
        assert back.dtype == kind.numpy and back.shape == shape
        assert np.all(back.astype(np.float64) == 1)
        back[...] = 0
        assert np.all(device.download(buffer).astype(np.float64) == 1)


def test_uploading_rounds_once(device: Device) -> None:
    trap = np.array([1 + 2.0**-8 + 2.0**-40])
    assert float(device.download(device.upload(trap, bfloat16))[0]) == 1 + 2.0**-7


def test_what_it_has_no_room_for_is_refused(device: Device) -> None:
    for kind in (float64, float8_e5m2):
        with pytest.raises(DeviceError, match=f"no dtype {kind}"):
            device.upload(np.zeros(2), kind)
    for state in (paged_kv(1, 4, 4, int32.name), sequence_state((4,), int32)):
        with pytest.raises(DeviceError, match=rf"no {state.kind} states of int32; set engine\.cache_dtype"):
            device.allocate_state(state, StateSpace(2, 16))


PACKED = ("q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "int8_row", "int4_g32", "int4_g64_bf16", "int8_g128")


def random_source(coding: str, rows: int = 5, columns: int = 512) -> WeightSource:
    """Random bytes of a scheme whose factors are finite."""
    form, rng = scheme(coding), np.random.default_rng(3)
    if form.pack is not None:
        packed = form.pack(rng.normal(size=(rows, columns)).astype(np.float32))
    else:
        packed = rng.integers(0, 120, (rows, form.row_bytes(columns))).astype(np.uint8)
    return WeightSource("w", (rows, columns), (WeightPart(coding, rows, lambda: packed),))


@pytest.mark.parametrize("coding", PACKED)
def test_packed_weights_take_their_stored_bytes_and_decode_to_the_same_bits(device: Device, coding: str) -> None:
    source = random_source(coding)
    held = device.prepare(source, ["linear"])
    assert device.layout_of(held) == ("as stored", source.nbytes)
    np.testing.assert_array_equal(held.values().asnumpy(), source.unpack())


@pytest.mark.parametrize("coding", ["q5_0", "mxfp4"])
def test_the_receipt_tells_which_weights_are_expanded(device: Device, coding: str) -> None:
    source = random_source(coding)
    layout = f"{coding} expanded to float32"
    assert device.layout_of(device.prepare(source, ["linear"])) == (layout, 5 * 512 * 4)
