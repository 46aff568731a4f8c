"""Device names: digits are silicon, words are emulation."""

from __future__ import annotations

import pytest

from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceSpec


@pytest.mark.parametrize(
    ("text", "spec", "emulated"),
    [
        ("cpu", DeviceSpec("cpu"), False),
        ("auto", DeviceSpec("auto"), False),
        ("npu:0", DeviceSpec("npu", (0,)), False),
        ("npu:0,3,12@torch", DeviceSpec("npu", (0, 3, 12), None, "torch"), False),
        ("sim:exact", DeviceSpec("sim", (), "exact"), True),
        ("npu:910b", DeviceSpec("npu", (), "910b"), True),
        ("sim:heads-first-cache@x1", DeviceSpec("sim", (), "heads-first-cache", "x1"), True),
        ("cpu@torch", DeviceSpec("cpu", (), None, "torch"), False),
    ],
)
def test_names(text: str, spec: DeviceSpec, emulated: bool) -> None:
    assert DeviceSpec.parse(text) == spec
    assert str(spec) == text
    assert spec.emulated == emulated
    assert spec.automatic == (text == "auto")


@pytest.mark.parametrize(
    "text", ["", "CPU", "cpu:", "cpu:-1", "cpu:0,", "cpu:0:1", "cpu@", "0", "cpu:0,a", "a b", "cpu:0\n"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(DeviceError, match=r"is not of the form name\[:ordinals\|word\]\[@runtime\]"):
        DeviceSpec.parse(text)


def test_an_ordinal_is_named_once() -> None:
    with pytest.raises(DeviceError, match="device 'npu:0,0' names one ordinal twice"):
        DeviceSpec.parse("npu:0,0")
