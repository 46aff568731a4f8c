"""Simulated chips with exactly one fault each, which prove that the conformance suite finds it and calls it by name.

All of them declare what a chip without the fault would. They are opened by their word and listed nowhere else.
"""

from __future__ import annotations

import os
import signal
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import OutOfMemory, UnsupportedOp
from xinheng.core.hal import ANY_ORDER, TF32, Arithmetic, Kernel, Refusal
from xinheng.core.ir.dtype import DTYPES, bfloat16, float16, round_to
from xinheng.core.ir.graph import Node
from xinheng.core.ir.op import Op, Tolerance

from .accumulation import Accumulator, accumulated, by_rows, partial_sums, sequential, shuffled, shuffled_once
from .device import SimDevice
from .handles import SimTensor
from .kernels import Launch, PlannedKernel
from .memory_guard import SimRegion
from .profiles import SimProfile
from .recording_device import RecordingDevice

Array = NDArray[Any]
Change = Callable[[Array], Array]

COMPUTING = frozenset(Tolerance) - {
    Tolerance.EXACT,
    Tolerance.SELECTION,
    Tolerance.STOCHASTIC,
    Tolerance.COLLECTIVE,
}
"""The classes of ops that compute floats; others move, compare, choose and exchange them."""
SINGLE = Arithmetic(ANY_ORDER, determinism="D4")
"""Sums in float32 of any order, always the same one."""


def same(x: Array) -> Array:
    """No change."""
    return x


class Altering(SimDevice):
    """Changes the float operands of ops of some classes before they compute, or their float results after."""

    def __init__(
        self,
        spec: str,
        name: str,
        *,
        operands: Change = same,
        results: Change = same,
        classes: frozenset[Tolerance] = COMPUTING,
        **limits: Any,
    ) -> None:
        super().__init__(spec, name, **limits)
        self._operands, self._results, self._classes = operands, results, classes

    def seen(self, array: Array, op: Op[..., Any]) -> Array:
        return self._operands(array) if op.tolerance in self._classes and _floating(array) else array

    def compute(self, launch: Launch) -> list[Array]:
        made = super().compute(launch)
        if launch.kernel.node.op.tolerance not in self._classes:
            return made
        return [self._results(x) if _floating(x) else x for x in made]


def _floating(x: Array) -> bool:
    return DTYPES[x.dtype.name].is_float


def saturated(x: Array) -> Array:
    """Infinities as the largest finite number."""
    largest = np.asarray(DTYPES[x.dtype.name].largest, x.dtype)
    return np.where(np.isinf(x.astype(np.float64)), np.copysign(largest, x), x)


def flushed(x: Array) -> Array:
    """Subnormal numbers as zero."""
    with np.errstate(invalid="ignore"):
        tiny = np.abs(x) < np.asarray(DTYPES[x.dtype.name].smallest_normal, x.dtype)
    return np.where(tiny, np.copysign(np.zeros((), x.dtype), x), x)


def cut(x: Array) -> Array:
    """float32 numbers as matrix units hold them that cut them to eleven bits."""
    return round_to(x, TF32) if x.dtype == np.float32 else x


def accumulating(accumulator: Accumulator, arithmetic: Arithmetic = SINGLE) -> Callable[[str, str], Altering]:
    """Makes chips whose sums and matrix products go through an accumulator."""
    kind = accumulated(accumulator)
    return partial(Altering, operands=lambda x: x.astype(np.float64).view(kind), arithmetic=arithmetic)


def process_variant(spec: str, name: str) -> Altering:
    """A chip whose order of summation is that of this process."""
    return accumulating(shuffled_once(os.getpid()))(spec, name)


class LyingIntegers(SimDevice):
    """Kernels read and write int64 tensors as int32."""

    def seen(self, array: Array, op: Op[..., Any]) -> Array:
        return _wrapped(array)

    def compute(self, launch: Launch) -> list[Array]:
        return [_wrapped(x) for x in super().compute(launch)]


def _wrapped(x: Array) -> Array:
    return x.astype(np.int32).astype(np.int64) if x.dtype == np.int64 else x


