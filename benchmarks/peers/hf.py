"""transformers on torch, eager, on a folder in its own layout or a GGUF file that it expands."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import transformers
from protocol import GeneratingPeer, now, serve


class Transformers(GeneratingPeer):
    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")

    def load(self, args: argparse.Namespace) -> None:
        torch.set_num_threads(args.threads)
        torch.set_grad_enabled(False)
        folder, given = args.model, {}
        if args.model.endswith(".gguf"):
            folder, given["gguf_file"] = os.path.split(os.path.abspath(args.model))
        self.folder, kind = folder, getattr(torch, args.dtype)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind, **given).eval()

    def about(self) -> dict[str, Any]:
        return {"version": transformers.__version__, "torch": torch.__version__}

    def ids(self, text: str) -> list[int]:
        found: list[int] = transformers.AutoTokenizer.from_pretrained(self.folder)(text)["input_ids"]
        return found

    def generate(self, sequences: int, context: int, tokens: int) -> dict[str, Any]:
        ids = torch.tensor(self.prompts(sequences, context))
        began = now()
        cache = transformers.DynamicCache(config=self.model.config)
        found = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        last = found.logits[:, -1].argmax(-1, keepdim=True)
        first = now()
        for _ in range(tokens):
            found = self.model(input_ids=last, past_key_values=cache, use_cache=True)
            last = found.logits[:, -1].argmax(-1, keepdim=True)
        last.tolist()
        ended = now()
        made = {"seconds": ended - first, "tokens": tokens * sequences, "first_token_seconds": first - began}
        return made | {"whole_seconds": ended - began}


serve(Transformers())
