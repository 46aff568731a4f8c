"""Run random batches for some minutes: memory must stay flat, and a prompt must get the same tokens in every batch.

    python scripts/soak.py MODEL --minutes 30 --numerics fast

Requests come and go at random: lengths of prompts and answers, when they arrive, how many run at once, the tokens of a
prompt in one step, and aborts. The cache is small, so that requests also lose their blocks and are computed again. The
first quarter of the time warms up; from then on resident memory may not grow by more than --slack.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, field

from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams
from xinheng.engine.engine import Delta

MIB = 2**20
PROMPTS, LONGEST_PROMPT, LONGEST_ANSWER = 48, 400, 96
SEQUENCES = 12
WINDOWS = 12
"""Parts of the time whose memory is compared: the first quarter of them is not."""


class SoakError(Exception):
    """Memory grew, or a prompt got other tokens than before."""


@dataclass(slots=True)
class Soak:
    """Random work on one model, the tokens that each prompt got, and what was counted."""

    llm: LLM
    random: random.Random
    prompts: list[list[int]]
    known: dict[int, tuple[int, ...]] = field(default_factory=dict)
    running: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    requests: int = 0
    aborts: int = 0
    tokens: int = 0

    def step(self) -> None:
        """Let requests arrive, leave and continue."""
        engine, choose = self.llm.engine, self.random
        while len(self.running) < SEQUENCES and choose.random() < 0.4:
            self._arrive()
        if self.running and choose.random() < 0.02:
            name = choose.choice(list(self.running))
            engine.abort(name)
            del self.running[name]
            self.aborts += 1
        engine.scheduler.chunk = choose.choice((1, 7, 16, 64, 200, 512))
        engine.scheduler.max_num_seqs = choose.choice((1, 3, 8, SEQUENCES))
        for delta in engine.step():
            self._take(delta)

    def _arrive(self) -> None:
        prompt = self.random.randrange(len(self.prompts))
        params = SamplingParams(
            temperature=0, max_tokens=self.random.randint(1, LONGEST_ANSWER), ignore_eos=self.random.random() < 0.5
        )
        name = self.llm.engine.add(self.prompts[prompt], params)
        self.running[name] = (prompt, [])
        self.requests += 1

    def _take(self, delta: Delta) -> None:
        prompt, got = self.running[delta.request_id]
        got += delta.token_ids
        self.tokens += len(delta.token_ids)
        if delta.finished:
            del self.running[delta.request_id]
            before = self.known.get(prompt, ())
            common = min(len(before), len(got))
            if tuple(got[:common]) != before[:common]:
                raise SoakError(f"prompt {prompt} got {got[:common]} after {list(before[:common])}")
            self.known[prompt] = max(before, tuple(got), key=len)


def resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def judge(windows: list[list[int]], slack: int) -> str:
    """How memory went, in a sentence.

    Raises:
        SoakError: the last quarter of the windows holds more than the second by over `slack` bytes.
    """
    levels = [statistics.median(window) for window in windows]
    quarter = len(levels) // 4
    early, late = max(levels[quarter : 2 * quarter]), max(levels[-quarter:])
    told = f"memory went from {early / MIB:.1f} to {late / MIB:.1f} MiB"
    if late - early > slack:
        raise SoakError(f"{told}, which is more than {slack / MIB:.0f} MiB of growth")
    return told


def soak(llm: LLM, minutes: float, seed: int, slack: int) -> str:
    """Run for some minutes; a sentence about what was done, or SoakError."""
    choose = random.Random(seed)
    vocabulary = llm.info.vocab_size
    lengths = [int(LONGEST_PROMPT ** choose.random()) for _ in range(PROMPTS)]
    prompts = [[choose.randrange(vocabulary) for _ in range(max(1, length))] for length in lengths]
    work, start, windows = Soak(llm, choose, prompts), time.monotonic(), [list[int]() for _ in range(WINDOWS)]
    while (done := (time.monotonic() - start) / (60 * minutes)) < 1:
        work.step()
        window = windows[int(done * WINDOWS)]
        if not window:
            print(f"{done:4.0%} {work.requests} requests, {work.tokens} tokens, {resident() / MIB:.1f} MiB", flush=True)
        window.append(resident())
    told = judge(windows, slack)
    return f"{work.requests} requests, {work.aborts} aborts, {work.tokens} tokens; {told}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a path, pypi:<package>, or the name of a model in the store")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--numerics", choices=("strict", "fast"), default="fast")
    parser.add_argument("--cache-dtype", default="auto", help="what the cache is held in, such as int8")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slack", type=float, default=16.0, help="MiB that memory may grow (default 16)")
    given = parser.parse_args()
    runtime = RuntimeSettings(device="cpu", numerics=given.numerics)
    settings = EngineSettings(
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=512,
        max_model_len=512,
        cache_memory=32 * MIB,
        cache_dtype=given.cache_dtype,
    )
    with LLM(given.model, runtime=runtime, settings=settings) as llm:
        try:
            print(soak(llm, given.minutes, given.seed, int(given.slack * MIB)))
        except SoakError as error:
            print(f"soak: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