class WideIndices(SimDevice):
    """Ops that choose return int64 where int32 is promised."""

    def compute(self, launch: Launch) -> list[Array]:
        made = super().compute(launch)
        chooses = launch.kernel.node.op.tolerance is Tolerance.SELECTION
        return [x.astype(np.int64) if chooses and x.dtype == np.int32 else x for x in made]


class LyingSupports(SimDevice):
    """Claims `gelu`, and fails when it is called."""

    def compute(self, launch: Launch) -> list[Array]:
        if launch.kernel.node.op.name == "gelu":
            raise UnsupportedOp(f"{self.spec}: this firmware has no gelu")
        return super().compute(launch)


class DenyingSupports(SimDevice):
    """Says that it cannot run `gelu`, for which it has a kernel."""

    def supports(self, node: Node) -> bool:
        return node.op.name != "gelu" and super().supports(node)


class RaisingSupports(SimDevice):
    """Fails over the question whether it can run `gelu`."""

    def select(self, node: Node, only: str | None = None) -> tuple[Kernel | None, list[Refusal]]:
        if node.op.name == "gelu":
            raise KeyError(node.op.name)
        return super().select(node, only)


class StaleBuffer(SimDevice):
    """From the second call of a kernel on, the last quarter of its float results is that of the call before."""

    def __init__(self, spec: str, name: str) -> None:
        super().__init__(spec, name)
        self._before: WeakKeyDictionary[PlannedKernel, list[Array]] = WeakKeyDictionary()

    def compute(self, launch: Launch) -> list[Array]:
        made = super().compute(launch)
        left = self._before.get(launch.kernel, made)
        self._before[launch.kernel] = made
        return [
            _ending_as(x, old) if _floating(x) and x.shape == old.shape else x
            for x, old in zip(made, left, strict=True)
        ]


def _ending_as(x: Array, old: Array) -> Array:
    kept = x.size - x.size // 4
    made: Array = np.concatenate([x.reshape(-1)[:kept], old.reshape(-1)[kept:]]).reshape(x.shape)
    return made


class Vectors(SimDevice):
    """Writes results in vectors of four; what becomes of an incomplete one is up to subclasses."""

    def launch(self, launch: Launch) -> None:
        for tensor, array in zip(launch.made, self.compute(launch), strict=True):
            kind = DTYPES[array.dtype.name]
            region = SimRegion(array.shape, kind) if self.guard is None else self.guard.region(array.shape, kind)
            self.write(region, array)
            tensor.put(region.tensor)

    @abstractmethod
    def write(self, region: SimRegion, array: Array) -> None:
        """Put results into their memory."""


class OutOfBoundsWriter(Vectors):
    """Rounds the last vector up, and so writes beyond the end."""

    def write(self, region: SimRegion, array: Array) -> None:
        region.tensor[...] = array
        beyond = region.offset + array.size
        region.whole[beyond : beyond + -array.size % 4] = np.zeros((), array.dtype)


class UnwrittenTail(Vectors):
    """Rounds the last vector down, and so leaves out the end."""

    def write(self, region: SimRegion, array: Array) -> None:
        whole = array.size - array.size % 4
        region.whole[region.offset : region.offset + whole] = array.reshape(-1)[:whole]


class MutatesInput(SimDevice):
    """Ops that fold an axis use the memory of their first operand for results on the way."""

    def compute(self, launch: Launch) -> list[Array]:
        made = super().compute(launch)
        first = next(iter(launch.operands), None)
        if launch.kernel.node.op.tolerance is Tolerance.REDUCTION and isinstance(first, SimTensor):
            first.array.reshape(-1)[-1:] = np.zeros((), first.array.dtype)
        return made


class MissingSync(SimDevice):
    """Events and downloads do not wait, so that the host may find in a result what was in its memory before."""

    def __init__(self, spec: str, name: str) -> None:
        super().__init__(spec, name)
        self._late: list[tuple[SimTensor, Array]] = []

    def launch(self, launch: Launch) -> None:
        self.synchronize()
        for tensor, array in zip(launch.made, self.compute(launch), strict=True):
            tensor.put(self.keep(np.zeros_like(array)))
            self._late.append((tensor, array))

    def synchronize(self) -> None:
        for tensor, array in self._late:
            tensor.array[...] = array
        self._late.clear()


