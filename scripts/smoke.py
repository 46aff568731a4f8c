"""A first program, which scripts/build runs elsewhere: find the plugins, build a graph, run it on a simulated chip."""

from __future__ import annotations

import numpy as np

import xinheng
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.ir import Builder, TensorType, dtype, sym
from xinheng.core.plugins import PluginManager

plugins = PluginManager()
print("xinheng", xinheng.__version__, "with", *(f"{record.name} ({record.status})" for record in plugins.records()))

builder = Builder("smoke")
x = builder.input("x", TensorType(dtype("float32"), (sym("rows", 8), 4)))
weight = builder.parameter("weight", TensorType(dtype("float32"), (4,)))
graph = builder.build(y=ops.rms_norm(x, weight, eps=1e-6))

device = plugins.open("sim:exact")
program = compile(graph, device)
bound = program.bind({"weight": program.prepare("weight", np.ones(4, np.float32))})
values = np.arange(8, dtype=np.float32).reshape(2, 4)
bound.run({"x": values}).wait()
expected = values / np.sqrt((values**2).mean(axis=-1, keepdims=True) + 1e-6)
np.testing.assert_allclose(device.download(bound.outputs["y"]), expected, rtol=1e-6)
print(graph)
