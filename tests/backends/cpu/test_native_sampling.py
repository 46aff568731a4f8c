"""Native choice of tokens: the uniform stream, and sampling against the reference of the op."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xinheng.backends.cpu.kernels.sampling import sample_kernel, uniform_kernel
from xinheng.core import ops

ROWS = 64


def arguments(rows: int = ROWS, **given: Any) -> dict[str, Any]:
    """Operands per row; uniform numbers are spread over their whole range."""
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | given
    made = {name: np.full(rows, value, np.float32) for name, value in values.items()}
    uniform = (np.arange(rows, dtype=np.float32) + 0.5) / rows
    return {"uniform": uniform} | made | {"top_k": made["top_k"].astype(np.int32)}


def expected(logits: Any, **operands: Any) -> Any:
    wide = {name: x if name == "top_k" else x.astype(np.float64) for name, x in operands.items()}
    return ops.top_k_top_p_sample.reference(logits.astype(np.float64), **wide)


def test_the_stream_is_that_of_the_reference(native: SimpleNamespace) -> None:
    rng = np.random.default_rng(1)
    seed = rng.integers(0, 2**32, (1000, 2), np.uint32)
    counter = np.r_[0, 1, 2**32 - 1, rng.integers(0, 2**32, 997)].astype(np.uint32)
    made = uniform_kernel(native.library)(seed, counter)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, ops.random_uniform.reference(seed, counter))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"temperature": 7.0},
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 10**6},
        {"top_p": 0.0},
        {"top_p": 0.5},
        {"top_p": 0.95, "temperature": 0.7},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.02, "temperature": 1.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 60.0])
def test_tokens_are_those_of_the_reference(native: SimpleNamespace, given: dict[str, Any], scale: float) -> None:
    logits = (np.random.default_rng(3).normal(size=(ROWS, 5003)) * scale).astype(np.float32)
    logits[:, 100:110] = logits[:, :1]  # equal logits are taken by index
    logits[5] = logits[5, ::-1]
    operands = arguments(**given)
    made = sample_kernel(native.library)(logits, **operands)
    np.testing.assert_array_equal(made, expected(logits, **operands))


def test_a_row_alone_gives_what_it_gives_among_others(native: SimpleNamespace) -> None:
    wide = np.random.default_rng(5).normal(size=(ROWS, 700)).astype(np.float32) * 2
    logits, operands, run = wide[:, 40:640], arguments(top_p=0.9), sample_kernel(native.library)
    whole = run(logits, **operands)
    for i in range(ROWS):
        assert run(logits[i : i + 1], **{name: x[i : i + 1] for name, x in operands.items()})[0] == whole[i]


def test_tokens_of_no_weight_are_never_taken(native: SimpleNamespace) -> None:
    logits = np.full((ROWS, 300), -np.inf, np.float32)
    logits[:, [7, 250]] = 0.0
    operands = arguments()
    operands["uniform"][-1] = 1 - 2.0**-24
    made = sample_kernel(native.library)(logits, **operands)
    np.testing.assert_array_equal(made, expected(logits, **operands))
    assert set(made.tolist()) == {7, 250}


@pytest.mark.parametrize(("value", "place"), [(np.nan, 9), (np.inf, 9), (-np.inf, 0)])
def test_rows_that_are_no_distribution_give_their_largest_element(
    native: SimpleNamespace, value: float, place: int
) -> None:
    logits = np.zeros((4, 50), np.float32) if np.isnan(value) or value > 0 else np.full((4, 50), value, np.float32)
    logits[:, place] = value
    made = sample_kernel(native.library)(logits, **arguments(4))
    assert made.tolist() == [place] * 4
