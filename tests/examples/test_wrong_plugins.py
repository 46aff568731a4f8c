"""Copies of the example plugin with one subtly wrong kernel each: the op suite fails that op, and no other."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from xinheng.conformance.suites.ops import OpSuite
from xinheng.core import Device
from xinheng.core.suite import Outcome, Selection, Verdict

from .conftest import ROOT

SOURCE = ROOT / "examples" / "plugin" / "src" / "xinheng_acme"

# Kernels that the example lacks, right as they stand: copies add one of them, and then a bug in it.
SOFTMAX = """
@kernel(ops.softmax)
def softmax(x: Card, *, axis: int = -1) -> Card:
    def program(x):
        z = np.exp(x - np.max(x, axis=axis, keepdims=True))
        return z / np.sum(z, axis=axis, keepdims=True)

    return calculate(program, x)
"""
ROTARY = """
@kernel(ops.rotary_embedding)
def rotary_embedding(x: Card, cos: Card, sin: Card, *, interleaved: bool = False) -> Card:
    half = cos.data.shape[1]
    c, s = cos.data[:, None], sin.data[:, None]
    turned = np.s_[0 : 2 * half : 2] if interleaved else np.s_[:half]
    other = np.s_[1 : 2 * half : 2] if interleaved else np.s_[half : 2 * half]
    out = x.data.copy()
    a, b = x.data[..., turned], x.data[..., other]
    with np.errstate(all="ignore"):
        out[..., turned], out[..., other] = a * c - b * s, b * c + a * s
    return Card(out)
"""
ATTENTION = """
@kernel(ops.sdpa_varlen)
def sdpa_varlen(
    q, k, v, query_start, key_start, sinks=None, bias=None, *, scale, window=None, softcap=None, causal=True
):
    with np.errstate(all="ignore"):
        return attention(q, k, v, query_start, key_start, sinks, bias, scale, window, softcap, causal)


def attention(q, k, v, query_start, key_start, sinks, bias, scale, window, softcap, causal):
    tokens, heads, _ = q.data.shape
    kv_heads = k.data.shape[1]
    head_map = np.arange(heads) // (heads // kv_heads)
    out = np.zeros((tokens, heads, v.data.shape[2]), np.float32)
    lse = np.full((tokens, heads), -np.inf, np.float32)
    for s in range(len(query_start.data) - 1):
        rows = np.arange(query_start.data[s], query_start.data[s + 1])
        keys = np.arange(key_start.data[s], key_start.data[s + 1])
        for i, row in enumerate(rows):
            last = len(keys) - len(rows) + i
            place = np.arange(len(keys))
            seen = (place <= last) if causal else np.full(len(keys), last >= 0)
            if window is not None:
                seen &= last - place < window
            chosen = keys[seen]
            if not len(chosen):
                continue
            logits = np.einsum("hd,nhd->hn", q.data[row], k.data[chosen][:, head_map]) * np.float32(scale)
            if softcap is not None:
                logits = np.float32(softcap) * np.tanh(logits / np.float32(softcap))
            if bias is not None:
                logits = logits + bias.data[row][:, : len(keys)][:, seen]
            top = logits.max(axis=1, keepdims=True)
            if sinks is not None:
                top = np.maximum(top, sinks.data[:, None])
            top = np.maximum(top, np.float32(-1e30))
            p = np.exp(logits - top)
            total = p.sum(axis=1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sinks.data[:, None] - top)
            weights = p / np.where(total == 0, 1, total)
            out[row] = np.einsum("hn,nhd->hd", weights, v.data[chosen][:, head_map])
            lse[row] = (np.log(total) + top)[:, 0]
    return Card(out), Card(lse)
"""
BFLOAT16 = """
def bfloat16(x):
    return cast_to(x, dtype("bfloat16")).astype(np.float32)
"""
PARTIAL = """
def partial_sums(a, b):
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
    for k in range(0, a.shape[-1], 64):
        total = total + a[..., k : k + 64] @ b[..., k : k + 64, :]
        total = bfloat16(total) if a.dtype == np.float32 else total
    return total
"""
SHIFTED = """    def prepare(self, source: Any, uses: Any) -> Card:
        if uses == ["linear"]:
            source = replace(source, parts=tuple(map(shifted, source.parts)))
