"""Time this engine and its rivals in turn, on the same or equivalent files, and print ratios.

    python benchmarks/compare.py benchmarks/specs/qwen3-0.6b.json --out results.jsonl --phase decode,prefill --rounds 5

Every engine is a process of its own that stays loaded; each round times A, B, C ... one after another, so that a busy
or slow minute of the machine meets all of them alike. Before and after each sample the bandwidth of the memory is
measured. A sample during which other processes used more than `--foreign` of a core is marked as disturbed, kept in the
file and taken again; that number alone decides, never the rate. benchmarks/README.md says how to set up the rivals.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from process import PeerProcess, PeerSpec
from summary import summary

from xinheng.engine.bench.machine import machine

PHASES = ("decode", "prefill", "batch", "requests", "cold", "contexts", "batches", "prompts")
TEXT = "The tide mill turns when the sea goes out, and twice a day it stands still."
"""What a cold start reads: tokenizers are a part of it."""
PAUSE = 0.3  # seconds in which the threads of the engine before stop spinning


@dataclass(frozen=True)
class Work:
    """One thing to time: what results call it, and the request."""

    name: str
    request: dict[str, Any]


def works(phase: str, args: argparse.Namespace) -> list[Work]:
    """What a phase times; phases other than these need no list."""

    def decode(context: int, tokens: int) -> dict[str, Any]:
        return {"do": "decode", "context": context, "tokens": tokens}

    def batch(count: int) -> Work:
        tokens = max(8, min(args.tokens, args.batch_tokens // count))
        return Work(f"batch {count}", {"do": "batch", "sequences": count, "context": args.context, "tokens": tokens})

    if phase == "decode":
        return [Work("decode", decode(args.context, args.tokens))]
    if phase == "prefill":
        return [Work(f"prefill {args.prompt}", {"do": "prefill", "tokens": args.prompt})]
    if phase == "prompts":
        return [Work(f"prefill {n}", {"do": "prefill", "tokens": n}) for n in args.prompts]
    if phase == "contexts":
        return [Work(f"decode at {n}", decode(n, min(args.tokens, 32))) for n in args.contexts]
    if phase in ("batch", "batches"):
        return [batch(count) for count in (args.batch if phase == "batch" else args.batches)]
    request = {"do": "requests", "count": args.requests, "context": args.context, "tokens": args.tokens}
    return [Work(f"requests {args.requests}", request)]


class Comparison:
    """One run over a spec."""

    def __init__(self, args: argparse.Namespace, out: IO[str], log: IO[str]) -> None:
        given = json.loads(Path(args.spec).read_text())
        self.args, self.out, self.log, self.model = args, out, log, given["model"]
        self.specs = [PeerSpec(**peer) for peer in given["peers"] if not args.only or peer["name"] in args.only]
        self.results: list[dict[str, Any]] = []
        probe = PeerSpec("probe", "probe.py", ".")
        self._probe = PeerProcess(probe, args.threads, 1, 0, log)
        if self._probe.failed:
            raise SystemExit(f"the probe does not run: {self._probe.ready['error']}; see {args.log}")
        self._working_set = max((spec.weight_bytes for spec in self.specs), default=1 << 28)
        limits = self._probe.ask(do="limits", working_set=self._working_set)
        self.emit({"kind": "machine", "time": round(time.time()), **about_machine(args.threads), "limits": limits})

    def emit(self, result: dict[str, Any]) -> None:
        result = {"model": self.model, **result}
        self.results.append(result)
        print(json.dumps(result), file=self.out, flush=True)

    def bandwidth(self) -> float:
        return float(self._probe.ask(do="limits", working_set=self._working_set).get("bandwidth", 0.0))

    def chosen(self, phase: str) -> list[PeerSpec]:
        return [spec for spec in self.specs if not spec.phases or phase in spec.phases]

    def run(self, phase: str) -> None:
        if phase == "cold":
            self.cold()
            return
        todo = works(phase, self.args)
        sequences = max(work.request.get("sequences", work.request.get("count", 1)) for work in todo)
        longest = max(_length(work.request) for work in todo)
        context = longest if sequences > 1 else max(longest, self.args.window)
        peers = list(self.loaded(phase, sequences, context))
        for peer in peers:
            peer.ask(**todo[0].request | ({"tokens": 8} if "context" in todo[0].request else {}))  # not counted
        for turn in range(self.args.rounds):
            for work in todo:
                for peer in peers:
                    self.sample(phase, turn, work, peer)
        for peer in peers:
            peer.end()

    def loaded(self, phase: str, sequences: int, context: int) -> Iterator[PeerProcess]:
        for spec in self.chosen(phase):
            peer = PeerProcess(spec, self.args.threads, sequences, context, self.log)
            told = {k: v for k, v in peer.ready.items() if k != "kernels"}
            print(f"{spec.name}: {told}", flush=True)
            self.emit({"kind": "loaded", "phase": phase, "peer": spec.name, "sequences": sequences, **peer.ready})
            if peer.failed:
                peer.end()
            else:
                yield peer

    def sample(self, phase: str, turn: int, work: Work, peer: PeerProcess) -> None:
        for _ in range(self.args.retries + 1):
            time.sleep(PAUSE)
            before = self.bandwidth()
            answer = peer.ask(**work.request)
            time.sleep(PAUSE)
            around = (before + self.bandwidth()) / 2
            if answer.get("seconds"):
                answer["rate"] = answer["tokens"] / answer["seconds"]
            answer |= {"bandwidth": around, "weights": peer.spec.weight_bytes}
            self.take(phase, turn, work.name, peer.spec.name, answer)
            if not self.results[-1]["disturbed"] or "error" in answer:
                return
            time.sleep(2)

    def take(self, phase: str, turn: int, what: str, peer: str, answer: dict[str, Any]) -> None:
        """Write a sample and tell of it."""
        disturbed = answer.get("foreign", 0.0) > self.args.foreign
        place = {"kind": "sample", "phase": phase, "what": what, "peer": peer, "round": turn}
        self.emit(place | {"disturbed": disturbed, "time": round(time.time())} | answer)
        rate = f"{answer['rate']:10.2f} tokens/s" if "rate" in answer else f"{answer.get('cold_seconds', 0):10.3f} s"
        told = (
            answer.get("error") or f"{rate}, {answer.get('bandwidth', 0) / 1e9:.0f} GB/s, foreign {answer['foreign']}"
        )
        print(f"{turn} {what:16s} {peer:36s} {told}{' DISTURBED' if disturbed else ''}", flush=True)

    def cold(self) -> None:
        """From the start of a process until it has read a text and made a token; the most memory after a decode."""
        for turn in range(self.args.rounds):
            for spec in self.chosen("cold"):
                time.sleep(PAUSE)
                peer = PeerProcess(spec, self.args.threads, 1, self.args.window, self.log)
                answer = peer.ready
                if not peer.failed:
                    read = peer.ask(do="read", text=TEXT)
                    first = peer.ask(do="prefill", tokens=16)
                    cold = time.perf_counter() - peer.started
                    after = peer.ask(do="decode", context=self.args.context, tokens=16)
                    memory = {k: after[k] for k in ("peak_rss", "rss", "anonymous_rss") if k in after}
                    answer = {"cold_seconds": cold, "load_seconds": peer.ready["load_seconds"], **memory}
                    answer["foreign"] = first.get("foreign", 0.0)
                    failed = next((step["error"] for step in (read, first) if "error" in step), "")
                    answer |= {"error": failed} if failed else {"read_seconds": read["seconds"]}
                peer.end()
                self.take("cold", turn, "cold", spec.name, answer)

    def end(self) -> None:
        self._probe.end()


def _length(request: dict[str, Any]) -> int:
    """The longest sequence of a request."""
    return int(request.get("context", 0)) + int(request["tokens"]) + 2


def about_machine(threads: int) -> dict[str, Any]:
    """What a reader has to know to compare with another machine."""
    told = machine()
    names = {"processor": "processor", "cores": "processors", "memory": "memory_bytes", "system": "system"}
    return {name: told[key] for name, key in names.items()} | {"threads": threads}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("spec", help="which engine, model and phases; see benchmarks/specs")
    made.add_argument("--out", required=True, help="JSON lines are appended to this file")
    made.add_argument("--phase", default="decode,prefill,batch,requests,cold", help=f"of {', '.join(PHASES)}")
    made.add_argument("--only", nargs="*", help="names of engines")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--context", type=int, default=128, help="prompt of a decode")
    made.add_argument("--tokens", type=int, default=128, help="decode steps")
    made.add_argument("--prompt", type=int, default=512, help="tokens of a prefill")
    made.add_argument("--window", type=int, default=4096, help="longest sequence that a single one may have")
    made.add_argument("--batch", type=numbers, default=[8, 32])
    made.add_argument("--batch-tokens", type=int, default=2048, help="tokens that a batch makes at most")
    made.add_argument("--requests", type=int, default=32)
    made.add_argument("--contexts", type=numbers, default=[128, 512, 2048, 8192, 32000])
    made.add_argument("--batches", type=numbers, default=[1, 2, 4, 8, 16, 32, 64])
    made.add_argument("--prompts", type=numbers, default=[32, 128, 512, 2048])
    made.add_argument("--foreign", type=float, default=0.15, help="share of a core that disturbs a sample")
    made.add_argument("--retries", type=int, default=2, help="times a disturbed sample is taken again")
    made.add_argument("--reference", default="", help="engine that ratios are to; the first of the spec")
    made.add_argument("--log", default=os.devnull, help="where the engines' own output goes")
    return made


def main() -> None:
    args = parser().parse_args()
    wrong = set(args.phase.split(",")) - set(PHASES)
    if wrong:
        raise SystemExit(f"unknown phase {', '.join(sorted(wrong))}; phases are {', '.join(PHASES)}")
    with open(args.out, "a") as out, open(args.log, "a") as log:
        comparison = Comparison(args, out, log)
        try:
            for phase in args.phase.split(","):
                comparison.run(phase)
        finally:
            comparison.end()
    print(summary(comparison.results, args.reference or comparison.specs[0].name))


if __name__ == "__main__":
    main()
