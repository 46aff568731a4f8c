"""Simulated devices are found by their word only, and the exact one computes every op within its bound."""

from __future__ import annotations

import pytest

from xinheng.backends.sim import SimBackend
from xinheng.conformance.case import Sample
from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceSpec
from xinheng.core.ir import DTYPES
from xinheng.core.ops import OPSET

from ...samples import EVERY, demand

EXACT = SimBackend().open(DeviceSpec.parse("sim:exact"))


KINDS = ("float32", "float16", "bfloat16", "float64", "float8_e5m2")


def test_probe_lists_emulated_devices() -> None:
    found = SimBackend().probe()
    assert "sim:exact" in [info.spec for info in found]
    assert all(info.emulated for info in found)


def test_automatic_choice_comes_last() -> None:
    assert SimBackend.priority < 0


def test_every_listed_device_opens() -> None:
    for info in SimBackend().probe():
        device = SimBackend().open(DeviceSpec.parse(info.spec))
        assert device.spec == info.spec
        device.close()


@pytest.mark.parametrize("spec", ["sim:0", "sim:exat", "sim:exact@torch"])
def test_unknown_devices_are_refused(spec: str) -> None:
    with pytest.raises(DeviceError, match=f"{spec} does not exist"):
        SimBackend().open(DeviceSpec.parse(spec))


def test_every_op_has_a_kernel() -> None:
    assert EXACT.kernels.ops() == list(OPSET)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in EVERY])
def test_kernel_is_within_its_bound(case: Sample) -> None:
    for kind in KINDS if case.floats else KINDS[:1]:
        demand(case, DTYPES[kind], EXACT, "reference")
