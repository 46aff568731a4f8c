"""Native latent attention and its per-head products against the references in float64, whatever the batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch import TorchWeight
from xinheng.backends._torch.handles import TorchPagedLatent
from xinheng.core import ops
from xinheng.core.errors import DeviceError
from xinheng.core.ops import LatentPages

Tensor = torch.Tensor
KINDS = [torch.float32, torch.bfloat16, torch.float16]
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SCHEMES = ["float32", "bfloat16", "float16", "q4_0", "q8_0", "mxfp4", "iq4_nl"]


def normal(rng: np.random.Generator, *shape: int, kind: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(kind)


# ------------------------------------------------------------------------------------------------------------- products
@pytest.fixture
def head_weight(random_weight: Any, exact: Any) -> Any:
    """`(scheme, heads, rows, columns)` to a weight and its values in float64."""

    def make(name: str, heads: int, rows: int, columns: int) -> tuple[TorchWeight, Any]:
        flat = random_weight([(name, heads * rows)], columns)
        return TorchWeight((heads, rows, columns), flat.parts), exact(flat).reshape(heads, rows, columns)

    return make


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", SCHEMES)
def test_each_head_meets_its_weight(
    native: SimpleNamespace, rng: np.random.Generator, head_weight: Any, name: str, transposed: bool, kind: torch.dtype
) -> None:
    heads, rows, columns = 5, 20, 96
    weight, values = head_weight(name, heads, rows, columns)
    x = normal(rng, 70, heads, rows if transposed else columns, kind=kind)
    made = native.batched_linear(x, weight, transposed=transposed)
    wanted = ops.batched_linear.reference(x.double().numpy(), values, transposed=transposed)
    assert made.dtype is kind
    scale = np.abs(values).max() * 40
    np.testing.assert_allclose(made.double().numpy(), wanted, atol=scale * 2.0**-20, rtol=EPS[kind])
    for start, stop in ((0, 1), (7, 9), (60, 66)):  # one order, whatever the number of tokens and where they lie
        alone = native.batched_linear(x[start:stop].clone(), weight, transposed=transposed)
        assert torch.equal(alone, made[start:stop])


def test_heads_of_a_view_and_runs_of_several_schemes(
    build: SimpleNamespace, rng: np.random.Generator, random_weight: Any, exact: Any
) -> None:
    flat = random_weight([("q8_0", 11), ("float16", 13)], 32)
    weight, values = TorchWeight((3, 8, 32), flat.parts), exact(flat).reshape(3, 8, 32)
    for transposed in (False, True):
        wide = normal(rng, 6, 3, 64)
        x = wide[..., 16:24] if transposed else wide[..., 16:48]
        wanted = ops.batched_linear.reference(x.double().numpy(), values, transposed=transposed)
        made = build.batched_linear(x, weight, transposed=transposed)
        np.testing.assert_allclose(made.numpy(), wanted, atol=2e-5)
    with pytest.raises(DeviceError, match=r"batched_linear: x \[6, 3, 64\] does not fit weight \[3, 8, 32\]"):
        build.batched_linear(wide, weight)


# ------------------------------------------------------------------------------------------------------------ attention
class Scene:
    """Sequences of given lengths whose last rows are queries, over a cache with blocks in any order."""

    def __init__(
        self, rng: np.random.Generator, lengths: list[int], rows: list[int], *, heads: int = 6, dim: int = 40,
        rope: int = 12, size: int = 16, kind: torch.dtype = torch.float32, cache: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.lengths, self.rows = lengths, rows
        used = [-(-n // size) for n in lengths]
        blocks, tokens = sum(used) + 2, sum(rows)
        order = iter(rng.permutation(blocks))
        table = np.full((len(lengths), max([*used, 1])), -1, np.int32)
        for s, count in enumerate(used):
            table[s, :count] = [next(order) for _ in range(count)]
        self.table = torch.from_numpy(table)
        self.latent, self.rope = (normal(rng, blocks, size, width, kind=cache) for width in (dim, rope))
        self.q_latent, self.q_rope = (normal(rng, tokens, heads, width, kind=kind) for width in (dim, rope))
        self.start = torch.from_numpy(np.concatenate([[0], np.cumsum(rows)]).astype(np.int32))
        self.lens = torch.tensor(lengths, dtype=torch.int32)

    def run(self, build: SimpleNamespace, causal: bool = True) -> tuple[Tensor, Tensor]:
        pages = TorchPagedLatent(self.latent, self.rope)
        made: tuple[Tensor, Tensor] = build.mla_attention(
            self.q_latent, self.q_rope, pages, self.start, self.lens, self.table, scale=0.2, causal=causal
        )
        return made

    def alone(self, s: int, first: int, last: int) -> Scene:
        """Rows first to last of one sequence, as of a step that computed nothing else."""
        made, begin = object.__new__(Scene), int(self.start[s])
        made.latent, made.rope, made.table = self.latent, self.rope, self.table[s : s + 1]
        made.q_latent, made.q_rope = (q[begin + first : begin + last].clone() for q in (self.q_latent, self.q_rope))
        made.start = torch.tensor([0, last - first], dtype=torch.int32)
        made.lens = torch.tensor([self.lengths[s] - self.rows[s] + last], dtype=torch.int32)
        return made

    def reference(self, causal: bool) -> tuple[Any, Any]:
        wide: Any = [x.double().numpy() for x in (self.q_latent, self.q_rope, self.latent, self.rope)]
        whole: Any = [x.numpy() for x in (self.start, self.lens, self.table)]
        pages: Any = LatentPages(*wide[2:])
        made: tuple[Any, Any] = ops.mla_attention.reference(wide[0], wide[1], pages, *whole, scale=0.2, causal=causal)
        return made


LENGTHS, ROWS = [1, 64, 65, 200, 0, 30], [1, 1, 65, 130, 0, 4]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cache", KINDS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_attention_is_that_of_the_reference(
    native: SimpleNamespace, rng: np.random.Generator, kind: torch.dtype, cache: torch.dtype, causal: bool
) -> None:
    scene = Scene(rng, LENGTHS, ROWS, kind=kind, cache=cache)
    out, lse = scene.run(native, causal)
    expected, log_sums = scene.reference(causal)
    assert (out.dtype, lse.dtype) == (kind, torch.float32)
    np.testing.assert_allclose(out.double().numpy(), expected, atol=2e-6 + EPS[kind], rtol=EPS[kind])
    np.testing.assert_allclose(lse.numpy(), log_sums, rtol=2e-6, atol=3e-6)


@pytest.mark.parametrize(("heads", "dim", "rope"), [(1, 16, 16), (3, 7, 2), (16, 64, 32)])
def test_attention_without_vectors(
    build: SimpleNamespace, rng: np.random.Generator, heads: int, dim: int, rope: int
) -> None:
    scene = Scene(rng, [70, 3], [5, 3], heads=heads, dim=dim, rope=rope)
    out, lse = scene.run(build)
    expected, log_sums = scene.reference(True)
    np.testing.assert_allclose(out.numpy(), expected, atol=3e-6)
    np.testing.assert_allclose(lse.numpy(), log_sums, rtol=2e-6, atol=3e-6)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_query_has_the_same_bits_in_any_company(
    native: SimpleNamespace, rng: np.random.Generator, kind: torch.dtype, threads: int
) -> None:
    scene = Scene(rng, LENGTHS, ROWS, kind=kind, cache=kind)
    native.library.set_threads(threads)
    out, lse = scene.run(native)
    for s, first, last in ((0, 0, 1), (2, 0, 3), (2, 64, 65), (3, 5, 97), (5, 1, 4)):
        alone, log_sums = scene.alone(s, first, last).run(native)
        begin = int(scene.start[s])
        assert torch.equal(alone, out[begin + first : begin + last])
        assert torch.equal(log_sums, lse[begin + first : begin + last])


def test_rows_without_keys_give_nothing(build: SimpleNamespace, rng: np.random.Generator) -> None:
    scene = Scene(rng, [2], [4])
    out, lse = scene.run(build)
    assert not out[:2].any()
    assert torch.isneginf(lse[:2]).all()
    assert out[2:].any()


def test_lengths_and_blocks_are_checked(build: SimpleNamespace, rng: np.random.Generator) -> None:
    scene = Scene(rng, [20, 40], [1, 2])
    scene.table[1, 2] = 99
    with pytest.raises(DeviceError, match="sequence 1 has impossible lengths or blocks outside the cache"):
        scene.run(build)
    scene.lens[0] = 1000
    with pytest.raises(DeviceError, match="sequence 0 has impossible lengths"):
        scene.run(build)


# ---------------------------------------------------------------------------------------------------------------- cache
@pytest.mark.parametrize("cache", KINDS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_cache_is_written_in_place(
    build: SimpleNamespace, rng: np.random.Generator, kind: torch.dtype, cache: torch.dtype
) -> None:
    pages = TorchPagedLatent(torch.zeros(3, 4, 20, dtype=cache), torch.zeros(3, 4, 6, dtype=cache))
    packed = normal(rng, 5, 26, kind=kind)
    latent, rope = packed[:, :20], packed[:, 20:]
    slots = [11, -1, 0, 7, 4]
    assert build.write_latent_cache(pages, latent, rope, torch.tensor(slots)) is pages
    for held, new in ((pages.latent, latent), (pages.rope, rope)):
        expected = torch.zeros_like(held).reshape(12, -1)
        for token, slot in enumerate(slots):
            if slot >= 0:
                expected[slot] = new[token].float().to(cache)
        assert torch.equal(held.reshape(12, -1), expected)
    with pytest.raises(DeviceError, match="slot 12 is beyond the 12 cache slots"):
        build.write_latent_cache(pages, latent, rope, torch.tensor([0, 1, 2, 12, 3]))
    with pytest.raises(DeviceError, match="does not fit 4 slots of 20"):
        build.write_latent_cache(pages, latent, rope, torch.tensor([0, 1, 2, 3]))
