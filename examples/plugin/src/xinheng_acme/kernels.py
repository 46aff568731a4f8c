"""The kernels of the Acme accelerator: a kernel has the operands and attributes of its op, under the same names.

What is missing here is decomposed into what is there, or moves to the fallback device; `xinheng explain` says which.
"""

from __future__ import annotations

import numpy as np

from xinheng.core import KernelRegistry, dtype, ops

from . import Card

KERNELS = KernelRegistry()
FLOAT32 = [dtype("float32")]


@KERNELS.register(ops.matmul, name="acme_matmul", dtypes=FLOAT32)
def matmul(a: Card, b: Card) -> Card:
    return Card(a.data @ b.data)


@KERNELS.register(ops.linear, name="acme_linear", dtypes=FLOAT32)
def linear(x: Card, weight: Card, bias: Card | None = None) -> Card:
    y = x.data @ weight.data.T
    return Card(y if bias is None else y + bias.data)


@KERNELS.register(ops.rms_norm, name="acme_rms_norm", dtypes=FLOAT32)
def rms_norm(x: Card, weight: Card, *, eps: float) -> Card:
    mean = np.mean(x.data * x.data, axis=-1, keepdims=True, dtype=np.float32)
    return Card(x.data / np.sqrt(mean + np.float32(eps)) * weight.data)


@KERNELS.register(ops.silu_and_mul, name="acme_silu_and_mul", dtypes=FLOAT32)
def silu_and_mul(gate: Card, up: Card) -> Card:
    with np.errstate(over="ignore"):
        return Card(gate.data / (np.float32(1) + np.exp(-gate.data)) * up.data)
