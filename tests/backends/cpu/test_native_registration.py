"""Which nodes the native kernels take, why they refuse the others, and how many threads they get."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from xinheng.backends.cpu.kernels import available_threads, register_native
from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir import Builder, StateType, TensorType, WeightType
from xinheng.core.ir.dtype import DType, bfloat16, float16, float32, float64, int32
from xinheng.core.ir.graph import Node


@pytest.fixture
def registry(processor_build: SimpleNamespace) -> KernelRegistry:
    made = KernelRegistry()
    register_native(made, processor_build.library)
    return made


def chosen(registry: KernelRegistry, node: Node) -> str:
    kernel, refusals = registry.select(node)
    return kernel.name if kernel else refusals[0].reason


def linear_node(scheme: str, dtype: DType = float32) -> Node:
    b = Builder()
    x, w = b.input("x", TensorType(dtype, (4, 512))), b.parameter("w", WeightType((64, 512), scheme))
    return b.build(ops.linear(x, w)).nodes[0]


def test_every_native_kernel_is_registered_under_its_op(registry: KernelRegistry) -> None:
    expected = (
        "add add_rms_norm argmax batched_linear cast concat cos dequantize div embedding exp expand fused_moe "
        "gelu_and_mul grouped_linear index_select linear matmul mla_attention moe_gating_topk moe_permute "
        "moe_unpermute mul neg paged_attention permute random_uniform reshape rms_norm rotary_embedding sigmoid "
        "silu_and_mul sin slice split sub tanh top_k_top_p_sample write_cache write_latent_cache"
    )
    assert registry.ops() == expected.split()
    first = {op: registry.candidates(op)[0] for op in registry.ops()}
    tiles = {"linear": 15, "embedding": 15}
    moved = {"concat", "expand", "permute", "reshape", "slice", "split"}
    names = {op: f"numpy_{op}" if op in moved else f"native_{op}" for op in first} | {
        op: f"native_{op}_tiles" for op in tiles
    }
    assert {op: kernel.name for op, kernel in first.items()} == names
    assert {op: kernel.priority for op, kernel in first.items()} == dict.fromkeys(first, 10) | {"matmul": 9} | tiles


@pytest.mark.parametrize("scheme", ["q4_1", "bfloat16", "q4_k:40+q6_k:24", "float32:40+float16:24"])
def test_linear_reads_tiles_where_there_are_any(registry: KernelRegistry, scheme: str) -> None:
    assert chosen(registry, linear_node(scheme)) == "native_linear_tiles"


@pytest.mark.parametrize("scheme", ["q2_k", "bfloat16:40+q2_k:24"])
def test_linear_reads_rows_of_other_schemes(registry: KernelRegistry, scheme: str) -> None:
    assert chosen(registry, linear_node(scheme)) == "native_linear"


@pytest.mark.parametrize(
    ("scheme", "dtype", "name"),
    [
        ("q4_1", float32, "native_linear_int8"),
        ("bfloat16", float32, "native_linear_bf16"),
        ("bfloat16", float16, "native_linear_tiles"),
        ("bfloat16:40+float16:24", float32, "native_linear_tiles"),
        ("q4_1:40+bfloat16:24", float32, "native_linear_tiles"),
        ("iq4_xs", float32, "native_linear_int8"),
        ("q2_k", float32, "native_linear"),
    ],
)
def test_fast_kernels_of_linear(processor_build: SimpleNamespace, scheme: str, dtype: DType, name: str) -> None:
    made = KernelRegistry()
    register_native(made, processor_build.library, fast=True)
    assert chosen(made, linear_node(scheme, dtype)) == name


def test_linear_expands_what_it_cannot_read(registry: KernelRegistry) -> None:
    assert chosen(registry, linear_node("q4_k:40+float8_e4m3fn:24")) == "expanded_linear"


def test_linear_refuses_what_float32_does_not_hold(registry: KernelRegistry) -> None:
    node = linear_node("q4_k:40+float64:24")
    _, refusals = registry.select(node)
    assert [r.reason for r in refusals] == [
        "no tiles for scheme 'float64'",
        "no native reader for scheme 'float64'",
        "float32 does not hold weights of float64",
    ]
    assert "not float64" in chosen(registry, linear_node("q4_k", float64))


def test_matmul_takes_floats(registry: KernelRegistry) -> None:
    b = Builder()
    x, y = b.input("x", TensorType(float32, (4, 5))), b.input("y", TensorType(float32, (5, 6)))
    i, j = b.input("i", TensorType(int32, (4, 5))), b.input("j", TensorType(int32, (5, 6)))
    floats, ints = b.build(ops.matmul(x, y), ops.matmul(i, j)).nodes
    assert chosen(registry, floats) == "native_matmul"
    assert chosen(registry, ints) == "native kernels multiply float32, bfloat16, float16, not int32"


def test_readers_refuse_results_they_cannot_write(registry: KernelRegistry) -> None:
    b = Builder()
    w = b.parameter("w", WeightType((64, 512), "q4_k"))
    graph = b.build(ops.dequantize(w, dtype=bfloat16), ops.dequantize(w, dtype=float64))
    narrow, wide = graph.nodes
    assert chosen(registry, narrow) == "native_dequantize"
    assert "not float64" in chosen(registry, wide)


@pytest.mark.parametrize(
    ("scheme", "bias", "answer"),
    [
        ("bfloat16", False, "native_paged_attention"),
        ("bfloat16", True, "does not know operand 'bias'"),
        ("int8", False, "native_paged_attention"),
        ("float64", False, "no native cache of float64"),
    ],
)
def test_attention_refuses_bias_and_coded_caches(
    registry: KernelRegistry, scheme: str, bias: bool, answer: str
) -> None:
    b = Builder()
    kind = StateType("paged_kv", (("heads", 2), ("k_dim", 16), ("v_dim", 16), ("scheme", scheme)))
    cache = b.state("cache", kind)
    q = b.input("q", TensorType(float32, (4, 4, 16)))
    starts, lengths = b.input("starts", TensorType(int32, (2,))), b.input("lengths", TensorType(int32, (1,)))
    table = b.input("table", TensorType(int32, (1, 3)))
    extra = b.input("bias", TensorType(float32, (4, 4, 48))) if bias else None
    out, _ = ops.paged_attention(q, cache, starts, lengths, table, None, extra, scale=0.25)
    node = next(node for node in b.build(out).nodes if node.op.name == "paged_attention")
    assert chosen(registry, node) == answer


def machine(root: Path, siblings: dict[int, str]) -> None:
    for number, cores in siblings.items():
        folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(cores + "\n")


def limit(root: Path, files: dict[str, str], groups: str) -> None:
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups + "\n")


@pytest.fixture
def eight_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores of two processors each."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    machine(tmp_path, {i: f"{i % 4},{i % 4 + 4}" for i in range(8)})
    return tmp_path


def test_threads_are_physical_cores(eight_processors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_threads(eight_processors) == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 6}, raising=False)
    assert available_threads(eight_processors) == 2


@pytest.mark.parametrize(
    ("files", "groups", "threads"),
    [
        ({"cpu.max": "max 100000"}, "0::/", 4),
        ({"cpu.max": "250000 100000"}, "0::/", 2),
        ({"cpu.max": "max 100000", "a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 1),
        ({"cpu.max": "50000 100000"}, "0::/elsewhere", 1),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/", 3),
        ({"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/x", 4),
    ],
)
def test_threads_respect_the_quota(eight_processors: Path, files: dict[str, str], groups: str, threads: int) -> None:
    limit(eight_processors, files, groups)
    assert available_threads(eight_processors) == threads


def test_a_machine_that_tells_nothing_counts_its_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert available_threads(tmp_path) == 3
