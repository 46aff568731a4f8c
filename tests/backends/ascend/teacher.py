"""The tokens that devices choose on a text that cpu:0 wrote, position by position, unless its lead was within noise.

The texts are cpu:0's own greedy continuations in float32. Noise is what a dtype does to leads on cpu:0 itself; as in
the gates of models, a lead below four times its root mean square is a tie. float32 has no noise: every token counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from xinheng.engine.model_suite import TIE

TEACHER = """
import json
import sys
import numpy as np
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams

COUNT = 64
path, prompt, chunk, tie, *words = json.loads(sys.argv[1])
settings = EngineSettings(max_model_len=256, max_num_seqs=4, cache_memory="200MB")

def opened(device, kind):
    return LLM(path, runtime=RuntimeSettings(device=device, dtype=kind), settings=settings)

def logits(llm):
    return llm.logits(text[:-1], chunk)[len(prompt) - 1 :].astype(np.float64)

with opened("cpu:0", "float32") as llm:
    greedy = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True)
    text = [*prompt, *llm.generate([prompt], greedy)[0].token_ids]
    want = logits(llm)
ordered, rows = np.argsort(-want, -1), np.arange(COUNT)
best, second = ordered[:, 0], ordered[:, 1]
assert best.tolist() == text[len(prompt) :]

def lead(x):
    return x[rows, best] - x[rows, second]

told, narrow = {}, {}
for word, kind in words:
    if kind not in narrow:
        with opened("cpu:0", kind) as llm:
            narrow[kind] = logits(llm)
    noise = float(np.sqrt(np.mean((lead(narrow[kind]) - lead(want)) ** 2)))
    with opened(word, kind) as llm:
        made = logits(llm)
        assert {line.device for line in llm.receipt.lines} == {word}
    clear = lead(want) >= tie * noise
    other = clear & (made.argmax(-1) != best)
    told[word] = [int(clear.sum()), np.flatnonzero(other).tolist()]
print(json.dumps(told))
"""


def chosen(path: Path, prompt: list[int], chunk: int, words: list[tuple[str, str]]) -> dict[str, tuple[int, list[int]]]:
    """For each word, at how many of 64 positions the lead was clear, and at which of these it chose another token."""
    given = json.dumps([str(path), prompt, chunk, TIE, *words])
    done = subprocess.run([sys.executable, "-c", TEACHER, given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, tuple[int, list[int]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def demand(found: dict[str, tuple[int, list[int]]], least: int) -> None:
    for word, (clear, others) in found.items():
        assert clear >= least and not others, f"{word}: {others} of {clear} clear positions"
