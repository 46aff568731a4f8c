"""How far rounder arithmetic moves predictions: fast mode and llama.cpp on one GGUF file, against float32.

    python benchmarks/quality.py model.gguf --llama-python ~/llama-venv/bin/python --out quality.json

A text is forced through the model: in strict mode with everything in float32, in fast mode, and in llama.cpp (the venv
of that Python has llama-cpp-python) as it comes, and once more with a cache of float32. Of the distributions p of
strict and q of another at each position, this prints the mean and the 99th percentile of KL(p || q) in nats, how often
the likeliest token is the same, and the perplexities. The text is documentation of Python's standard library; the
digest of its ids is printed, since that may differ between versions.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from xinheng.engine import LLM

CHUNK = 256
"""Positions whose logits are in memory at a time."""
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
GGML_F32, GGML_F16 = 0, 1


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
    """How far distributions q are from p, position by position."""

    kl: list[float] = field(default_factory=list)
    same: int = 0
    loss: float = 0.0

    def add(self, p: NDArray[Any], q: NDArray[Any], following: NDArray[Any]) -> None:
        """Logits [positions, vocabulary] of both, and the tokens that follow [positions, or one less at the end]."""
        log_p, log_q = log_softmax(p), log_softmax(q)
        self.kl += np.maximum((np.exp(log_p) * (log_p - log_q)).sum(-1), 0.0).tolist()
        self.same += int((log_p.argmax(-1) == log_q.argmax(-1)).sum())
        self.loss -= float(log_q[np.arange(len(following)), following].sum())

    def figures(self) -> dict[str, float]:
        """Means over all positions."""
        count = len(self.kl)
        return {
            "mean_kl": float(np.mean(self.kl)),
            "median_kl": float(np.median(self.kl)),
            "p99_kl": float(np.quantile(self.kl, 0.99)),
            "max_kl": float(np.max(self.kl)),
            "top1_agreement": self.same / count,
            "perplexity": float(np.exp(self.loss / (count - 1))),
        }


def log_softmax(x: NDArray[Any]) -> NDArray[np.float64]:
    """Of rows, in float64."""
    wide = x.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return np.asarray(wide)


# ---------------------------------------------------------------------------------------------------------- this engine
def opened(model: Path, numerics: str, threads: int, tokens: int) -> LLM:
    """The model in a numerics mode, activations and cache in float32."""
    from xinheng.core.settings import RuntimeSettings
    from xinheng.engine import LLM, EngineSettings

    runtime = RuntimeSettings.model_validate(
        {"device": "cpu:0", "dtype": "float32", "numerics": numerics, "threads": threads}
    )
    settings = EngineSettings(max_num_seqs=1, max_model_len=tokens, prefill_chunk=CHUNK, max_num_batched_tokens=CHUNK)
    return LLM(model, runtime=runtime, settings=settings)


# ------------------------------------------------------------------------------------------------------------ llama.cpp
def llama_rows(
    python: Path, model: Path, ids: Sequence[int], vocabulary: int, threads: int, cache: str
) -> Iterator[NDArray[np.float32]]:
    """Logits of llama.cpp in chunks [positions, vocabulary], from a process of another Python."""
    command = [str(python), __file__, str(model), "--serve", cache, "--threads", str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(list(ids)).encode())
        child.stdin.close()
        for start in range(0, len(ids), CHUNK):
            count = min(CHUNK, len(ids) - start) * vocabulary
            raw = child.stdout.read(4 * count)
            if len(raw) < 4 * count:
                raise SystemExit(f"llama.cpp ended after {start} positions; run {' '.join(command)} to see why")
            yield np.frombuffer(raw, np.float32).reshape(-1, vocabulary)


def serve(model: Path, cache: str, threads: int) -> None:
    """Inside the other Python: read ids from standard input, write their logits to standard output."""
    # the library prints to standard output, so the descriptor is kept for ourselves
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        import llama_cpp as library

        ids = json.load(sys.stdin)
        context = _llama_context(library, model, len(ids), cache, threads)
        vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(library.llama_get_model(context)))
        batch = library.llama_batch_init(CHUNK, 0, 1)
        for start in range(0, len(ids), CHUNK):
            batch.n_tokens = min(CHUNK, len(ids) - start)
            for i in range(batch.n_tokens):
                batch.token[i], batch.pos[i], batch.logits[i] = ids[start + i], start + i, 1
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            if library.llama_decode(context, batch):
                raise SystemExit(f"llama_decode failed at position {start}")
            rows = np.ctypeslib.as_array(library.llama_get_logits(context), (batch.n_tokens, vocabulary))
            out.write(rows.astype(np.float32).tobytes())


def _llama_context(library: Any, model: Path, tokens: int, cache: str, threads: int) -> Any:
    library.llama_backend_init()
    of_model = library.llama_model_default_params()
    of_model.n_gpu_layers = 0
    loaded = library.llama_model_load_from_file(str(model).encode(), of_model)
    if not loaded:
        raise SystemExit(f"llama.cpp does not load {model}")
    of_context = library.llama_context_default_params()
    of_context.n_ctx, of_context.n_batch, of_context.n_ubatch, of_context.n_seq_max = tokens + 8, CHUNK, CHUNK, 1
    of_context.n_threads = of_context.n_threads_batch = threads
    of_context.type_k = of_context.type_v = GGML_F32 if cache == "float32" else GGML_F16
    return library.llama_init_from_model(loaded, of_context)


# -------------------------------------------------------------------------------------------------------------- command
@contextmanager
def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The figures of all engines on a model, and what they were measured on."""
    wanted = args.tokens
    with (
        opened(args.model, "strict", args.threads, wanted) as strict,
        opened(args.model, "fast", args.threads, wanted) as fast,
    ):
        ids = strict.encode(text())[:wanted]
        if len(ids) < wanted:
            raise SystemExit(f"the text has {len(ids)} tokens only; ask for --tokens {len(ids)}")
        sources: dict[str, Iterator[NDArray[Any]]] = {"fast": (rows for _, rows in fast.logits_by_chunk(ids, CHUNK))}
        for cache in ("float16", "float32") if args.llama_python else ():
            sources[f"llama.cpp, cache {cache}"] = llama_rows(
                args.llama_python, args.model, ids, strict.info.vocab_size, args.threads, cache
            )
        distances = {name: Distance() for name in ("strict", *sources)}
        for start, p in strict.logits_by_chunk(ids, CHUNK):
            following = np.array(ids[start + 1 : start + 1 + len(p)])
            distances["strict"].add(p, p, following)
            for name, rows in sources.items():
                distances[name].add(p, next(rows), following)
        digest = hashlib.sha256(np.array(ids, np.int32).tobytes()).hexdigest()[:16]
        yield {
            "model": args.model.name,
            "tokens": len(ids),
            "ids": digest,
            "figures": {name: distance.figures() for name, distance in distances.items()},
        }


def main() -> int:
    """Measure and print; status 1 if fast mode is farther from float32 than llama.cpp."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--llama-python", type=Path, help="Python that has llama-cpp-python; without it, ours only")
    parser.add_argument("--tokens", type=int, default=2048, help="length of the text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--serve", metavar="CACHE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.model, args.serve, args.threads)
        return 0
    with measured(args) as made:
        if args.out:
            args.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        print(f"{made['model']}, {made['tokens']} tokens (ids {made['ids']})")
        print(f"{'':24}{'mean KL':>12}{'median':>12}{'99th':>12}{'top-1':>9}{'perplexity':>12}")
        for name, f in made["figures"].items():
            columns = "".join(f"{f[key]:12.6f}" for key in ("mean_kl", "median_kl", "p99_kl"))
            print(f"{name:24}{columns}{f['top1_agreement']:9.2%}{f['perplexity']:12.4f}")
        rivals = [f["mean_kl"] for name, f in made["figures"].items() if name.startswith("llama")]
        return int(bool(rivals) and made["figures"]["fast"]["mean_kl"] > rivals[0])


if __name__ == "__main__":
    sys.exit(main())
