"""Commands of programs and the Python kernels they stand for give the same bits: conformance judges the former only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from xinheng.backends.cpu.commands import ENCODERS
from xinheng.backends.cpu.device import CPUDevice
from xinheng.backends.cpu.executable import CPUExecutable
from xinheng.conformance.case import Case
from xinheng.conformance.cases import SAMPLES
from xinheng.conformance.checks import difference
from xinheng.conformance.trial import Trial
from xinheng.core.hal import DeviceOptions, Executable, Numerics, Placement
from xinheng.core.ir.graph import Graph

SAMPLED = 12
"""Cases of each op."""
OPS = sorted(op for op in SAMPLES if f"native_{op}" in ENCODERS)


class ByKernel(CPUDevice):
    """The CPU without programs."""

    def compile(self, graph: Graph, placement: Placement, bounds: Mapping[str, int]) -> Executable:
        made = super().compile(graph, placement, bounds)
        assert isinstance(made, CPUExecutable)
        made.program = None
        return made


@pytest.fixture(scope="module", params=["strict", "fast"])
def devices(request: pytest.FixtureRequest) -> Iterator[tuple[CPUDevice, CPUDevice]]:
    """With programs and without."""
    options = DeviceOptions(numerics=Numerics(request.param))
    made = CPUDevice(options), ByKernel(options)
    if made[0].notes():
        pytest.skip("no C++ compiler on this machine: there are no native programs")
    yield made
    for device in made:
        device.close()


def sampled(op: str) -> list[Case]:
    """Cases of an op, spread over all that it has."""
    every = [case for sample in SAMPLES[op] for case in sample.cases()]
    return every[:: -(-len(every) // SAMPLED)]


@pytest.mark.parametrize("op", OPS)
def test_a_command_and_its_kernel_agree(devices: tuple[CPUDevice, CPUDevice], op: str) -> None:
    commands = 0
    for case in sampled(op):
        trials = [Trial(case.call, device, device_numerics(device)) for device in devices]
        program = trials[0].executable.program  # type: ignore[attr-defined]
        commands += program is not None
        if program is not None:
            made, expected = (trial.run() for trial in trials)
            text = difference(made, expected)
            assert text is None, f"{case.id}: {text}"
    assert commands, f"none of the cases of {op} became a program"


def device_numerics(device: CPUDevice) -> Numerics:
    """The mode a device was opened in, by what it declares."""
    arithmetic = device.capabilities.arithmetic
    return Numerics("fast" if arithmetic is not None and arithmetic.programs else "strict")