class CaptureStale(RecordingDevice):
    """A replayed record is not given its last input anew."""

    def renew(self, buffers: Mapping[str, SimTensor], arrays: Mapping[str, Array]) -> None:
        super().renew(dict(list(buffers.items())[:-1]), arrays)


class Faulting(SimDevice):
    """Something happens when `softmax` gets rows of odd length."""

    def __init__(self, spec: str, name: str, *, happens: Callable[[], Any]) -> None:
        super().__init__(spec, name)
        self._happens = happens

    def compute(self, launch: Launch) -> list[Array]:
        made = super().compute(launch)
        if launch.kernel.node.op.name == "softmax" and made[0].shape[-1] % 2:
            self._happens()
        return made


def crash() -> None:
    """End this process as a write to a wrong address does."""
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    """Never return."""
    while True:
        time.sleep(3600)


class OutOfRoom(SimDevice):
    """Has no room for a tensor of more than `most` bytes."""

    def __init__(self, spec: str, name: str, *, most: int) -> None:
        super().__init__(spec, name)
        self._most = most

    def keep(self, array: Array) -> Array:
        if array.nbytes > self._most:
            raise OutOfMemory(f"{self.spec}: no room for {array.nbytes} bytes; use smaller batches")
        return super().keep(array)


ROGUES = {
    "saturating": SimProfile(
        "results beyond the range become the largest number", partial(Altering, results=saturated)
    ),
    "flush-subnormals": SimProfile(
        "subnormal operands and results become zero", partial(Altering, operands=flushed, results=flushed)
    ),
    "bf16-accumulator": SimProfile("partial sums are kept in bfloat16", accumulating(partial_sums(bfloat16, 16))),
    "fp16-accumulator": SimProfile("partial sums are kept in float16", accumulating(partial_sums(float16, 16))),
    "tf32-inputs": SimProfile(
        "matrix products cut float32 to 11 bits",
        partial(Altering, operands=cut, classes=frozenset({Tolerance.CONTRACTION})),
    ),
    "stagnating": SimProfile(
        "declares sums in blocks of 64, and adds one by one",
        accumulating(sequential, Arithmetic(64, determinism="D4")),
    ),
    "nondeterministic": SimProfile("sums in an order that changes from call to call", accumulating(shuffled())),
    "process-variant": SimProfile("sums in an order that each process has of its own", process_variant),
    "batch-variant": SimProfile("sums of one row and of several in different orders", accumulating(by_rows)),
    "lying-int64": SimProfile("kernels read and write int64 tensors as int32", LyingIntegers),
    "wide-indices": SimProfile("returns indices as int64 where int32 is promised", WideIndices),
    "lying-supports": SimProfile("claims gelu, and fails when it is called", LyingSupports),
    "denying-supports": SimProfile("denies gelu, which it can run", DenyingSupports),
    "raising-supports": SimProfile("fails over the question whether it runs gelu", RaisingSupports),
    "stale-buffer": SimProfile("a second call leaves results of the first at the end", StaleBuffer),
    "out-of-bounds-writer": SimProfile("writes whole vectors of four, beyond the end too", OutOfBoundsWriter),
    "unwritten-tail": SimProfile("writes whole vectors of four, and leaves out the rest", UnwrittenTail),
    "mutates-input": SimProfile("reductions use the memory of their operand", MutatesInput),
    "async-missing-sync": SimProfile("events and downloads do not wait for results", MissingSync),
    "capture-stale": SimProfile("a replayed run sees the last input of the first", CaptureStale),
    "crashing": SimProfile("ends the process at softmax of odd rows", partial(Faulting, happens=crash)),
    "hanging": SimProfile("never comes back from softmax of odd rows", partial(Faulting, happens=hang)),
    "out-of-memory": SimProfile("has no room for tensors of more than 64 KiB", partial(OutOfRoom, most=1 << 16)),
}
"""The chips by name."""
