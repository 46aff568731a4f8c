"""Engines as processes: started, asked through pipes, and watched for what else used the processor meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

PEERS = Path(__file__).parent / "peers"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class PeerSpec:
    """An engine with a model, as a file in `specs` describes it.

    `$NAME` in `python` and `model` is replaced from the environment; no `python` is the one that runs this. `weights`
    are the bytes that a decode step reads; by default what the model's files hold, which is too much where an embedding
    is not the output matrix too.
    """

    name: str
    driver: str
    model: str
    python: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    phases: Sequence[str] = ()
    weights: int = 0

    @property
    def path(self) -> Path:
        return Path(os.path.expandvars(self.model))

    @property
    def weight_bytes(self) -> int:
        if self.weights or not self.path.exists():
            return self.weights
        files = [self.path] if self.path.is_file() else list(self.path.iterdir())
        kinds = {".gguf", ".safetensors", ".data", ".onnx", ".bin"}
        skipped = {"openvino_tokenizer.bin", "openvino_detokenizer.bin"}
        return sum(f.stat().st_size for f in files if f.suffix in kinds and f.name not in skipped)


class PeerProcess:
    """A driver under way. `ready` is its first answer: what loading took, or an error."""

    def __init__(self, spec: PeerSpec, threads: int, sequences: int, context: int, log: IO[str]) -> None:
        python = os.path.expandvars(spec.python) or sys.executable
        command = [python, str(PEERS / spec.driver), "--model", str(spec.path), "--threads", str(threads)]
        command += ["--sequences", str(sequences), "--context", str(context), *spec.args]
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="false", **spec.env)
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # a cold start is not the first one ever: modules are compiled
        self.spec, self.started = spec, time.perf_counter()
        try:
            self._process: subprocess.Popen[str] | None = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env
            )
        except OSError as error:
            self._process, self.ready = None, {"error": f"{python}: {error.strerror}"}
            return
        self.ready = self._answer()

    @property
    def failed(self) -> bool:
        return "error" in self.ready

    def ask(self, **request: Any) -> dict[str, Any]:
        """One answer, with `foreign`: the share of one core that other processes used meanwhile."""
        if self._process is None or self._process.poll() is not None or self._process.stdin is None:
            return {"error": "the process has ended"}
        busy, own, began = _busy(), _used(self._process.pid), time.perf_counter()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": "the process has ended"}
        answer = self._answer()
        taken = time.perf_counter() - began
        foreign = (_busy() - busy) - (_used(self._process.pid) - own)
        return answer | {"foreign": round(max(0.0, foreign) / taken, 3)}

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
        return {"error": "the process has ended; see --log"}

    def end(self) -> None:
        if self._process is None:
            return
        try:
            self._process.communicate('{"do": "quit"}\n', timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        except (BrokenPipeError, ValueError):
            self._process.wait()


def _busy() -> float:
    """Seconds that all processors spent on anything, since boot."""
    with open("/proc/stat") as file:
        fields = [int(x) for x in file.readline().split()[1:]]
    return (sum(fields[:3]) + fields[5] + fields[6]) / TICKS


def _used(pid: int) -> float:
    """Seconds that a process and its descendants spent."""
    total, waiting = 0.0, [pid]
    while waiting:
        root = Path("/proc") / str(waiting.pop())
        try:
            fields = (root / "stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
            for task in (root / "task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return total
