"""ONNX Runtime GenAI on a folder that `onnxruntime_genai.models.builder` wrote."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from typing import Any

import numpy as np
import onnxruntime_genai as runtime
from protocol import GeneratingPeer, now, serve


class ONNXRuntime(GeneratingPeer):
    def load(self, args: argparse.Namespace) -> None:
        with suppress(AttributeError):
            runtime.disable_telemetry_events()
        config = runtime.Config(args.model)
        session = {"session_options": {"intra_op_num_threads": args.threads}}
        config.overlay(json.dumps({"model": {"decoder": session}}))
        self.model = runtime.Model(config)

    def about(self) -> dict[str, Any]:
        return {"version": runtime.__version__}

    def ids(self, text: str) -> list[int]:
        return list(map(int, runtime.Tokenizer(self.model).encode(text)))

    def generate(self, sequences: int, context: int, tokens: int) -> dict[str, Any]:
        params, length = runtime.GeneratorParams(self.model), context + tokens + 1
        params.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=sequences)
        ids = np.array(self.prompts(sequences, context), np.int32)
        began = now()
        generator = runtime.Generator(self.model, params)
        generator.append_tokens(ids)
        generator.generate_next_token()
        first = now()
        for _ in range(tokens):
            generator.generate_next_token()
        ended = now()
        made = {"seconds": ended - first, "tokens": tokens * sequences, "first_token_seconds": first - began}
        return made | {"whole_seconds": ended - began}


serve(ONNXRuntime())
