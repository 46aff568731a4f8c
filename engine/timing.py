"""A run of a model in which every kernel call is timed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from xinheng.core.errors import RequestError
from xinheng.core.hal import Profile
from xinheng.core.receipt import Receipt
from xinheng.core.settings import RuntimeSettings

from .bench.cost import Cost, Step, cost
from .bench.drive import batches, random_prompts
from .loading import load_runner
from .runner import ModelRunner
from .settings import EngineSettings


@dataclass(slots=True)
class TimedPhase:
    """The steps that prefill, or those that decode.

    `profile` has the kernels of `steps` steps; `seconds` is what as many steps took in which nothing was timed;
    `costs` says what each op of such a step has to do, as far as the graph tells.
    """

    profile: Profile = field(default_factory=Profile)
    steps: int = 0
    seconds: float = 0.0
    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def rates(self, op: str) -> tuple[float, float]:
        """Operations and bytes per second of all calls of an op."""
        seconds = sum(span.duration for span in self.profile.spans if span.op == op)
        costs = self.costs.get(op, [])
        done, moved = sum(c.operations for c in costs), sum(c.nbytes for c in costs)
        return (done * self.steps / seconds, moved * self.steps / seconds) if seconds else (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class TimedRun:
    """The receipt of a model, and its phases by name."""

    receipt: Receipt
    phases: dict[str, TimedPhase]


def timed_run(path: Path, runtime: RuntimeSettings, settings: EngineSettings, prompt: int, tokens: int) -> TimedRun:
    """Prefill `prompt` tokens and generate `tokens` more: once to warm up, once as users do, once with kernels timed.

    Raises:
        RequestError: they do not fit in the context of the model.
    """
    runner = load_runner(path, runtime, settings).runner
    try:
        longest = runner.info.max_model_len
        if prompt + tokens > longest:
            raise RequestError(
                f"a prompt of {prompt} and {tokens} more tokens do not fit in the context of {longest}; ask for fewer"
            )
        for counts in (False, True):
            phases = {"prefill": TimedPhase(), "decode": TimedPhase()}
            _run(runner, settings, phases, prompt, tokens, profiled=False)
            if counts:
                _run(runner, settings, phases, prompt, tokens, profiled=True)
        fast = runtime.numerics == "fast"
        _add_costs(runner, phases["prefill"], Step((prompt,), (prompt,)), fast)
        _add_costs(runner, phases["decode"], Step((1,), (prompt + tokens // 2,)), fast)
        return TimedRun(runner.receipt, phases)
    finally:
        runner.close()


def _run(
    runner: ModelRunner,
    settings: EngineSettings,
    phases: dict[str, TimedPhase],
    prompt: int,
    tokens: int,
    profiled: bool,
) -> None:
    for batch, decode in batches(runner, settings, random_prompts(1, prompt, runner.info.vocab_size), tokens):
        phase = phases["decode" if decode else "prefill"]
        began = time.perf_counter()
        runner.run(batch, phase.profile if profiled else None)
        if profiled:
            phase.steps += 1
        else:
            phase.seconds += time.perf_counter() - began


def _add_costs(runner: ModelRunner, phase: TimedPhase, step: Step, fast: bool) -> None:
    """What a step costs; nothing where a prompt took several steps, since those were not alike."""
    graph = runner.executable.graph
    sizes = step.sizes(graph, runner.block_size)
    for node in graph.nodes if phase.steps == 1 or step.tokens == 1 else ():
        found = cost(node, step, sizes, fast)
        if found is not None:
            phase.costs.setdefault(node.op.name, []).append(found)
