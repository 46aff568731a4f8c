"""An element is added up in one order on the CPU, whatever else is in the batch, however it lies in memory."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch.handles import TorchWeight, TorchWeightPart
from xinheng.backends._torch.kernels.convolution import conv, conv_transpose
from xinheng.backends._torch.kernels.elementwise import gelu, power, sigmoid, silu
from xinheng.backends._torch.kernels.nn import layer_norm
from xinheng.backends._torch.kernels.product import prod
from xinheng.backends._torch.kernels.reduction import mean, sum
from xinheng.backends.cpu.kernels.expanded import (
    NativeMatmul,
    expanded_batched_linear_kernel,
    expanded_linear_kernel,
)
from xinheng.core import ops
from xinheng.core.ir import Builder, TensorType
from xinheng.core.ir.dtype import float32
from xinheng.core.schemes import scheme

from .tensors import on_tensors

Tensor = torch.Tensor


def normal(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(shape).normal(size=shape).astype(np.float32))


@pytest.fixture(autouse=True)
def two_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def rows_alone(function: Callable[[Tensor], Tensor], x: Tensor, axis: int = 0) -> None:
    whole = function(x)
    for i in range(x.shape[axis]):
        alone = function(x.narrow(axis, i, 1).clone())
        assert torch.equal(alone, whole.narrow(axis, i, 1)), i


@pytest.mark.parametrize("columns", [1, 31, 320, 40000])
@pytest.mark.parametrize("fold", [sum, mean, prod])
def test_folds(fold: Callable[..., Tensor], columns: int) -> None:
    x = 1 + normal(5, columns) * 1e-3
    rows_alone(lambda x: fold(x, axis=1, keepdims=True), x)
    rows_alone(lambda x: fold(x, axis=-1, keepdims=True), x.T.contiguous().T)
    expected = fold(x.double(), axis=1)
    torch.testing.assert_close(fold(x, axis=1).double(), expected, rtol=1e-5, atol=1e-4)


def test_norms() -> None:
    rows_alone(lambda x: layer_norm(x, eps=1e-5), normal(129, 5).T)


@pytest.mark.parametrize(
    "function",
    [sigmoid, silu, lambda x: gelu(x, approximate="tanh"), gelu, lambda x: power(x.abs(), 1.7 * torch.ones_like(x))],
    ids=["sigmoid", "silu", "gelu tanh", "gelu", "power"],
)
def test_elements(function: Callable[[Tensor], Tensor]) -> None:
    x = 4 * normal(257)
    whole = function(x)
    for start, length in ((0, 1), (5, 3), (16, 7), (250, 7), (31, 33)):
        assert torch.equal(function(x[start : start + length].clone()), whole[start : start + length])


def test_convolutions() -> None:
    common: dict[str, Any] = {"strides": (1,), "pads": (1, 1), "dilations": (1,)}
    rows_alone(lambda x: conv(x, normal(4, 3, 3), **common), normal(5, 3, 17))
    rows_alone(lambda x: conv_transpose(x, normal(3, 4, 3), output_padding=(0,), **common), normal(5, 3, 17))


# ------------------------------------------------------------------------------------------------------------ products
@pytest.mark.parametrize(
    "shapes", [((9, 320), (320, 33)), ((2, 9, 33), (2, 33, 5)), ((2, 1, 7, 5), (3, 5, 4))], ids=str
)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_matmul(processor_build: SimpleNamespace, shapes: Any, kind: torch.dtype) -> None:
    run = on_tensors(NativeMatmul(processor_build.library).multiply)
    a, b = (normal(*shape).to(kind) for shape in shapes)
    made = run(a, b)
    assert made.dtype is kind
    torch.testing.assert_close(made.double(), a.double() @ b.double(), rtol=2.0**-7, atol=1e-1)
    rows_alone(lambda a: run(a, b), a, -2)


@pytest.mark.parametrize("shapes", [((0, 5), (5, 2)), ((3, 0), (0, 2)), ((2, 0, 5), (5, 2))], ids=str)
def test_empty_products(processor_build: SimpleNamespace, shapes: Any) -> None:
    a, b = (torch.ones(shape) for shape in shapes)
    assert torch.equal(on_tensors(NativeMatmul(processor_build.library).multiply)(a, b), a @ b)


@pytest.mark.parametrize("shape", [(320, 33), (0, 33)], ids=str)
def test_a_right_side_that_stays_is_laid_out_once(processor_build: SimpleNamespace, shape: tuple[int, int]) -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (4, shape[0])))
    w = b.parameter("w", TensorType(float32, shape))
    run = on_tensors(NativeMatmul(processor_build.library).plan(b.build(ops.matmul(x, w)).nodes[0], {}))
    multiply = on_tensors(NativeMatmul(processor_build.library).multiply)
    first, other, a = normal(*shape), 2 * normal(*shape), normal(4, shape[0])
    for right in (first, first, other, first):
        assert torch.equal(run(a, right), multiply(a, right))


def weight(*shape: int) -> TorchWeight:
    pack = scheme("float8_e4m3fn").pack
    assert pack is not None
    rows = int(np.prod(shape[:-1]))
    packed = pack(normal(rows, shape[-1]).numpy()).view(np.uint8)
    data = torch.from_numpy(packed).view(torch.float8_e4m3fn)
    return TorchWeight(shape, (TorchWeightPart("float8_e4m3fn", rows, data),))


def test_expanded_linear(processor_build: SimpleNamespace) -> None:
    run, held, bias = on_tensors(expanded_linear_kernel(processor_build.library)), weight(9, 64), normal(9)
    x = normal(7, 64)
    expected = x.double() @ held.values(torch.float64).T + bias.double()
    torch.testing.assert_close(run(x, held, bias).double(), expected, rtol=1e-5, atol=1e-5)
    rows_alone(lambda x: run(x, held, bias), x)


@pytest.mark.parametrize("transposed", [False, True])
def test_expanded_batched_linear(processor_build: SimpleNamespace, transposed: bool) -> None:
    run = on_tensors(expanded_batched_linear_kernel(processor_build.library))
    held, x = weight(3, 64, 64), normal(7, 3, 64)
    values = held.values(torch.float64)
    per_head = x.double().transpose(0, 1) @ (values if transposed else values.transpose(1, 2))
    torch.testing.assert_close(
        run(x, held, transposed=transposed).double(), per_head.transpose(0, 1), rtol=1e-5, atol=1e-5
    )
    rows_alone(lambda x: run(x, held, transposed=transposed), x)
