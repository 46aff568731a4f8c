"""Random small graphs of symbolic height, for tests that passes and text forms keep the meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from xinheng.core import ops
from xinheng.core.ir import Builder, DType, Graph, TensorType, Value, WeightType, sym
from xinheng.core.ir.dtype import bool_, float32, int32, round_to

WIDTH = 4
Draw = Callable[[Any], Any]
Step = Callable[[Draw, list[Value]], Any]


def _unary(draw: Draw, pool: list[Value]) -> Any:
    op = draw(st.sampled_from([ops.neg, ops.abs, ops.tanh, ops.sigmoid, ops.silu, ops.square, ops.erf, ops.cos]))
    return op(draw(st.sampled_from(pool)))


def _gelu(draw: Draw, pool: list[Value]) -> Any:
    return ops.gelu(draw(st.sampled_from(pool)), approximate=draw(st.sampled_from(["none", "tanh"])))


def _binary(draw: Draw, pool: list[Value]) -> Any:
    op = draw(st.sampled_from([ops.add, ops.sub, ops.mul, ops.maximum, ops.minimum]))
    return op(draw(st.sampled_from(pool)), draw(st.sampled_from(pool)))


def _number(draw: Draw, pool: list[Value]) -> Any:
    op = draw(st.sampled_from([ops.add, ops.mul, ops.minimum]))
    return op(draw(st.sampled_from(pool)), draw(st.sampled_from([0.5, 1.7, -2.0, 0.1])))


def _gated(draw: Draw, pool: list[Value]) -> Any:
    a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
    return ops.silu_and_mul(a, b) if draw(st.booleans()) else ops.gelu_and_mul(a, b, approximate="tanh")


def _normed(draw: Draw, pool: list[Value]) -> Any:
    x = draw(st.sampled_from(pool))
    if draw(st.booleans()):
        return ops.softmax(x)
    weight = x.builder.call(ops.full, (), {"shape": (WIDTH,), "value": 0.75, "dtype": x.dtype})
    return ops.rms_norm(x, weight, eps=1e-6)


def _moved(draw: Draw, pool: list[Value]) -> Any:
    """Moves that end in the shape they began with."""
    x = draw(st.sampled_from(pool))
    rows = x.shape[0]
    which = draw(st.integers(0, 5))
    if which == 0:
        made = ops.concat(ops.slice(x, axis=1, start=1, stop=WIDTH), ops.slice(x, axis=1, start=0, stop=1), axis=1)
    elif which == 1:
        left, right = ops.split(x, sizes=(1, WIDTH - 1), axis=1)
        made = ops.concat(right, left, axis=-1)
    elif which == 2:
        made = ops.reshape(ops.reshape(x, shape=(rows * 2, WIDTH // 2)), shape=(rows, WIDTH))
    elif which == 3:
        made = ops.permute(ops.permute(x, axes=(1, 0)), axes=(1, 0))
    elif which == 4:
        made = ops.add(x, ops.expand(ops.mean(x, axis=1, keepdims=True), shape=(rows, WIDTH)))
    else:
        made = ops.reshape(x, shape=(rows, WIDTH))
    return made


def _selected(draw: Draw, pool: list[Value]) -> Any:
    a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
    which = draw(st.integers(0, 2))
    if which == 0:
        made = ops.where(ops.lt(a, b), a, draw(st.sampled_from([0.5, -1.0])))
    elif which == 1:
        values, order = ops.topk(a, k=WIDTH)
        made = ops.sub(values, ops.gather(b, order))
    else:
        made = ops.index_select(a, ops.argmax(ops.permute(b, axes=(1, 0)), axis=1), axis=0)
        made = ops.add(a, ops.sum(made, axis=0, keepdims=True))
    return made


def _linear(draw: Draw, pool: list[Value]) -> Any:
    x = draw(st.sampled_from(pool))
    weight = next((v for v in x.builder._roots["parameter"]), None)
    return ops.linear(x, weight or x.builder.parameter("weight", WeightType((WIDTH, WIDTH), "float32")))


def _cast(draw: Draw, pool: list[Value]) -> Any:
    x = draw(st.sampled_from(pool))
    return ops.cast(ops.cast(x, dtype=draw(st.sampled_from([x.dtype, bool_, int32]))), dtype=x.dtype)


STEPS: tuple[Step, ...] = (_unary, _gelu, _binary, _number, _gated, _normed, _moved, _selected, _linear, _cast)


@st.composite
def graphs(draw: Draw, kind: DType = float32, most: int = 8) -> Graph:
    """A graph of inputs x and y [n, 4] in which every value has that type; some nodes may be dead or repeated."""
    b = Builder("random")
    shape = (sym("n", 16), WIDTH)
    pool = [b.input(name, TensorType(kind, shape)) for name in ("x", "y")]
    for _ in range(draw(st.integers(1, most))):
        step = draw(st.sampled_from(STEPS))
        pool.append(step(draw, pool))
        if draw(st.integers(0, 4)) == 0:
            pool.append(ops.silu(pool[-1]))
            pool.append(ops.silu(pool[-2]))
    chosen = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
    return b.build(*chosen)


def feeds(graph: Graph, rows: int, seed: int = 0) -> dict[str, Any]:
    """Inputs of a random graph in float64, representable in its dtype."""
    rng = np.random.default_rng(seed)
    return {v.name: round_to(rng.normal(size=(rows, WIDTH)), v.dtype) for v in graph.inputs}


def weights(graph: Graph) -> dict[str, Any]:
    """Values of its parameter, if it has one."""
    values = round_to(np.random.default_rng(9).normal(size=(WIDTH, WIDTH)), float32)
    return {v.name: values for v in graph.parameters}
