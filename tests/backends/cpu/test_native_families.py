"""A step of every model family is one native program, with the bits of its kernels run one by one and of any batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.backends.cpu.device import CPUDevice
from xinheng.backends.cpu.executable import CPUExecutable
from xinheng.backends.cpu.program import PythonStep
from xinheng.core.hal import DeviceOptions, KernelExecutable, Numerics, StateSpace, WeightPart, WeightSource
from xinheng.core.schemes import scheme
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import EngineSettings
from xinheng.engine.batch import Batch, GroupBatch, SamplingArrays
from xinheng.engine.models import Model, open_model
from xinheng.engine.runner import ModelRunner
from xinheng.engine.weights import Checkpoint

from ...engine import tiny

# widths in multiples of 32, so that weights can be packed in blocks
FAMILIES: dict[str, tiny.Config] = {
    "llama": tiny.LLAMA_BIAS,
    "gemma3": tiny.GEMMA3_CAPPED | {"intermediate_size": 96},
    "qwen2": tiny.QWEN2,
    "qwen3": tiny.QWEN3,
    "qwen3_moe": tiny.QWEN3_MOE,
    "glm4": tiny.GLM4,
    "deepseek_v3": tiny.DEEPSEEK_V3 | {"q_lora_rank": 32, "v_head_dim": 16},
}
KINDS = [
    ("strict", "float32", "q4_1"),
    ("strict", "bfloat16", "bfloat16"),
    ("strict", "float16", "float16"),
    ("strict", "bfloat16", "float32"),
    ("fast", "float32", "q4_0"),
    ("fast", "bfloat16", "q8_0"),
    ("fast", "float16", "q4_1"),
    ("fast", "float16", "bfloat16"),
]
LENGTHS = (9, 1, 17, 4, 12)
BLOCK = 16


@dataclass(frozen=True)
class Stored:
    """A checkpoint whose matrices are stored in another scheme."""

    inner: Checkpoint
    scheme: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __contains__(self, name: object) -> bool:
        return name in self.inner

    def source(self, name: str) -> WeightSource:
        source = self.inner.source(name)
        pack = scheme(self.scheme).pack
        assert pack is not None
        data = np.ascontiguousarray(pack(source.unpack()))
        packed = data.view(np.uint8).reshape(len(data), -1)
        return WeightSource(name, source.shape, (WeightPart(self.scheme, source.shape[0], lambda: packed),))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("families")
    return {name: open_model(tiny.write_model(folder / name, config, 3)) for name, config in FAMILIES.items()}


class Texts:
    """Texts of several lengths that are computed by one runner, each in cache blocks of its own."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner

    def step(self, bound: Any, texts: Sequence[tuple[int, int, int]]) -> NDArray[np.float32]:
        """Logits of tokens start to stop of texts (number, start, stop), computed together."""
        counts = [stop - start for _, start, stop in texts]
        positions = np.concatenate([np.arange(start, stop, dtype=np.int32) for _, start, stop in texts])
        ids = [np.array(tiny.text_ids(LENGTHS[n], n), np.int32)[start:stop] for n, start, stop in texts]
        table = np.array([[2 * n, 2 * n + 1] for n, _, _ in texts], np.int32)
        slots = positions + BLOCK * np.repeat(table[:, 0], counts)
        batch = Batch(
            tokens=np.concatenate(ids),
            positions=positions,
            query_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            seq_lens=np.array([stop for _, _, stop in texts], np.int32),
            groups={group.name: GroupBatch(slots, table) for group in self.runner.info.groups},
            logit_rows=np.arange(len(positions), dtype=np.int32),
            sampling=SamplingArrays.of(()),
            request_ids=(),
        )
        self.runner._bound = bound
        return self.runner.logits(batch).copy()  # outputs are valid until the next step


def opened(model: Model, mode: Any, dtype: str, stored: str) -> ModelRunner:
    device = CPUDevice(DeviceOptions(numerics=Numerics(mode), threads=2))
    if device.notes():
        pytest.skip("no C++ compiler on this machine: there are no native programs")
    runtime = RuntimeSettings(device="cpu:0", dtype=dtype, numerics=mode)
    settings = EngineSettings(
        max_num_batched_tokens=64, max_num_seqs=len(LENGTHS), max_model_len=2 * BLOCK, block_size=BLOCK
    )
    checkpoint: Any = Stored(model.checkpoint, stored)
    return ModelRunner(replace(model, checkpoint=checkpoint), device, runtime, settings)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_one_program(models: dict[str, Model], family: str, kind: tuple[str, str, str]) -> None:
    runner = opened(models[family], *kind)
    exe = runner.executable
    assert isinstance(exe, CPUExecutable)
    assert exe.program is not None
    assert [step.node.op.name for step in exe.program.steps if isinstance(step, PythonStep)] == []
    assert not exe.receipt.notes
    if kind[0] == "fast" and kind[2].startswith("q"):
        experts = {"native_fused_moe_int8"} if models[family].config.moe else set()
        assert {"native_linear_int8", *experts} <= {line.kernel for line in exe.receipt.lines}
    texts, program = Texts(runner), runner._bound
    spaces = {
        f"cache.{layer}": StateSpace(runner.info.blocks[group.name], BLOCK)
        for group in runner.info.groups
        for layer in group.layers
    }
    fresh = exe.allocate_state(spaces)
    kernels = KernelExecutable.bind(exe, {**runner._buffers, **fresh})
    whole = [(n, 0, length - 1) for n, length in enumerate(LENGTHS) if length > 1]
    last = [(n, length - 1, length) for n, length in enumerate(LENGTHS)]
    prefill, decode = texts.step(program, whole), texts.step(program, last)
    assert np.isfinite(prefill).all()
    np.testing.assert_array_equal(texts.step(kernels, whole), prefill)
    np.testing.assert_array_equal(texts.step(kernels, last), decode)
    for i, (n, start, stop) in enumerate(last):  # each text alone, its prompt in two pieces
        if stop > 3:
            pieces = [texts.step(program, [(n, 0, 2)]), texts.step(program, [(n, 2, start)])]
            at = sum(b - a for m, a, b in whole if m < n)
            np.testing.assert_array_equal(np.concatenate(pieces), prefill[at : at + start])
        np.testing.assert_array_equal(texts.step(program, [(n, start, stop)]), decode[i : i + 1])
    runner.close()
