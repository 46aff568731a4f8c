"""Runs a benchmark through the engine that users run: `LLM`, its scheduler and its runner."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xinheng import __version__
from xinheng.core.hal import Limits
from xinheng.core.settings import RuntimeSettings

from ..llm import LLM
from ..runner import ModelRunner, Progress
from ..settings import EngineSettings
from .cost import Cost, Step, cost
from .drive import greedy, random_prompts
from .machine import machine
from .overhead import measure_overhead
from .plan import BenchPlan
from .result import BenchResult, Decode, Overhead, Prefill, Share, Spread
from .roofline import Roofline, roofline

WARM_TOKENS = 4
"""Decode steps of a round that does not count."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one run of sequences: to the first token of all, of the full decode steps behind it, of everything."""

    first: float
    steps: tuple[float, ...]
    whole: float


@dataclass(slots=True)
class Samples:
    """What the rounds found, per batch size; the prefill has its own."""

    prefill: list[Timed] = field(default_factory=list)
    decode: dict[int, list[Timed]] = field(default_factory=dict)
    bandwidth: list[float] = field(default_factory=list)


def bench(
    model: str | Path,
    plan: BenchPlan,
    runtime: RuntimeSettings,
    settings: EngineSettings,
    progress: Progress | None = None,
) -> tuple[BenchResult, Roofline | None]:
    """Load a model, measure it, and say how near it comes to the limits of the device.

    The roofline is None where the runner is another process, or the device does not measure its limits.

    Raises:
        RequestError: the sequences do not fit in the context of the model.
        XinhengError: the model cannot be loaded.
    """
    most = max(plan.batches)
    wider = {"max_num_seqs": most, "max_num_batched_tokens": max(settings.max_num_batched_tokens, most)}
    settings = settings.model_copy(update=wider)
    with LLM(model, runtime=runtime, settings=settings, progress=progress) as llm:
        plan.check(llm.info)
        return Bench(llm, plan, progress).run()