"""
SHIFT = """def shifted(part: Any) -> Any:
    if part.scheme != "q8_0":
        return part
    data = np.array(part.load())
    data[:, -34:-32] = data[:, -68:-66]
    return replace(part, load=lambda: data)


class AcmeBackend(Backend):"""
STALE = """
WORK = {}


def stale(made):
    made.data[..., -1:] = WORK.setdefault(made.data.shape, made.data)[..., -1:]
    return made
"""
SHORT_MEAN = """
def short_mean(x, axis, keepdims):
    return np.sum(x, axis=axis, keepdims=keepdims) / np.float32(max(1, x.shape[axis] - 1))
"""
IN_PLACE = """
def in_place(a, b):
    return np.add(a, b, out=a) if a.shape == np.broadcast_shapes(a.shape, b.shape) else np.add(a, b)
"""
FLUSHED = """
def flushed(x):
    return np.where(x < np.finfo(np.float32).tiny, np.float32(0), x)
"""


@dataclass(frozen=True)
class Wrong:
    """A copy: what is added to its kernels, and texts that are replaced there or in its device."""

    op: str
    bug: str
    added: str = ""
    kernels: tuple[tuple[str, str], ...] = ()
    device: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        return f"{self.op}: {self.bug}".replace(" ", "-")


def one(op: str, bug: str, right: str, wrong: str, added: str = "") -> Wrong:
    return Wrong(op, bug, added, ((right, wrong),))


COPIES = [
    one("softmax", "no max subtraction", "x - np.max(x, axis=axis, keepdims=True)", "x", SOFTMAX),
    one("softmax", "one term too few in the sum", "np.sum(z,", "np.sum(z[..., : max(1, z.shape[-1] - 1)],", SOFTMAX),
    one("rms_norm", "eps outside the root", " + np.float32(eps))", ") + np.float32(eps)"),
    one(
        "matmul",
        "partial sums in bfloat16",
        "calculate(np.matmul, a, b)",
        "calculate(partial_sums, a, b)",
        BFLOAT16 + PARTIAL,
    ),
    one(
        "linear",
        "tail of K dropped when K is not a multiple of 32",
        "x @ weight.T",
        "(lambda n: x[..., :n] @ weight[:, :n].T)(x.shape[-1] // 32 * 32 or x.shape[-1])",
    ),
    Wrong(
        "linear",
        "scale of the last group is that of the one before",
        device=(
            ("from dataclasses import dataclass", "from dataclasses import dataclass, replace"),
            ("    def prepare(self, source: Any, uses: Any) -> Card:\n", SHIFTED),
            ("class AcmeBackend(Backend):", SHIFT),
        ),
    ),
    one(
        "sdpa_varlen",
        "wrong head map only at three heads per key head",
        "np.arange(heads) // (heads // kv_heads)",
        "np.arange(heads) // (heads // kv_heads) if heads != 3 * kv_heads else np.arange(heads) % kv_heads",
        ATTENTION,
    ),
    one(
        "sdpa_varlen",
        "window off by one only beyond 512",
        "last - place < window",
        "last - place < window + (last >= 512)",
        ATTENTION,
    ),
    one("sdpa_varlen", "sinks left out of the sum", "total + np.exp(sinks.data[:, None] - top)", "total", ATTENTION),
    one(
        "rotary_embedding",
        "tables in bfloat16 beyond row 4096",
        "c, s = cos.data[:, None], sin.data[:, None]",
        "c, s = (np.concatenate([t.data[:4096], bfloat16(t.data[4096:])])[:, None] for t in (cos, sin))",
        BFLOAT16 + ROTARY,
    ),
    one(
        "topk",
        "ties to the higher index",
        'last - np.flip(np.argsort(np.flip(x.data, -1), axis=-1, kind="stable"), -1)[..., :k]',
        'np.flip(np.argsort(x.data, axis=-1, kind="stable"), -1)[..., :k]',
    ),
    one(
        "argmax",
        "ties to the higher index",
        "np.argmax(x.data, axis=axis)",
        "x.data.shape[axis] - 1 - np.argmax(np.flip(x.data, axis), axis=axis)",
    ),
    one(
        "silu_and_mul",
        "stale workspace on the second call",
        "return calculate(lambda gate, up: gate * sigmoid(gate) * up, gate, up)",
        "return stale(calculate(lambda gate, up: gate * sigmoid(gate) * up, gate, up))",
        STALE,
    ),
    one("mean", "divides by one less", "ops.mean: mean", "ops.mean: short_mean", SHORT_MEAN),
    one("maximum", "ignores NaN", "ops.maximum: np.maximum,", "ops.maximum: np.fmax,"),
    one("round", "halves away from zero", "ops.round: np.rint", "ops.round: lambda x: np.trunc(x + np.sign(x) / 2)"),
    one(
        "scatter",
        "adds once where two updates meet",
        "combine[reduction].at(result, tuple(places), updates.data)",
        "result[tuple(places)] = combine[reduction](result[tuple(places)], updates.data)",
    ),
    one("add", "writes into its operand", "ops.add: np.add,", "ops.add: in_place,", IN_PLACE),
    one("slice", "one more behind whole steps", "[start:stop:step]", "[start : stop + (step > 1) : step]"),
    one("exp", "flushes subnormal results", "ops.exp: np.exp,", "ops.exp: lambda x: flushed(np.exp(x)),", FLUSHED),
]


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path for copies; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("acme_copy")]:
        del sys.modules[name]


def copied(folder: Path, wrong: Wrong | None) -> Device:
    """Write a copy with a bug into a folder, and open its card."""
    name = f"acme_copy_{abs(hash(wrong))}"
    package = folder / name
    package.mkdir()
    device = (SOURCE / "__init__.py").read_text(encoding="utf-8")
    kernels = (SOURCE / "kernels.py").read_text(encoding="utf-8")
    if wrong is not None:
        # what is added stands before the tables, which may name it
        first = "# ---------------------------------------------------------------------------------------- one"
        kernels = replaced(kernels, [(first, f"{wrong.added}\n\n{first}")])
        kernels = replaced(kernels, wrong.kernels)
        device = replaced(device, wrong.device)
    (package / "__init__.py").write_text(device, encoding="utf-8")
    (package / "kernels.py").write_text(kernels, encoding="utf-8")
    importlib.invalidate_caches()
    opened: Device = importlib.import_module(name).AcmeDevice()
    return opened


def replaced(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    for right, wrong in pairs:
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    return text


def failures(device: Device, ops: Sequence[str], most: int | None = None) -> Iterator[Outcome]:
    """The cases of ops in float32 that fail, of each op the first `most`, as they come."""
    for op in ops:
        suite = OpSuite(Selection(ops=frozenset({op})))
        for item in [item for item in suite.items() if item.dtype not in ("float16", "bfloat16")][:most]:
            outcome = suite.run(item.id, device)
            if outcome.verdict not in (Verdict.PASS, Verdict.UNSUPPORTED):
                yield outcome


@pytest.mark.parametrize("wrong", COPIES, ids=lambda wrong: wrong.id)
def test_a_wrong_kernel_fails_its_op_and_no_other(plugins: Path, wrong: Wrong) -> None:
    device = copied(plugins, wrong)
    found = next(failures(device, [wrong.op]), None)
    assert found is not None, f"no case shows that {wrong.op} is wrong: {wrong.bug}"
    assert found.verdict is Verdict.FAIL
    assert found.kernel in ("", f"acme_{wrong.op}")
    others = [op for op in device.kernels.ops() if op != wrong.op]
    assert list(failures(device, others, most=2)) == []


@pytest.mark.parametrize("added", [SOFTMAX, ROTARY, ATTENTION], ids=["softmax", "rotary", "attention"])
def test_what_is_added_to_copies_is_right(plugins: Path, added: str) -> None:
    device = copied(plugins, Wrong("", "", added))
    new = [op for op in ("softmax", "rotary_embedding", "sdpa_varlen") if op in device.kernels.ops()]
    assert list(failures(device, new)) == []


def test_the_example_itself_fails_nothing(plugins: Path) -> None:
    device = copied(plugins, None)
    assert list(failures(device, device.kernels.ops(), most=4)) == []
