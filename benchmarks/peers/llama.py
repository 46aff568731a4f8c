"""llama.cpp through the low-level API of llama-cpp-python, or ik_llama.cpp with `--ik`; numpy takes the likeliest."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from protocol import Peer, now, serve


class Llama(Peer):
    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ik", action="store_true", help="ik_llama.cpp")
        parser.add_argument("--repack", action="store_true", help="ik_llama.cpp only: repack weights while loading")
        parser.add_argument("--flash-attention", type=int, default=-1, help="-1 auto, 0 off, 1 on")
        parser.add_argument("--cache", choices=("f16", "q8_0"), default="f16")
        parser.add_argument("--ubatch", type=int, default=512)

    def load(self, args: argparse.Namespace) -> None:
        if args.ik:
            from ik_llama_cpp import _ctypes_api as api
        else:
            import llama_cpp as api
        self.api: Any = api
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        if args.repack:
            params.repack_tensors, params.use_mmap = True, False
        load = getattr(api, "llama_model_load_from_file", None) or api.llama_load_model_from_file
        self.model = load(args.model.encode(), params)
        if not self.model:
            raise RuntimeError("the model was not loaded")
        self.context = self._context(args)
        if hasattr(api, "llama_model_get_vocab"):
            self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        else:
            self.vocabulary = api.llama_n_vocab(self.model)

    def _context(self, args: argparse.Namespace) -> Any:
        api, count = self.api, args.sequences
        params = api.llama_context_default_params()
        self.budget = max(2048, 128 * count)
        params.n_ctx, params.n_batch, params.n_ubatch = args.context * count, self.budget, args.ubatch
        params.n_seq_max, params.n_threads, params.n_threads_batch = count, args.threads, args.threads
        if hasattr(params, "flash_attn_type"):
            params.flash_attn_type = args.flash_attention
        elif hasattr(params, "flash_attn"):
            params.flash_attn = args.flash_attention != 0
        if hasattr(params, "kv_unified"):
            params.kv_unified = count == 1
        if args.cache == "q8_0":
            params.type_k = params.type_v = 8  # GGML_TYPE_Q8_0
        make = getattr(api, "llama_init_from_model", None) or api.llama_new_context_with_model
        made = make(self.model, params)
        if not made:
            raise RuntimeError("no context")
        self.tokens = api.llama_batch_init(self.budget, 0, count)
        return made

    def about(self) -> dict[str, Any]:
        import importlib.metadata

        name = "ik-llama-cpp-python" if "ik_llama" in self.api.__name__ else "llama-cpp-python"
        told = {"version": importlib.metadata.version(name)}
        if hasattr(self.api, "llama_print_system_info"):
            told["system"] = self.api.llama_print_system_info().decode()[:400]
        return told

    def ids(self, text: str) -> list[int]:
        api, given = self.api, text.encode()
        room = (api.llama_token * (len(given) + 2))()
        fork = "ik_llama" in api.__name__  # there a text is read by a model, here by a vocabulary
        of = self.model if fork else api.llama_model_get_vocab(self.model)
        count = api.llama_tokenize(of, given, len(given), room, len(room), True, False)
        return list(room[:count])

    def _clear(self) -> None:
        if hasattr(self.api, "llama_memory_clear"):
            self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        else:
            self.api.llama_kv_cache_clear(self.context)

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Compute (token, position, sequence, whether logits are wanted)."""
        batch = self.tokens
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if self.api.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def _best(self, row: int) -> int:
        pointer = self.api.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(pointer, shape=(self.vocabulary,)).argmax())

    def _prompt(self, prompts: list[list[int]]) -> list[int]:
        """Prefill prompts of one length, as many at once as fit, and return the first token of each."""
        length, found = len(prompts[0]), []
        together = max(1, self.budget // length)
        for start in range(0, len(prompts), together):
            part = list(enumerate(prompts))[start : start + together]
            rows = [(t, p, s, p == length - 1) for s, ids in part for p, t in enumerate(ids)]
            for at in range(0, len(rows), self.budget):
                self._run(rows[at : at + self.budget])
            if together == 1:
                found.append(self._best(-1))
            else:
                found += [self._best((i + 1) * length - 1) for i in range(len(part))]
        return found

    def _generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        self._clear()
        length = len(prompts[0])
        began = now()
        last = self._prompt(prompts)
        first = now()
        for k in range(tokens):
            self._run([(token, length + k, s, True) for s, token in enumerate(last)])
            last = [self._best(s) for s in range(len(prompts))]
        ended = now()
        made = {"seconds": ended - first, "tokens": tokens * len(prompts), "first_token_seconds": first - began}
        return made | {"whole_seconds": ended - began}

    def decode(self, context: int, tokens: int) -> dict[str, Any]:
        return self._generate([self.prompt(context)], tokens)

    def prefill(self, tokens: int) -> dict[str, Any]:
        made = self._generate([self.prompt(tokens)], 0)
        return {"seconds": made["first_token_seconds"], "tokens": tokens}

    def batch(self, sequences: int, context: int, tokens: int) -> dict[str, Any]:
        return self._generate(self.prompts(sequences, context), tokens)

    def requests(self, count: int, context: int, tokens: int) -> dict[str, Any]:
        made = self._generate(self.prompts(count, context), tokens - 1)
        return {"seconds": made["whole_seconds"], "tokens": count * tokens}


serve(Llama())
