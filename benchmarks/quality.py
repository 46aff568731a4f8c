"""How far rounder arithmetic moves predictions: fast mode and llama.cpp on one GGUF file, against float32.

    python benchmarks/quality.py model.gguf --llama-python ~/llama-venv/bin/python --out quality.json

Pieces of a text are forced through the model, each from an empty cache: in strict mode with everything in float32, in
fast mode, and in llama.cpp as it comes (the venv of that Python has llama-cpp-python). Of the distributions p of strict
and q of another at each position, this prints the mean and the 99th percentile of KL(p || q) in nats, how often the
likeliest token is the same, and the perplexities. Errors in the first tokens of a piece touch all that follow, so means
are compared by piece: the standard error of a mean is that of the means of pieces. The text is documentation of
Python's standard library; the digest of its ids is printed, since that may differ between versions.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from xinheng.engine import LLM

PIECE = 256
"""Tokens that are forced through a model from an empty cache, and whose logits are in memory at a time."""
MODULES = (
    "argparse",
    "bisect",
    "calendar",
    "difflib",
    "fractions",
    "heapq",
    "random",
    "shlex",
    "statistics",
    "textwrap",
)


def text() -> str:
    """Documentation of some modules, their functions and their classes, in order of their names."""
    pages = []
    for name in MODULES:
        module = importlib.import_module(name)
        parts = [module, *(part for _, part in sorted(inspect.getmembers(module)) if _documented(part, name))]
        pages += [page for part in parts if (page := inspect.getdoc(part))]
    return "\n\n".join(pages)


def _documented(part: object, module: str) -> bool:
    return (inspect.isfunction(part) or inspect.isclass(part)) and part.__module__ == module


@dataclass
class Distance:
    """How far distributions q are from p; `kl` by piece and position."""

    kl: list[list[float]] = field(default_factory=list)
    same: int = 0
    loss: float = 0.0

    def add(self, log_p: NDArray[Any], log_q: NDArray[Any], following: NDArray[Any]) -> None:
        """A piece: logarithms of both [positions, vocabulary], and the tokens that follow [positions - 1]."""
        self.kl.append(np.maximum((np.exp(log_p) * (log_p - log_q)).sum(-1), 0.0).tolist())
        self.same += int((log_p.argmax(-1) == log_q.argmax(-1)).sum())
        self.loss -= float(log_q[np.arange(len(following)), following].sum())

    def figures(self) -> dict[str, float]:
        """Means over all positions, and the standard error of the mean of KL by piece."""
        pieces = np.array(self.kl)
        return {
            "mean_kl": float(pieces.mean()),
            "standard_error": float(pieces.mean(-1).std(ddof=1) / len(pieces) ** 0.5),
            "median_kl": float(np.median(pieces)),
            "p99_kl": float(np.quantile(pieces, 0.99)),
            "max_kl": float(pieces.max()),
            "top1_agreement": self.same / pieces.size,
            "perplexity": float(np.exp(self.loss / (pieces.size - len(pieces)))),
        }


def log_softmax(x: NDArray[Any]) -> NDArray[np.float64]:
    """Of rows, in float64."""
    wide = x.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return np.asarray(wide)


# ---------------------------------------------------------------------------------------------------------- this engine
def opened(model: Path, numerics: str, threads: int) -> LLM:
    """The model in a numerics mode, activations and cache in float32."""
    from xinheng.core.settings import RuntimeSettings
    from xinheng.engine import LLM, EngineSettings

    runtime = RuntimeSettings.model_validate(
        {"device": "cpu:0", "dtype": "float32", "numerics": numerics, "threads": threads}
    )
    settings = EngineSettings(max_num_seqs=1, max_model_len=PIECE, prefill_chunk=PIECE, max_num_batched_tokens=PIECE)
    return LLM(model, runtime=runtime, settings=settings)


# ------------------------------------------------------------------------------------------------------------ llama.cpp
def llama_rows(
    python: Path, model: Path, ids: Sequence[int], vocabulary: int, threads: int
) -> Iterator[NDArray[np.float32]]:
    """Logits of llama.cpp by piece [positions, vocabulary], from a process of another Python."""
    command = [str(python), __file__, str(model), "--serve", "--threads", str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(list(ids)).encode())
        child.stdin.close()
        for start in range(0, len(ids), PIECE):
            raw = child.stdout.read(4 * PIECE * vocabulary)
            if len(raw) < 4 * PIECE * vocabulary:
                raise SystemExit(f"llama.cpp ended after {start} positions; run {' '.join(command)} to see why")
            yield np.frombuffer(raw, np.float32).reshape(-1, vocabulary)


def serve(model: Path, threads: int) -> None:
    """Inside the other Python: read ids from standard input, write their logits to standard output."""
    # the library prints to standard output, so the descriptor is kept for ourselves
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        import llama_cpp as library

        ids = json.load(sys.stdin)
        context = _llama_context(library, model, threads)
        vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(library.llama_get_model(context)))
        batch = library.llama_batch_init(PIECE, 0, 1)
        for start in range(0, len(ids), PIECE):
            library.llama_memory_clear(library.llama_get_memory(context), True)
            batch.n_tokens = PIECE
            for i in range(PIECE):
                batch.token[i], batch.pos[i], batch.logits[i] = ids[start + i], i, 1
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            if library.llama_decode(context, batch):
                raise SystemExit(f"llama_decode failed at position {start}")
            rows = np.ctypeslib.as_array(library.llama_get_logits(context), (PIECE, vocabulary))
            out.write(rows.astype(np.float32).tobytes())


def _llama_context(library: Any, model: Path, threads: int) -> Any:
    library.llama_backend_init()
    of_model = library.llama_model_default_params()
    of_model.n_gpu_layers = 0
    loaded = library.llama_model_load_from_file(str(model).encode(), of_model)
    if not loaded:
        raise SystemExit(f"llama.cpp does not load {model}")
    of_context = library.llama_context_default_params()
    of_context.n_ctx, of_context.n_batch, of_context.n_ubatch, of_context.n_seq_max = PIECE, PIECE, PIECE, 1
    of_context.n_threads = of_context.n_threads_batch = threads
    return library.llama_init_from_model(loaded, of_context)


# -------------------------------------------------------------------------------------------------------------- command
def measured(args: argparse.Namespace) -> dict[str, Any]:
    """The figures of all engines on a model, and what they were measured on."""
    with (
        opened(args.model, "strict", args.threads) as strict,
        opened(args.model, "fast", args.threads) as fast,
    ):
        ids = pieces_of(strict, args.pieces)
        starts = range(0, len(ids), PIECE)
        engines: dict[str, Iterator[NDArray[Any]]] = {
            "strict": (strict.logits(ids[start : start + PIECE]) for start in starts),
            "fast": (fast.logits(ids[start : start + PIECE]) for start in starts),
        }
        if args.llama_python:
            vocabulary = strict.info.vocab_size
            engines["llama.cpp"] = llama_rows(args.llama_python, args.model, ids, vocabulary, args.threads)
        distances = {name: Distance() for name in engines}
        for start in starts:
            following = np.array(ids[start + 1 : start + PIECE])
            exact = log_softmax(next(engines["strict"]))
            for name, distance in distances.items():
                distance.add(exact, exact if name == "strict" else log_softmax(next(engines[name])), following)
    return {
        "model": args.model.name,
        "tokens": len(ids),
        "ids": hashlib.sha256(np.array(ids, np.int32).tobytes()).hexdigest()[:16],
        "figures": {name: distance.figures() for name, distance in distances.items()},
    }


def pieces_of(llm: LLM, count: int) -> list[int]:
    """The ids of the text in pieces one behind the other, each with the first token that a text has, if it has one."""
    ids, empty = llm.encode(text()), llm.encode("")
    step = PIECE - len(empty)
    body = ids[len(empty) :]
    if len(body) < count * step:
        raise SystemExit(f"the text has {len(body) // step} pieces only; ask for fewer --pieces")
    return [id for i in range(count) for id in (*empty, *body[i * step : (i + 1) * step])]


def main() -> int:
    """Measure and print; status 1 if fast mode is farther from float32 than llama.cpp."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--llama-python", type=Path, help="Python that has llama-cpp-python; without it, ours only")
    parser.add_argument("--pieces", type=int, default=16, help=f"of {PIECE} tokens each; two or more")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.model, args.threads)
        return 0
    made = measured(args)
    if args.out:
        args.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{made['model']}, {made['tokens']} tokens (ids {made['ids']})")
    print(f"{'':12}{'mean KL':>12}{'+-':>12}{'median':>12}{'99th':>12}{'top-1':>9}{'perplexity':>12}")
    for name, f in made["figures"].items():
        columns = "".join(f"{f[key]:12.6f}" for key in ("mean_kl", "standard_error", "median_kl", "p99_kl"))
        print(f"{name:12}{columns}{f['top1_agreement']:9.2%}{f['perplexity']:12.4f}")
    rival = made["figures"].get("llama.cpp")
    return int(rival is not None and made["figures"]["fast"]["mean_kl"] > rival["mean_kl"])


if __name__ == "__main__":
    sys.exit(main())
