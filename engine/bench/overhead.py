"""Where a decode step spends its time outside of kernels."""

from __future__ import annotations

import statistics
import time

from xinheng.core.hal import Profile

from ..llm import LLM
from ..runner import ModelRunner
from .drive import batches, greedy, random_prompts
from .result import Overhead

ROUNDS = 40
"""Each is three decode steps of one sequence: by the engine, by the runner, and by the runner with kernels timed; a
fourth does not count."""


def measure_overhead(llm: LLM, runner: ModelRunner, context: int) -> tuple[Overhead, float] | None:
    """The overhead of a decode step behind `context` tokens, and how many kernels Python calls in it.

    The three kinds of steps take turns, so that a slow minute of the machine meets all of them. The sequence of the
    engine and that of the runner share the cache, so both compute nonsense, which takes as long as sense.

    Returns None where the context of the model is too short for it.
    """
    longest = llm.info.max_model_len
    rounds = min(ROUNDS, (longest - 4) // 3)
    context = min(context, longest - 3 * rounds - 3)
    if rounds < 1 or context < 1:
        return None
    (prompt,) = random_prompts(1, context, llm.info.vocab_size)
    llm.engine.add(prompt, greedy(rounds + 1))
    while not llm.engine.step():
        pass
    steps = batches(runner, llm.settings, [prompt], 3 * rounds + 2)
    for batch, full in steps:  # the prompt, and one step that does not count
        runner.forward(batch)
        if full:
            break
    whole, forward, kernels, calls = [], [], [], []
    for _ in range(rounds):
        began = time.perf_counter()
        llm.engine.step()
        whole.append(time.perf_counter() - began)
        batch, _ = next(steps)
        began = time.perf_counter()
        runner.forward(batch)
        forward.append(time.perf_counter() - began)
        batch, _ = next(steps)
        profile = Profile()
        runner.forward(batch, profile)
        kernels.append(profile.seconds)
        calls.append(profile.host_calls)
        runner.forward(next(steps)[0])  # entering the times took long, and the threads of the device fell asleep
    found = Overhead(*(statistics.median(values) for values in (whole, forward, kernels)))
    return found, statistics.median(calls)
