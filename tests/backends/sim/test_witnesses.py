"""Programs that respect the contracts give the same numbers on every simulated chip, whichever side it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.backends.sim.cache import SimCache
from xinheng.backends.sim.cache_layouts import Contiguous, Fractal, HeadsFirst
from xinheng.backends.sim.deferred_device import DeferredDevice
from xinheng.backends.sim.profiles import PROFILES
from xinheng.backends.sim.recording_device import RecordingBound
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.hal import BucketedExecutable, WeightPart, WeightSource
from xinheng.core.ir import Builder, TensorType
from xinheng.core.ir.dtype import float32
from xinheng.engine import LLM, SamplingParams
from xinheng.engine.runner import block_bytes

from ...engine import tiny
from ...engine.tiny import greedy, open_llm, text_ids
from .attention_graph import open_device

MODELS = {
    "llama": tiny.LLAMA,
    "qwen3_moe": tiny.QWEN3_MOE,
    "deepseek_v3": tiny.DEEPSEEK_V3,
    "mistral": tiny.MISTRAL,  # with a window, so that blocks are freed while a sequence runs
}
WITNESSES = [word for word in PROFILES if word != "exact"]
PROMPTS = [text_ids(17, 1), text_ids(2, 2), text_ids(33, 3)]
PARAMS = [greedy(12), greedy(9), SamplingParams(max_tokens=8, temperature=1.1, top_p=0.9, seed=3, ignore_eos=True)]
TEXT = text_ids(21, 4)


@dataclass(frozen=True)
class Answers:
    """What a model says on `sim:exact`: ids for each prompt, logits of a text, and longer ids; bytes for 64 tokens."""

    folder: Path
    ids: list[tuple[int, ...]]
    logits: NDArray[np.float32]
    long: list[tuple[int, ...]]
    memory: int


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]


def long_answers(llm: LLM) -> list[tuple[int, ...]]:
    return [output.token_ids for output in llm.generate([text_ids(5, 6), text_ids(5, 7)], greedy(30))]


@pytest.fixture(scope="module", params=MODELS)
def exact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tiny.write_model(tmp_path_factory.mktemp("models") / request.param, MODELS[request.param], seed=1)
    with open_llm(folder, "sim:exact", max_num_seqs=4) as llm:
        memory = sum(block_bytes(group, 64) for group in llm.info.groups)
        return Answers(folder, answers(llm), llm.logits(TEXT), long_answers(llm), memory)


def test_the_answers_vary(exact: Answers) -> None:
    assert all(len(set(ids)) > 2 for ids in exact.ids)
    assert len(set(exact.ids)) == len(exact.ids)


@pytest.mark.parametrize("word", WITNESSES)
def test_every_witness_says_the_same(word: str, exact: Answers) -> None:
    with open_llm(exact.folder, f"sim:{word}", max_num_seqs=4) as llm:
        assert answers(llm) == exact.ids
        logits = llm.logits(TEXT, chunk=8)
    np.testing.assert_allclose(logits, exact.logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("word", WITNESSES)
@pytest.mark.parametrize("exact", ["deepseek_v3", "mistral"], indirect=True)
def test_small_steps_and_preemption_change_nothing(word: str, exact: Answers) -> None:
    """Two sequences of 35 tokens in a cache of 64, prompts in pieces of three tokens."""
    settings: dict[str, Any] = {"prefill_chunk": 3, "max_num_seqs": 3, "max_num_batched_tokens": 9}
    if word == "contiguous-cache":
        settings["max_model_len"] = 64  # one region, so that the sequences take turns
    with open_llm(exact.folder, f"sim:{word}", **settings, cache_memory=exact.memory) as llm:
        assert long_answers(llm) == exact.long
        stats = llm.engine.scheduler.stats
    if exact.folder.name == "deepseek_v3" and word != "contiguous-cache":
        assert stats.num_preemptions > 0


@dataclass(frozen=True)
class Use:
    """A model that has just answered on a witness."""

    llm: LLM

    @property
    def runner(self) -> Any:
        return self.llm.model_runner

    @property
    def notes(self) -> str:
        return " ".join(self.runner.receipt.notes)

    def cache(self) -> SimCache:
        """The cache of layer 0."""
        state = next(state for state, _ in self.runner.executable.graph.states)
        bound = self.runner._bound
        payload: SimCache = bound._frame[self.runner.executable.slot(state)].payload
        return payload


def heads_first(use: Use) -> None:
    part = use.cache().parts[0]
    assert isinstance(part, HeadsFirst)
    assert part.data.shape == (2, use.llm.info.blocks["full"], 16, 16)
    assert part.data.any()


def fractal(use: Use) -> None:
    part = use.cache().parts[0]
    assert isinstance(part, Fractal)
    assert part.data.shape == (use.llm.info.blocks["full"], 2, 1, 16, 16)
    assert part.data.any()


def contiguous(use: Use) -> None:
    part = use.cache().parts[0]
    assert isinstance(part, Contiguous)
    assert use.llm.info.block_size == use.llm.info.max_model_len == 256
    assert part.data.shape == (use.llm.info.blocks["full"], 2, 16, 256)


def host_lists(use: Use) -> None:
    assert "paged_attention (simulated) reads query_start, seq_lens on the host" in use.notes


def buckets(use: Use) -> None:
    executable = use.runner.executable
    assert isinstance(executable, BucketedExecutable)
    assert 3 < executable.compiled < 30
    assert executable.buckets["seqs"] == (1, 2, 4)
    assert executable.buckets["blocks_full"] == (1, 2, 4, 8, 16)
    assert "sizes are padded to the next of" in use.notes


def deferred(use: Use) -> None:
    assert isinstance(use.runner.device, DeferredDevice)
    assert use.runner.device.given > 500


def replayed(use: Use) -> None:
    bound = use.runner._bound
    assert isinstance(bound, RecordingBound)
    assert 3 < bound.recorded < bound.run_number


def int32(use: Use) -> None:
    sampler = use.runner.sampler._sample
    assert "random_uniform (simulated) reads seed, counter on the host" in " ".join(sampler.receipt.notes)
    assert "uint32" not in {kind.name for kind in use.runner.device.capabilities.dtypes}


DIFFICULT: dict[str, Callable[[Use], None]] = {
    "heads-first-cache": heads_first,
    "nz-cache": fractal,
    "contiguous-cache": contiguous,
    "host-lengths": host_lists,
    "static-buckets": buckets,
    "async": deferred,
    "graph-capture": replayed,
    "int32-only": int32,
}


@pytest.mark.parametrize("word", DIFFICULT)
def test_a_witness_really_takes_the_difficult_side(word: str, tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", tiny.LLAMA, seed=1)
    with open_llm(folder, f"sim:{word}", max_num_seqs=4) as llm:
        answers(llm)
        DIFFICULT[word](Use(llm))


def test_weights_in_a_missing_dtype_are_converted_and_said_so(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", tiny.LLAMA, seed=1, stored=ml_dtypes.bfloat16)
    with open_llm(folder, "sim:exact") as llm:
        want = answers(llm)
    with open_llm(folder, "sim:no-bf16") as llm:
        assert answers(llm) == want
        layouts = {(entry.scheme, entry.layout) for entry in llm.receipt.layouts}
    assert {scheme for scheme, _ in layouts} == {"bfloat16"}
    assert {layout.rpartition(" ")[0] for _, layout in layouts} == {"converted from bfloat16 to"}


@pytest.mark.parametrize(("smallest", "held"), [(2.0**-17, "float16"), (2.0**-30, "float32"), (2.0**20, "float32")])
def test_weights_are_converted_to_what_holds_them_exactly(smallest: float, held: str) -> None:
    values = np.array([[1.0, 1.5 * smallest]]).astype(ml_dtypes.bfloat16)
    source = WeightSource("w", (1, 2), (WeightPart("bfloat16", 1, lambda: values.view(np.uint8)),))
    weight = open_device("no-bf16").prepare(source, ["linear"])
    assert weight.layout == f"converted from bfloat16 to {held}"
    np.testing.assert_array_equal(weight.array.astype(np.float64), values.astype(np.float64))


def test_what_cannot_be_recorded_runs_kernel_by_kernel_and_says_so() -> None:
    b = Builder("late")
    device = open_device("graph-capture")
    exe = compile(b.build(places=ops.nonzero(b.input("x", TensorType(float32, (5,))))), device)
    assert exe.receipt.notes == ("nothing is recorded, since the size 'nonzero' is known only after its op ran",)
    bound = exe.bind({})
    for x in ([0, 1, 0, 2, 0], [1, 1, 1, 1, 0]):
        bound.run({"x": np.array(x, np.float32)}).wait()
        np.testing.assert_array_equal(device.download(bound.outputs["places"]), np.nonzero(np.array(x)))
