"""Import rules of normalisations."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...ir.dim import Dim, product
from ...ir.dtype import float32
from ...ir.graph import Value
from ..call import Call, like, rule, wide
from ..item import element_type


def channel(x: Value, rank: int) -> Value:
    """A vector over the channels of [batch, channels, ...]."""
    made: Value = ops.reshape(x, shape=(*x.shape, *(1,) * (rank - 2)))
    return made


def standardised(x: Value, axis: int, eps: float) -> tuple[Value, Value, Value]:
    """x less its mean over one axis, over its deviation; the mean, and the reciprocal deviation."""
    mean = ops.mean(x, axis=axis, keepdims=True)
    apart = ops.sub(x, mean)
    inverse = ops.rsqrt(ops.add(ops.mean(ops.square(apart), axis=axis, keepdims=True), eps))
    return ops.mul(apart, inverse), mean, inverse


def joined(x: Value, axis: int) -> Value:
    """x with the axes from `axis` on as one."""
    made: Value = ops.reshape(x, shape=(*x.shape[:axis], product(x.shape[axis:])))
    return made


@rule("LayerNormalization")
def _layer_norm(c: Call) -> Any:
    given = c.x(0)
    axis = c.axis(-1, given.tensor.rank)
    if element_type(c.attr("stash_type", 1)) is not float32:
        raise c.refuse("attribute stash_type must be 1 (float32)")
    x = joined(wide(given), axis)
    normed, mean, inverse = standardised(x, axis, float(c.attr("epsilon", 1e-5)))
    y = ops.reshape(normed, shape=given.shape)
    y = ops.mul(y, wide(c.x(1))) if c.has(1) else y
    y = ops.add(y, wide(c.x(2))) if c.has(2) else y
    shape = (*given.shape[:axis], *(1,) * (given.tensor.rank - axis))
    return like(y, given), ops.reshape(mean, shape=shape), ops.reshape(inverse, shape=shape)


@rule("RMSNormalization")
def _rms_norm(c: Call) -> Any:
    given, weight = c.x(0), c.x(1)
    axis = c.axis(-1, given.tensor.rank)
    eps = float(c.attr("epsilon", 1e-5))
    if axis == given.tensor.rank - 1 and weight.shape == given.shape[-1:] and weight.dtype is given.dtype:
        return ops.rms_norm(given, weight, eps=eps)
    x = joined(wide(given), axis)
    inverse = ops.rsqrt(ops.add(ops.mean(ops.square(x), axis=axis, keepdims=True), eps))
    y = ops.reshape(ops.mul(x, inverse), shape=given.shape)
    return like(ops.mul(y, wide(weight)), given)


@rule("BatchNormalization")
def _batch_norm(c: Call) -> Any:
    given = c.x(0)
    rank, eps = given.tensor.rank, float(c.attr("epsilon", 1e-5))
    c.choice("spatial", 1, 1)
    x = wide(given)
    scale, bias, mean, variance = (wide(c.x(i)) for i in range(1, 5))
    if not c.attr("training_mode", 0):
        if c.version < 14 and any(c.wants(i) for i in range(1, 5)):
            raise c.refuse("outputs of training are not supported before opset 14")
        factor = ops.mul(scale, ops.rsqrt(ops.add(variance, eps)))
        shift = ops.sub(bias, ops.mul(mean, factor))
        return like(ops.add(ops.mul(x, channel(factor, rank)), channel(shift, rank)), given)
    order = (1, 0, *range(2, rank))
    rows = ops.reshape(ops.permute(x, axes=order), shape=(x.shape[1], product((x.shape[0], *x.shape[2:]))))
    normed, average, _ = standardised(rows, 1, eps)
    spread = ops.mean(ops.square(ops.sub(rows, average)), axis=1)
    back = ops.permute(ops.reshape(normed, shape=tuple(x.shape[i] for i in order)), axes=order)
    y = ops.add(ops.mul(back, channel(scale, rank)), channel(bias, rank))
    keep = float(c.attr("momentum", 0.9))
    flat = ops.reshape(average, shape=(x.shape[1],))
    running = [ops.add(ops.mul(old, keep), ops.mul(new, 1.0 - keep)) for old, new in ((mean, flat), (variance, spread))]
    return like(y, given), like(running[0], c.x(3)), like(running[1], c.x(4))


@rule("InstanceNormalization")
def _instance_norm(c: Call) -> Any:
    given = c.x(0)
    x = joined(wide(given), 2)
    normed, _, _ = standardised(x, 2, float(c.attr("epsilon", 1e-5)))
    scale, bias = (channel(wide(c.x(i)), given.tensor.rank) for i in (1, 2))
    return like(ops.add(ops.mul(ops.reshape(normed, shape=given.shape), scale), bias), given)


@rule("GroupNormalization")
def _group_norm(c: Call) -> Any:
    given, groups = c.x(0), int(c.attr("num_groups"))
    shape = (given.shape[0], groups, product(given.shape[1:]) // groups)
    normed, _, _ = standardised(ops.reshape(wide(given), shape=shape), 2, float(c.attr("epsilon", 1e-5)))
    y = ops.reshape(normed, shape=given.shape)
    scale, bias = (wide(c.x(i)) for i in (1, 2))
    if scale.shape == (groups,) and groups != given.shape[1]:
        each: Dim = given.shape[1] // groups
        scale, bias = (
            ops.reshape(ops.expand(ops.reshape(v, shape=(groups, 1)), shape=(groups, each)), shape=(groups * each,))
            for v in (scale, bias)
        )
    rank = given.tensor.rank
    return like(ops.add(ops.mul(y, channel(scale, rank)), channel(bias, rank)), given)


@rule("LpNormalization")
def _lp_norm(c: Call) -> Any:
    given = c.x(0)
    axis = c.axis(-1, given.tensor.rank)
    p = c.choice("p", 2, 1, 2)
    x = wide(given)
    if p == 1:
        size = ops.sum(ops.abs(x), axis=axis, keepdims=True)
    else:
        size = ops.sqrt(ops.sum(ops.square(x), axis=axis, keepdims=True))
    return like(ops.where(ops.eq(size, 0.0), 0.0, ops.div(x, size)), given)


@rule("MeanVarianceNormalization")
def _mean_variance_norm(c: Call) -> Any:
    given = c.x(0)
    axes = [a % given.tensor.rank for a in c.attr("axes", [0, 2, 3])]
    x = wide(given)
    mean = x
    for axis in axes:
        mean = ops.mean(mean, axis=axis, keepdims=True)
    apart = ops.sub(x, mean)
    spread = ops.square(apart)
    for axis in axes:
        spread = ops.mean(spread, axis=axis, keepdims=True)
    return like(ops.div(apart, ops.add(ops.sqrt(spread), 1e-9)), given)


@rule("LRN")
def _local_response_norm(c: Call) -> Any:
    """The squares of neighbouring channels are added up by a pool over the axis of channels."""
    given = c.x(0)
    x, size = wide(given), int(c.attr("size"))
    before = (size - 1) // 2
    rows = ops.reshape(ops.square(x), shape=(x.shape[0], 1, x.shape[1], product(x.shape[2:])))
    mean = ops.average_pool(
        rows,
        kernel=(size, 1),
        strides=(1, 1),
        pads=(before, 0, size - 1 - before, 0),
        dilations=(1, 1),
        count_pads=True,
    )
    base = ops.add(ops.mul(ops.reshape(mean, shape=x.shape), c.attr("alpha", 1e-4)), c.attr("bias", 1.0))
    return like(ops.div(x, ops.pow(base, c.attr("beta", 0.75))), given)
