"""OpenVINO GenAI on an exported folder or a GGUF file: `LLMPipeline` for one sequence, continuous batching for more."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import openvino
import openvino_genai
from protocol import Peer, now, serve


class OpenVINO(Peer):
    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cache", default="", help="precision of the cache, such as u8")
        parser.add_argument("--precision", default="", help="f32 or bf16")

    def load(self, args: argparse.Namespace) -> None:
        properties: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": args.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        if args.cache:
            properties["KV_CACHE_PRECISION"] = args.cache
        if args.precision:
            properties["INFERENCE_PRECISION_HINT"] = args.precision
        self.single: Any = None
        if args.sequences == 1:
            self.single = openvino_genai.LLMPipeline(args.model, "CPU", ATTENTION_BACKEND="SDPA", **properties)
            return
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = args.sequences
        scheduler.max_num_batched_tokens = 2048
        scheduler.cache_size = 2
        scheduler.enable_prefix_caching = False
        self.many = openvino_genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)

    def about(self) -> dict[str, Any]:
        return {"version": openvino_genai.get_version()}

    def ids(self, text: str) -> list[int]:
        pipeline = self.many if self.single is None else self.single
        found: list[int] = pipeline.get_tokenizer().encode(text).input_ids.data[0].tolist()
        return found

    def _config(self, tokens: int) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = config.apply_chat_template = False
        return config

    def _generate(self, prompts: list[list[int]], tokens: int) -> Any:
        config = self._config(tokens)
        if self.single is not None:
            result = self.single.generate(openvino.Tensor(np.array(prompts, np.int64)), config)
            made = [len(ids) for ids in result.tokens]
        else:
            tensors = [openvino.Tensor(np.array([ids], np.int64)) for ids in prompts]
            result = self.many.generate(tensors, [config] * len(tensors))
            made = [len(each.m_generation_ids[0]) for each in result]
        if any(count != tokens for count in made):
            raise RuntimeError(f"asked for {tokens} tokens, got {made}")
        return result

    def decode(self, context: int, tokens: int) -> dict[str, Any]:
        if self.single is None:
            return self.batch(1, context, tokens)
        result = self._generate([self.prompt(context)], tokens + 1)
        steps = np.array(result.perf_metrics.raw_metrics.m_durations) / 1e6
        first = result.perf_metrics.get_ttft().mean / 1e3
        return {"seconds": float(steps[-tokens:].sum()), "tokens": tokens, "first_token_seconds": first}

    def prefill(self, tokens: int) -> dict[str, Any]:
        prompt = [self.prompt(tokens)]
        began = now()
        self._generate(prompt, 1)
        return {"seconds": now() - began, "tokens": tokens}

    def batch(self, sequences: int, context: int, tokens: int) -> dict[str, Any]:
        """Decode steps are what a run takes longer than one that ends with the first token."""
        prompts = self.prompts(sequences, context)
        began = now()
        self._generate(prompts, 1)
        middle = now()
        self._generate(prompts, tokens + 1)
        whole, first = now() - middle, middle - began
        made = {"seconds": whole - first, "tokens": tokens * sequences, "first_token_seconds": first}
        return made | {"whole_seconds": whole}

    def requests(self, count: int, context: int, tokens: int) -> dict[str, Any]:
        prompts = self.prompts(count, context)
        began = now()
        self._generate(prompts, tokens)
        return {"seconds": now() - began, "tokens": count * tokens}


serve(OpenVINO())
