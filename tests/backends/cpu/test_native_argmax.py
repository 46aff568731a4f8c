"""Argmax against numpy: ties, NaN, infinities, long rows, strided rows, and as a command of a program."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from xinheng.backends.cpu.kernels.argmax import argmax_kernel

from .tensors import on_tensors


@pytest.mark.parametrize("columns", [1, 15, 64, 70, 16384, 50001])
@pytest.mark.parametrize("kind", ["plain", "ties", "nan", "infinite", "zeros"])
def test_argmax_is_the_first_of_the_largest(native: SimpleNamespace, columns: int, kind: str) -> None:
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((5, columns)).astype(np.float32)
    if kind == "ties":
        x = np.round(x)
    elif kind == "nan":
        x[1, columns // 2 :] = np.nan
        x[2, -1] = np.nan
    elif kind == "infinite":
        x[0] = -np.inf
        x[3, columns // 3] = np.inf
    elif kind == "zeros":
        x = np.where(x > 0, np.float32(0), np.float32(-0.0))
    run = on_tensors(argmax_kernel(native.library))
    assert run(torch.from_numpy(x)).tolist() == np.argmax(x, axis=-1).tolist()


def test_argmax_of_strided_rows_and_of_none(native: SimpleNamespace) -> None:
    run = on_tensors(argmax_kernel(native.library))
    wide = torch.randn(4, 300)
    assert torch.equal(run(wide[:, 7:207]), wide[:, 7:207].argmax(-1).to(torch.int32))
    assert run(torch.zeros(0, 9)).shape == (0,)
