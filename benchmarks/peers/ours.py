"""xinheng through its public library: `LLM` and the engine behind it, in the mode that admits int8 activations."""

from __future__ import annotations

import argparse
from typing import Any

from protocol import Peer, now, serve

import xinheng
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, SamplingParams
from xinheng.engine.settings import EngineSettings


class Ours(Peer):
    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--numerics", default="fast")
        parser.add_argument("--dtype", default="auto")
        parser.add_argument("--cache-dtype", default="auto")
        parser.add_argument("--chunk", type=int, default=512, help="prompt tokens of one sequence in one step")

    def load(self, args: argparse.Namespace) -> None:
        runtime = RuntimeSettings(numerics=args.numerics, dtype=args.dtype, threads=args.threads, device="cpu")
        settings = EngineSettings(
            max_num_seqs=args.sequences,
            max_num_batched_tokens=max(2048, args.sequences),
            max_model_len=args.context,
            cache_dtype=args.cache_dtype,
            prefill_chunk=args.chunk,
        )
        self.llm = LLM(args.model, runtime=runtime, settings=settings)

    def about(self) -> dict[str, Any]:
        info = self.llm.info
        receipt = [[line["op"], line["kernel"], line["count"]] for line in info.receipt["lines"]]
        return {"version": xinheng.__version__, "numerics": info.numerics, "dtype": info.dtype, "kernels": receipt}

    def ids(self, text: str) -> list[int]:
        return self.llm.tokenizer.encode(text)

    def _add(self, prompts: list[list[int]], tokens: int) -> list[str]:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        return [self.llm.engine.add(prompt, params) for prompt in prompts]

    def _generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """Times of the steps until every sequence has a token, and of the full decode steps behind them."""
        engine, waiting = self.llm.engine, set(self._add(prompts, tokens + 1))
        began = now()
        while waiting:
            waiting -= {delta.request_id for delta in engine.step()}
        first = last = now()
        full = 0
        while engine.has_work:
            if len(engine.step()) == len(prompts):
                full, last = full + 1, now()
        whole = now() - began
        made = {"seconds": last - first, "tokens": full * len(prompts), "first_token_seconds": first - began}
        return made | {"whole_seconds": whole}

    def decode(self, context: int, tokens: int) -> dict[str, Any]:
        return self._generate([self.prompt(context)], tokens)

    def prefill(self, tokens: int) -> dict[str, Any]:
        made = self._generate([self.prompt(tokens)], 1)
        return {"seconds": made["first_token_seconds"], "tokens": tokens}

    def batch(self, sequences: int, context: int, tokens: int) -> dict[str, Any]:
        return self._generate(self.prompts(sequences, context), tokens)

    def requests(self, count: int, context: int, tokens: int) -> dict[str, Any]:
        self._add(self.prompts(count, context), tokens)
        began = now()
        while self.llm.engine.has_work:
            self.llm.engine.step()
        return {"seconds": now() - began, "tokens": count * tokens}


serve(Ours())
