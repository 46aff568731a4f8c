"""A call made ready on a device, to be run as often as a check needs; caches in blocks that the device takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.compiler import compile
from xinheng.core.hal import Device, Event, Numerics, Profile, StateSpace
from xinheng.core.ir import StateType, TensorType
from xinheng.core.ir.dtype import cast_to
from xinheng.core.receipt import Receipt

from .call import Call
from .mirror import connect
from .operands import stored
from .paging import repaged, restored


class Trial:
    """The executable of one call with its weights and states in place.

    Raises:
        UnsupportedOp: the device has neither a kernel for the op nor, on the way of its decomposition, for all parts.
        DeviceError: compiling it, or preparing a weight or a state, failed.
    """

    def __init__(self, call: Call, device: Device, numerics: Numerics | None = None) -> None:
        self.call, self.device = call, device
        self.given = repaged(call, device.capabilities)
        connect(device, call.attributes)
        self.executable = compile(self.given.graph(), device, numerics=numerics)
        self._states = call.types_of(StateType)
        self._writes = any(isinstance(kind, StateType) for kind in call.result_types)
        self.buffers = {source.name: self.executable.prepare(source.name, source) for source in call.sources}
        for name, pages in self.given.feeds(StateType).items():
            space = StateSpace(*(*pages[0].shape, 1)[:2])
            self.buffers[name] = self.executable.allocate_state(space)[name]
        self.bound = self.executable.bind(self.buffers)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that compute it, as "kernel of op" where its op was decomposed."""
        lines = self.executable.receipt.lines
        return tuple(k.kernel if k.op == self.call.op else f"{k.kernel} of {k.op}" for k in lines)

    @property
    def decomposed(self) -> bool:
        """The device has no kernel for the op itself."""
        return bool(self.executable.receipt.decomposed)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The tensor inputs in their dtypes."""
        kinds = self.given.types_of(TensorType)
        with np.errstate(all="ignore"):
            return {name: cast_to(x, kinds[name].dtype) for name, x in self.given.feeds(TensorType).items()}

    def reset(self) -> None:
        """Give states the contents they have before the call."""
        for name, pages in self.given.feeds(StateType).items():
            self.device.write_state(self.buffers[name], self._states[name], stored(self._states[name], pages))

    def load(self, call: Call) -> None:
        """Take the numbers of another call of the same types from now on; weights stay what they are."""
        self.call, self.given = call, repaged(call, self.device.capabilities)

    def upload(self) -> dict[str, Any]:
        """The tensor inputs as buffers of their own; those of a dtype that the device lacks, as arrays."""
        kinds, known = self.given.types_of(TensorType), self.device.capabilities.dtypes
        return {
            name: self.device.upload(np.array(array), kinds[name].dtype) if kinds[name].dtype in known else array
            for name, array in self.arrays().items()
        }

    def start(self, inputs: Mapping[str, Any] | None = None, profile: Profile | None = None) -> Event:
        """Reset the states and start a run, of the arrays of the call or of buffers with the same numbers."""
        self.reset()
        arrays = self.arrays()
        return self.bound.run(arrays if inputs is None else inputs, profile=profile, host=arrays)

    def results(self) -> tuple[Any, ...]:
        """What the last run made as arrays, in order, a state as its pages."""
        made = tuple(self.device.download(buffer) for buffer in self.bound.outputs.values())
        return self.finished(made)

    def finished(self, made: tuple[Any, ...]) -> tuple[Any, ...]:
        """Results with the states behind them, laid out as the call wants them."""
        return restored(self.call, (*made, *self.states()) if self._writes else made)

    def run(self, inputs: Mapping[str, Any] | None = None, profile: Profile | None = None) -> tuple[Any, ...]:
        """Run once to the end; the results are as `results` gives them."""
        self.start(inputs, profile).wait()
        return self.results()

    def states(self) -> tuple[Any, ...]:
        """What the states hold now, in the layout that the device got."""
        return tuple(self.device.read_state(self.buffers[name], kind) for name, kind in self._states.items())


def kernels_of(receipt: Receipt, op: str) -> str:
    """The kernels of a receipt in one phrase, as "kernel of op" where the op was decomposed."""
    names = (line.kernel if line.op == op else f"{line.kernel} of {line.op}" for line in receipt.lines)
    return ", ".join(dict.fromkeys(names))
