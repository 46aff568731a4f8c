"""Every kernel of the MindSpore runtime computes its op within the computed error bound, in every dtype it accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.backends.ascend import AscendBackend
from xinheng.backends.ascend.mindspore.packed import decoded, is_held, planes_of
from xinheng.backends.ascend.mindspore.tensors import to_array
from xinheng.conformance.bounds import Rules
from xinheng.conformance.case import Sample
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.hal import DeviceSpec, StateSpace
from xinheng.core.ir import DTYPES, Builder, DType, TensorType
from xinheng.core.ir.dtype import float32, from_numpy
from xinheng.core.ir.types import paged_kv
from xinheng.core.schemes import SCHEMES, scheme

from ...samples import EVERY, demand

DEVICE = AscendBackend().open(DeviceSpec.parse("ascend:cpu@mindspore"))
KERNELS = [(op, kernel.name) for op in DEVICE.kernels.ops() for kernel in DEVICE.kernels.candidates(op)]
FLUSHING = Rules(flush=True)
"""Threads that MindSpore computes on take subnormal float32 numbers for zero; the choice of the thread is its own."""
KINDS = ("float32", "float16", "bfloat16")


def accepted(case: Sample, kind: DType, kernel: str) -> bool:
    node = case.in_dtype(kind).graph().nodes[-1]
    return DEVICE.kernels.select(node, kernel)[0] is not None


def trials() -> list[tuple[Sample, DType, str]]:
    """Each case with each kernel of its op in each dtype that the kernel takes; without floats once."""
    pairs = [(case, kernel) for op, kernel in KERNELS for case in EVERY if case.op == op]
    every = [(c, DTYPES[kind], k) for c, k in pairs for kind in (KINDS if c.floats else KINDS[:1])]
    return [trial for trial in every if accepted(*trial)]


TRIALS = trials()


def test_every_kernel_has_cases_in_every_dtype() -> None:
    tried = {(kernel, kind.name) for case, kind, kernel in TRIALS if case.floats}
    floats = {kernel for _, kernel in KERNELS for case, _, k in TRIALS if k == kernel and case.floats}
    assert {kernel for *_, kernel in TRIALS} == {kernel for _, kernel in KERNELS}
    assert {(kernel, kind) for kernel in floats for kind in KINDS} == tried


def test_float64_is_refused() -> None:
    case = next(c for c in EVERY if c.op == "rms_norm")
    assert not accepted(case, DTYPES["float64"], "mindspore_rms_norm")


@pytest.mark.parametrize(("case", "kind", "kernel"), [pytest.param(*t, id=f"{t[2]}-{t[0].id}-{t[1]}") for t in TRIALS])
def test_kernel_is_within_its_bound(case: Sample, kind: DType, kernel: str) -> None:
    demand(case, kind, DEVICE, kernel, FLUSHING if case.special else None)


def ran(op: Any, *arrays: np.ndarray[Any, Any], **attributes: Any) -> Any:
    b = Builder()
    given = {f"x{i}": a for i, a in enumerate(arrays)}
    made = op(*(b.input(n, TensorType(from_numpy(a.dtype), a.shape)) for n, a in given.items()), **attributes)
    bound = compile(b.build(y=made), DEVICE).bind({})
    bound.run(given).wait()
    return DEVICE.download(bound.outputs["y"])


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "int64"])
def test_indices_of_every_integer_dtype(kind: str) -> None:
    x, at = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([2, 0], kind)
    np.testing.assert_array_equal(ran(ops.index_select, x, at, axis=0), x[[2, 0]])
    np.testing.assert_array_equal(ran(ops.gather, x, np.array([[2], [0], [1]], kind), axis=1), [[2], [4], [9]])


@pytest.mark.parametrize("kind", ["uint8", "int16", "int64"])
def test_slots_and_blocks_of_every_integer_dtype(kind: str) -> None:
    b = Builder()
    kv = paged_kv(1, 2, 2, "float32")
    k, slots = b.input("k", TensorType(float32, (2, 1, 2))), b.input("slots", TensorType(DTYPES[kind], (2,)))
    pairs = b.input("pairs", TensorType(DTYPES[kind], (1, 2)))
    ops.copy_blocks(ops.write_cache(b.state("pages", kv), k, k, slots), pairs)
    executable = compile(b.build(), DEVICE)
    states = executable.allocate_state(StateSpace(3, 16))
    new = np.arange(4, dtype=np.float32).reshape(2, 1, 2)
    given = {"k": new, "slots": np.array([17, 3], kind), "pairs": np.array([[1, 2]], kind)}
    executable.bind(states).run(given).wait()
    made = DEVICE.read_state(states["pages"], kv)[0].reshape(48, 1, 2)
    np.testing.assert_array_equal(made[[17, 33, 3]], new[[0, 0, 1]])
    assert np.count_nonzero(made) == 4


@pytest.mark.parametrize(("op", "exact"), [(ops.expm1, np.expm1), (ops.log1p, np.log1p), (ops.atan, np.arctan)])
def test_functions_keep_their_digits_near_zero(op: Any, exact: Any) -> None:
    powers = np.float32(2.0) ** np.arange(-120, 0, dtype=np.float32)
    x = np.concatenate([powers * np.float32(1.3), -powers / np.float32(1.3)])
    np.testing.assert_allclose(ran(op, x), exact(x.astype(np.float64)).astype(np.float32), rtol=2.0**-23, atol=0)
    assert np.signbit(ran(op, np.array([-0.0], np.float32))).all()


PACKED = [name for name in SCHEMES if is_held(name)]


@pytest.mark.parametrize("name", PACKED)
def test_packed_weights_have_the_values_of_their_scheme(name: str) -> None:
    packing = scheme(name)
    # no byte is 0: scales of bfloat16 are above the subnormal numbers
    data = np.random.default_rng(0).integers(1, 120, (5, packing.row_bytes(512))).astype(np.uint8)
    np.testing.assert_array_equal(to_array(decoded(name, planes_of(name, data))), packing.unpack(data, np.float32))


def test_updates_of_one_place_come_in_their_order() -> None:
    rng = np.random.default_rng(0)
    at, new = rng.integers(0, 3, 3000).astype(np.int32), rng.normal(size=3000).astype(np.float32)
    made = [ran(ops.scatter, np.zeros(3, np.float32), at, new, axis=0, reduction="add") for _ in range(3)]
    total = np.zeros(3, np.float32)
    for place, value in zip(at, new, strict=True):
        total[place] += value
    for one in made:
        np.testing.assert_array_equal(one, total)
    replaced = ran(ops.scatter, np.zeros(3, np.float32), at, new, axis=0)
    np.testing.assert_array_equal(replaced, [new[at == i][-1] for i in range(3)])