class Bench:
    """A benchmark of one loaded model."""

    def __init__(self, llm: LLM, plan: BenchPlan, progress: Progress | None) -> None:
        self.llm, self.plan, self.progress = llm, plan, progress
        self.runner: ModelRunner | None = llm.model_runner
        self.samples = Samples(decode={batch: [] for batch in plan.batches})
        self.limits: Limits | None = None
        self._seed = 0

    def run(self) -> tuple[BenchResult, Roofline | None]:
        self._round(WARM_TOKENS, counts=False)
        peak = self.llm.peak_memory()
        for done in range(self.plan.repeat):
            self._tell("measuring", done)
            self._round(self.plan.tokens, counts=True)
            self._measure_limits()
        self._tell("measuring", self.plan.repeat)
        overhead, calls = self._overhead()
        return self._result(peak, overhead, calls), self._roofline()

    def _tell(self, what: str, done: int) -> None:
        if self.progress is not None:
            self.progress(what, done, self.plan.repeat)

    def _round(self, tokens: int, counts: bool) -> None:
        """Everything once."""
        plan = self.plan
        prefill = self._timed(1, plan.prompt, 1)
        decode = {batch: self._timed(batch, plan.context, min(tokens, plan.tokens) + 1) for batch in plan.batches}
        if counts:
            self.samples.prefill.append(prefill)
            for batch, timed in decode.items():
                self.samples.decode[batch].append(timed)

    def _timed(self, count: int, length: int, tokens: int) -> Timed:
        """Run `count` sequences behind prompts of `length` tokens until each has `tokens` more."""
        engine = self.llm.engine
        self._seed += 1
        prompts = random_prompts(count, length, self.llm.info.vocab_size, self._seed)
        began = time.perf_counter()
        waiting = {engine.add(prompt, greedy(tokens)) for prompt in prompts}
        while waiting:
            waiting -= {delta.request_id for delta in engine.step()}
        first = last = time.perf_counter()
        steps = []
        while engine.has_work:
            made = len(engine.step())
            now = time.perf_counter()
            if made == count:
                steps.append(now - last)
            last = now
        return Timed(first - began, tuple(steps), last - began)

    def _measure_limits(self) -> None:
        """The bandwidth of this minute; it changes where others use the machine too."""
        if self.runner is None:
            return
        weights = sum(c.weights for c in self._costs(self._decode_step(1)))
        found = self.runner.device.limits(int(weights))
        if found is not None:
            self.limits = found
            self.samples.bandwidth.append(found.bandwidth)

    def _decode_step(self, batch: int) -> Step:
        """A step in the middle of the decode."""
        return Step((1,) * batch, (self.plan.context + self.plan.tokens // 2,) * batch)

    def _costs(self, step: Step) -> list[Cost]:
        if self.runner is None:
            return []
        graph = self.runner.executable.graph
        sizes, fast = step.sizes(graph, self.runner.block_size), self.llm.info.numerics == "fast"
        found = (cost(node, step, sizes, fast) for node in graph.nodes)
        return [each for each in found if each is not None]

    def _share(self, step: Step, seconds: float) -> Share | None:
        if self.limits is None:
            return None
        costs = self._costs(step)
        read = sum(c.weights + c.cache for c in costs) / statistics.median(self.samples.bandwidth)
        rates = self.limits.rates
        products = sum(c.operations / rates.get(c.kind, rates["float32"]) for c in costs)
        return Share(read / seconds, products / seconds)

    def _overhead(self) -> tuple[Overhead, float] | tuple[None, None]:
        if self.runner is None:
            return None, None
        return measure_overhead(self.llm, self.runner, self.plan.context) or (None, None)

    def _roofline(self) -> Roofline | None:
        if self.runner is None or self.limits is None:
            return None
        plan = self.plan
        phases = {f"prefill of {plan.prompt} tokens": (1, plan.prompt, 2, False)}
        phases |= {f"decode of {b} sequences" if b > 1 else "decode": (b, plan.context, 12, True) for b in plan.batches}
        return roofline(self.runner, self.llm.settings, self.limits, self.llm.info.numerics == "fast", phases)

    def _result(self, peak: int, overhead: Overhead | None, calls: float | None) -> BenchResult:
        llm, plan = self.llm, self.plan
        return BenchResult(
            model=str(llm.path),
            about={
                "xinheng": __version__,
                "plan": asdict(plan),
                "machine": machine(),
                "device": llm.info.device,
                "device_name": llm.info.device_name,
                "dtype": llm.info.dtype,
                "numerics": llm.info.numerics,
                "threads": None if self.runner is None else getattr(self.runner.device, "threads", None),
            },
            load_seconds=llm.load_seconds,
            memory={
                "peak_bytes": peak,
                "baseline_bytes": llm.memory_baseline,
                "model_bytes": llm.model_bytes,
            },
            limits=None if self.limits is None else self._limits(self.limits),
            prefill=self._prefill(),
            decode=tuple(self._decode(batch) for batch in plan.batches),
            overhead=overhead,
            receipt=self._receipt(llm.info.receipt, calls),
            notes=tuple(self._notes()),
        )

    def _limits(self, found: Limits) -> dict[str, Any]:
        spread = Spread.of(self.samples.bandwidth)
        return {"bandwidth": asdict(spread), "working_set_bytes": found.working_set, "rates": dict(found.rates)}

    def _prefill(self) -> Prefill:
        tokens, first = self.plan.prompt, [timed.first for timed in self.samples.prefill]
        share = self._share(Step((tokens,), (tokens,)), statistics.median(first))
        return Prefill(tokens, Spread.of(first), Spread.of(tokens / seconds for seconds in first), share)

    def _decode(self, batch: int) -> Decode:
        found = self.samples.decode[batch]
        rates = [batch * len(timed.steps) / sum(timed.steps) for timed in found]
        whole = [batch * (self.plan.tokens + 1) / timed.whole for timed in found]
        steps = [statistics.median(timed.steps) for timed in found]
        share = self._share(self._decode_step(batch), batch / statistics.median(rates))
        return Decode(batch, Spread.of(rates), Spread.of(whole), Spread.of(steps), share)

    def _receipt(self, receipt: Mapping[str, Any], calls: float | None) -> dict[str, Any]:
        kernels = [{k: line[k] for k in ("op", "kernel", "device", "count")} for line in receipt["lines"]]
        summary = self.llm.info.receipt_summary
        return {"summary": summary, "kernels": kernels, "python_calls_per_step": calls, "notes": list(receipt["notes"])}

    def _notes(self) -> list[str]:
        notes = []
        if self.runner is None:
            notes.append("the runner is another process: no shares of limits, no overhead, no roofline")
        elif self.limits is None:
            notes.append(f"{self.runner.device.spec} does not measure its limits: no shares of them, no roofline")
        if self.llm.engine.scheduler.stats.num_preemptions:
            notes.append("the cache was too small for the largest batch: some tokens were computed twice")
        return notes
