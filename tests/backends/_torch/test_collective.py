"""Collective kernels of torch over threads and over processes: right on every rank, with the same bits on all."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch.collective import GlooCommunicator
from xinheng.backends.cpu import CPUBackend
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceSpec, LoopbackCommunicator
from xinheng.core.ir import DTYPES, Builder, Graph, TensorType
from xinheng.core.ir.dtype import bfloat16

RANKS = 2


def graph(kind: str) -> Graph:
    b = Builder()
    x = b.input("x", TensorType(DTYPES[kind], (4, 6)))
    group: Any = {"group": "tp", "size": RANKS}
    return b.build(
        ops.all_reduce(x, **group),
        ops.all_reduce(x, reduction="max", **group),
        ops.all_gather(x, axis=1, **group),
        ops.reduce_scatter(x, axis=-1, **group),
        ops.all_to_all(x, **group),
    )


def inputs(kind: str) -> list[Any]:
    values = np.random.default_rng(3).normal(size=(RANKS, 4, 6)) * 4
    return list(values.astype(DTYPES[kind].numpy))


def run(device: Any, kind: str, rank: int) -> list[Any]:
    bound = compile(graph(kind), device).bind({})
    bound.run({"x": inputs(kind)[rank]}).wait()
    return [device.download(buffer) for buffer in bound.outputs.values()]


def demand(made: list[list[Any]], kind: str) -> None:
    wide = np.stack([x.astype(np.float64) for x in inputs(kind)])
    total = wide.sum(0).astype(np.float32).astype(DTYPES[kind].numpy)
    for rank, (summed, largest, gathered, scattered, swapped) in enumerate(made):
        np.testing.assert_array_equal(summed, total)
        np.testing.assert_array_equal(largest, wide.max(0).astype(largest.dtype))
        np.testing.assert_array_equal(gathered, np.concatenate(list(wide), axis=1).astype(gathered.dtype))
        np.testing.assert_array_equal(scattered, total[:, 3 * rank : 3 * rank + 3])
        pieces = [part[2 * rank : 2 * rank + 2] for part in wide]
        np.testing.assert_array_equal(swapped, np.concatenate(pieces).astype(swapped.dtype))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int32"])
def test_threads(kind: str) -> None:
    def one(rank: int, end: LoopbackCommunicator) -> list[Any]:
        device = CPUBackend().open(DeviceSpec.parse("cpu:0"))
        device.connect("tp", end)
        return run(device, kind, rank)

    with ThreadPoolExecutor(RANKS) as pool:
        ends = LoopbackCommunicator.group(RANKS, 20.0)
        demand([f.result() for f in [pool.submit(one, rank, end) for rank, end in enumerate(ends)]], kind)


def _process(rank: int, address: str, results: Any) -> None:
    device = CPUBackend().open(DeviceSpec.parse("cpu:0"))
    device.join("tp", rank, RANKS, address)
    made = {kind: [x.astype(np.float64) for x in run(device, kind, rank)] for kind in ("float32", "bfloat16")}
    with_error = ""
    try:
        device.communicator("tp").exchange(np.zeros(2 + rank, np.float32), "all_reduce")
    except DeviceError as error:
        with_error = str(error)
    results.put((rank, made, with_error))


def test_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))  # where the new processes find this module
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    address = f"file://{tmp_path / 'meet'}"
    ranks = [context.Process(target=_process, args=(rank, address, results)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    made = sorted((results.get(timeout=120) for _ in ranks), key=lambda part: part[0])
    for process in ranks:
        process.join(30)
    for kind in ("float32", "bfloat16"):
        demand([[x.astype(DTYPES[kind].numpy) for x in part[1][kind]] for part in made], kind)
    assert all("out of step" in part[2] for part in made)


def test_a_group_of_one_process(tmp_path: Path) -> None:
    alone = GlooCommunicator(0, 1, f"file://{tmp_path / 'alone'}")
    (same,) = alone.exchange(torch.tensor([1.5], dtype=torch.bfloat16), "all_gather")
    assert same.dtype is torch.bfloat16 and same.tolist() == [1.5]
    (empty,) = alone.exchange(torch.zeros(0, 3), "all_gather")
    assert empty.shape == (0, 3)
    alone.close()
    assert bfloat16.bits == 16


@pytest.mark.parametrize("address", ["127.0.0.1:29", "tcp://127.0.0.1", "http://127.0.0.1:80", "file://"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(DeviceError, match="neither tcp://host:port nor file:///path"):
        GlooCommunicator(0, 1, address)
