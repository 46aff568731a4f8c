"""Every kernel of acme:0 computes what the op set says, within the error that float32 arithmetic explains."""

from __future__ import annotations

import numpy as np
import pytest

from xinheng.conformance.bounds import Bounded, Rules, check
from xinheng.core import Builder, PluginManager, TensorType, WeightPart, WeightSource, WeightType, compile, dtype, ops

FLOAT32 = dtype("float32")
RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(5, 16)).astype(np.float32) for _ in range(2))
MATRIX = RNG.normal(size=(8, 16)).astype(np.float32)
CASES = {
    "matmul": (ops.matmul, (X, MATRIX.T.copy()), {}),
    "linear": (ops.linear, (X, MATRIX, RNG.normal(size=8).astype(np.float32)), {}),
    "rms_norm": (ops.rms_norm, (X, RNG.normal(size=16).astype(np.float32)), {"eps": 1e-6}),
    "silu_and_mul": (ops.silu_and_mul, (X, 30 * Y), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_kernel(name):
    op, arrays, attributes = CASES[name]
    device = PluginManager().open("acme:0")
    b, sources = Builder(name), {}
    operands = []
    for declared, array in zip(op.operands, arrays, strict=False):
        if declared.kind == "Weight":
            data = array.view(np.uint8)
            part = WeightPart("float32", len(array), lambda data=data: data)
            sources[declared.name] = WeightSource(declared.name, array.shape, (part,))
            operands.append(b.parameter(declared.name, WeightType(array.shape, "float32")))
        else:
            operands.append(b.input(declared.name, TensorType(FLOAT32, array.shape)))
    exe = compile(b.build(y=op(*operands, **attributes)), device)
    assert [line.kernel for line in exe.receipt.lines] == [f"acme_{name}"]
    bound = exe.bind({key: exe.prepare(key, source) for key, source in sources.items()})
    names = [declared.name for declared in op.operands]
    bound.run({n: a for n, a in zip(names, arrays, strict=False) if n not in sources}).wait()
    want = op.reference(*(Bounded(array.astype(float), rules=Rules(compute=FLOAT32)) for array in arrays), **attributes)
    verdict = check(want, device.download(bound.outputs["y"]), FLOAT32)
    assert verdict.ok, verdict


def test_every_kernel_has_a_case():
    assert PluginManager().open("acme:0").kernels.ops() == sorted(CASES)
