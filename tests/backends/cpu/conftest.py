"""The native kernels, compiled for this processor and for any processor, and random packed weights to feed them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from xinheng.backends._torch import TorchWeight, TorchWeightPart
from xinheng.backends.cpu import jit
from xinheng.backends.cpu.kernels.library import Library
from xinheng.backends.cpu.kernels.native import native_kernels
from xinheng.core.schemes import scheme

from .tensors import on_tensors

HALVES = {  # where the float16 factors of a block are; the other bytes may be anything
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q2_k": (80, 82), "q3_k": (108,),
    "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq4_nl": (0,), "iq4_xs": (0,), "mxfp4": (),
}  # fmt: skip
DENSE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PORTABLE = ("-O2", *(flag for flag in jit.COMMON_FLAGS if flag != "-O3"))


def integers(rng: np.random.Generator, name: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """Rows of an integer scheme; groups take every zero point there is."""
    kind = scheme(name)
    assert kind.pack is not None
    data = kind.pack(rng.standard_normal((rows, columns)).astype(np.float32))
    if "_g" in name:
        groups = data.reshape(rows, -1, kind.block_bytes)
        zeros = rng.integers(0, 17 if name.startswith("int4") else 257, groups.shape[:2])
        groups[..., 2:4] = zeros.astype("<i2")[..., None].view(np.uint8)
    return data


def compiled(flag_sets: Any) -> SimpleNamespace:
    if "CXX" not in os.environ and not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("no C++ compiler on this machine: the native kernels are not used here")
    named = os.environ.get("XINHENG_TEST_CACHE")
    cache = (Path(named) if named else Path(__file__).parents[3] / ".cache") / "jit"
    library = Library(jit.load(cache, flag_sets=flag_sets).library)
    return SimpleNamespace(library=library, **{op: on_tensors(function) for op, function, _ in native_kernels(library)})


@pytest.fixture(scope="session")
def processor_build() -> SimpleNamespace:
    return compiled(jit.FLAG_SETS)


@pytest.fixture(scope="session")
def portable_build() -> SimpleNamespace:
    return compiled((PORTABLE,))


@pytest.fixture
def native(processor_build: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """The kernels by op name, compiled as a user gets them, on two threads; `.library` is the library."""
    processor_build.library.set_threads(2)
    yield processor_build
    processor_build.library.set_threads(1)


@pytest.fixture(params=["processor", "portable"])
def build(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Both builds in turn: for this processor, and plain -O2 without any vector extension."""
    made: SimpleNamespace = request.getfixturevalue(f"{request.param}_build")
    return made


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def random_part(rng: np.random.Generator) -> Callable[..., TorchWeightPart]:
    """`(scheme, rows, columns, wild=False)` to a part of random bytes; wild factors take every finite float16 value."""

    def make(name: str, rows: int, columns: int, wild: bool = False) -> TorchWeightPart:
        if name in DENSE:
            values = torch.from_numpy(rng.standard_normal((rows, columns)).astype(np.float32))
            return TorchWeightPart(name, rows, values.to(DENSE[name]))
        kind = scheme(name)
        if name.startswith("int"):
            return TorchWeightPart(name, rows, torch.from_numpy(integers(rng, name, rows, columns)))
        data = rng.integers(0, 256, (rows, columns // kind.block, kind.block_bytes), dtype=np.uint8)
        for at in HALVES[name]:
            factors = rng.standard_normal(data.shape[:2]) * 0.02
            halves = factors.astype(np.float16)
            if wild:
                bits = rng.integers(0, 0x7C00, data.shape[:2]) | rng.integers(0, 2, data.shape[:2]) << 15
                halves = bits.astype(np.uint16).view(np.float16)
            data[:, :, at : at + 2] = halves[..., None].view(np.uint8)
        if name == "mxfp4" and not wild:
            data[:, :, 0] = rng.integers(118, 125, data.shape[:2])
        return TorchWeightPart(name, rows, torch.from_numpy(data.reshape(rows, -1)))

    return make


@pytest.fixture
def random_weight(random_part: Callable[..., TorchWeightPart]) -> Callable[..., TorchWeight]:
    """`([(scheme, rows), ...], columns, wild=False)` to a weight."""

    def make(parts: list[tuple[str, int]], columns: int, wild: bool = False) -> TorchWeight:
        made = tuple(random_part(name, rows, columns, wild) for name, rows in parts)
        return TorchWeight((sum(rows for _, rows in parts), columns), made)

    return make


@pytest.fixture
def exact() -> Callable[[TorchWeight], Any]:
    """A weight as float64 [rows, columns], decoded by the numpy schemes."""

    def unpack(weight: TorchWeight) -> Any:
        pieces = []
        for part in weight.parts:
            if part.scheme in DENSE:
                pieces.append(part.data.double().numpy())
            else:
                pieces.append(scheme(part.scheme).unpack(part.data.numpy(), np.float64))
        return np.concatenate(pieces)

    return unpack
