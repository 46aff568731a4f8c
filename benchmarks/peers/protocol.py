"""What all drivers share: a line protocol, so that one program can hold several engines loaded and time them in turn.

A driver subclasses `Peer` and calls `serve`. It prints one JSON object when it has loaded its model, then reads one
request per line and answers each with one line:

    {"do": "decode", "context": 128, "tokens": 128}                 one sequence; decode steps only are timed
    {"do": "prefill", "tokens": 512}                                until the first token is known
    {"do": "batch", "sequences": 8, "context": 128, "tokens": 64}   decode steps of sequences that run together
    {"do": "requests", "count": 32, "context": 128, "tokens": 128}  requests handed in at once, until the last has ended
    {"do": "read", "text": "Once upon a time"}                      the ids of a text; `tokens` says how many
    {"do": "quit"}

An answer holds `seconds` and `tokens` (those whose time `seconds` is), or `error`, and always the memory that the
process takes. This file needs the standard library only; it runs in the environment of every engine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from typing import Any

now = time.perf_counter
VOCABULARY = 32000
"""Random prompts have ids below this, which every vocabulary here has."""


class Peer:
    """An engine with a model."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Add options of this engine."""

    def load(self, args: argparse.Namespace) -> None:
        """Load `args.model` for `args.threads` threads, `args.sequences` sequences of up to `args.context` tokens."""
        raise NotImplementedError

    def about(self) -> dict[str, Any]:
        """Versions and what else a reader of the results should know."""
        return {}

    def decode(self, context: int, tokens: int) -> dict[str, Any]:
        raise NotImplementedError

    def prefill(self, tokens: int) -> dict[str, Any]:
        raise NotImplementedError

    def ids(self, text: str) -> list[int]:
        """The ids of a text, by the tokenizer that comes with the model."""
        raise NotImplementedError

    def read(self, text: str) -> dict[str, Any]:
        began = now()
        count = len(self.ids(text))
        return {"seconds": now() - began, "tokens": count}

    def batch(self, sequences: int, context: int, tokens: int) -> dict[str, Any]:
        return {"error": "this engine has no batches"}

    def requests(self, count: int, context: int, tokens: int) -> dict[str, Any]:
        return {"error": "this engine has no batches"}

    def prompt(self, length: int) -> list[int]:
        """Random ids, others every time, so that no engine can reuse what it computed before."""
        return [self._random.randrange(300, VOCABULARY) for _ in range(length)]

    def prompts(self, count: int, length: int) -> list[list[int]]:
        return [self.prompt(length) for _ in range(count)]


class GeneratingPeer(Peer):
    """An engine that makes the first token of all prompts at once and then steps with all sequences."""

    def generate(self, sequences: int, context: int, tokens: int) -> dict[str, Any]:
        """`seconds` of the steps behind the first token and their `tokens`, `first_token_seconds`, `whole_seconds`."""
        raise NotImplementedError

    def decode(self, context: int, tokens: int) -> dict[str, Any]:
        return self.generate(1, context, tokens)

    def prefill(self, tokens: int) -> dict[str, Any]:
        made = self.generate(1, tokens, 0)
        return {"seconds": made["first_token_seconds"], "tokens": tokens}

    def batch(self, sequences: int, context: int, tokens: int) -> dict[str, Any]:
        return self.generate(sequences, context, tokens)

    def requests(self, count: int, context: int, tokens: int) -> dict[str, Any]:
        made = self.generate(count, context, tokens - 1)
        return {"seconds": made["whole_seconds"], "tokens": count * tokens}


def memory() -> dict[str, int]:
    """Bytes resident: the most ever, now, and of those the ones that belong to no file. Empty where not known."""
    names = {"VmHWM": "peak_rss", "VmRSS": "rss", "RssAnon": "anonymous_rss"}
    try:
        with open("/proc/self/status") as lines:
            fields = dict(line.split(":", 1) for line in lines)
    except OSError:
        return {}
    return {told: int(fields[name].split()[0]) * 1024 for name, told in names.items() if name in fields}


def serve(peer: Peer) -> None:
    """Load and answer requests until told to quit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=1, help="most sequences of a batch")
    parser.add_argument("--context", type=int, default=4096, help="longest sequence")
    peer.options(parser)
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # engines that print must not break the protocol

    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values | memory()), file=answers)

    began = now()
    try:
        peer.load(args)
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"loading: {type(error).__name__}: {error}"[:500]})
        return
    answer({"load_seconds": now() - began, **peer.about()})
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        if what == "quit":
            break
        try:
            answer(getattr(peer, what)(**request))
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"[:500]})
    answers.flush()
    os._exit(0)  # some engines do not end by themselves
