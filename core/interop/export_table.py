"""How our ops are written in ONNX: by name where they are the same, else by a few lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..ir.dtype import DType, bool_, float32, int32, int64
from ..ir.graph import Node
from ..ir.types import WeightType
from .emitter import Emitter, number_of

Writer = Callable[[Emitter, Node, Sequence[str]], Any]
"""Adds what a node means, given the names of its operands; returns the names of its results, or None to decline."""

SAME: Mapping[str, str] = {
    "abs": "Abs",
    "add": "Add",
    "atan": "Atan",
    "bitwise_and": "BitwiseAnd",
    "cos": "Cos",
    "div": "Div",
    "eq": "Equal",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "log": "Log",
    "logical_and": "And",
    "logical_not": "Not",
    "logical_or": "Or",
    "matmul": "MatMul",
    "maximum": "Max",
    "minimum": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "nonzero": "NonZero",
    "pow": "Pow",
    "reciprocal": "Reciprocal",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sin": "Sin",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "tanh": "Tanh",
    "trunc_div": "Div",
}
"""Ops that ONNX has with the same operands, no attributes and the same meaning."""

REDUCED: Mapping[str, str] = {"sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "prod": "ReduceProd"}

WRITERS: dict[str, Writer] = {}


def writer(function: Writer) -> Writer:
    """Register how the op of the same name is written."""
    WRITERS[function.__name__.rstrip("_")] = function
    return function


def kind(node: Node, index: int = 0) -> DType:
    """The element type of an operand."""
    value = node.operands[index]
    assert value is not None
    return value.dtype


def write_reduced(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    """A reduction of one axis."""
    axes, dtype = e.ints([node.attributes["axis"]]), kind(node)
    keep = int(node.attributes["keepdims"])
    if dtype.is_float or dtype.bits >= 32 or node.op.name == "amax":
        return e.one(REDUCED[node.op.name], xs[0], axes, keepdims=keep)
    whole = e.one(REDUCED[node.op.name], e.one("Cast", xs[0], to=number_of(int32)), axes, keepdims=keep)
    return e.one("Cast", whole, to=number_of(dtype))


@writer
def cast(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    """Overflow becomes infinite where there is an infinity."""
    dtype = node.attributes["dtype"]
    extra = {"saturate": 0} if dtype.name == "float8_e5m2" else {}
    return e.one("Cast", xs[0], to=number_of(dtype), **extra)


def _compared(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    if kind(node) is bool_:
        xs = [e.one("Cast", x, to=number_of(int32)) for x in xs]
    return e.one({"lt": "Less", "le": "LessOrEqual"}[node.op.name], *xs)


WRITERS.update(lt=_compared, le=_compared)


@writer
def where(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    if kind(node, 1) is not bool_:
        return e.one("Where", *xs)
    return e.one("Or", e.one("And", xs[0], xs[1]), e.one("And", e.one("Not", xs[0]), xs[2]))


@writer
def rsqrt(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("Reciprocal", e.one("Sqrt", xs[0]))


@writer
def square(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("Mul", xs[0], xs[0])


@writer
def isfinite(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("Not", e.one("Or", e.one("IsInf", xs[0]), e.one("IsNaN", xs[0])))


@writer
def clamp(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    ends = [node.attributes["low"], node.attributes["high"]]
    if ends == [None, None]:
        return e.one("Identity", xs[0])
    names = ["" if end is None else e.constant(np.array(end), kind(node)) for end in ends]
    return e.one("Clip", xs[0], *names)


@writer
def fmod(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("Mod", *xs, fmod=1)


@writer
def bitwise_shift(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    """Signed integers are divided, rounding down, since ONNX shifts unsigned ones only."""
    bits, dtype = node.attributes["bits"], kind(node)
    if dtype.kind == "uint":
        amount = e.constant(np.array(abs(bits)), dtype)
        return e.one("BitShift", xs[0], amount, direction="LEFT" if bits >= 0 else "RIGHT")
    factor = 1 << abs(bits)
    if bits >= 0:
        factor = factor - (1 << dtype.bits) if factor >= 1 << (dtype.bits - 1) else factor
        return e.one("Mul", xs[0], e.constant(np.array(factor), dtype))
    power = e.constant(np.array(factor), dtype)
    return e.one("Div", e.one("Sub", xs[0], e.one("Mod", xs[0], power)), power)


@writer
def full(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    value, dtype, shape = node.attributes["value"], node.attributes["dtype"], node.attributes["shape"]
    if not isinstance(value, bool | int | float):
        scalar = e.one("Cast", e.size(value), to=number_of(dtype))
    else:
        scalar = e.constant(np.array(value), dtype)
    return e.one("Expand", scalar, e.shape(shape)) if shape else e.one("Identity", scalar)


@writer
def arange(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    dtype = node.attributes["dtype"]
    made = e.one("Range", e.size(0), e.size(node.attributes["size"]), e.size(1))
    return made if dtype is int64 else e.one("Cast", made, to=number_of(dtype))


@writer
def reshape(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("Reshape", xs[0], e.shape(node.attributes["shape"]), allowzero=1)


@writer
def permute(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    axes = list(node.attributes["axes"])
    return e.one("Transpose", xs[0], perm=axes) if axes else e.one("Identity", xs[0])


@writer
def expand(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    shape = node.attributes["shape"]
    return e.one("Expand", xs[0], e.shape(shape)) if shape else e.one("Identity", xs[0])


@writer
def concat(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("Concat", *xs, axis=node.attributes["axis"])


@writer
def split(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    sizes = node.attributes["sizes"]
    return e.node("Split", [xs[0], e.shape(sizes)], len(sizes), axis=node.attributes["axis"])


@writer
def slice_(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    at = node.attributes
    ends = (e.shape([at["start"]]), e.shape([at["stop"]]))
    return e.one("Slice", xs[0], *ends, e.ints([at["axis"]]), e.ints([at["step"]]))


@writer
def index_select(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("Gather", xs[0], _index(e, node, xs[1]), axis=node.attributes["axis"])


@writer
def gather(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("GatherElements", xs[0], _index(e, node, xs[1]), axis=node.attributes["axis"])


def _index(e: Emitter, node: Node, name: str) -> str:
    """Indices in a type that ONNX takes."""
    return name if kind(node, 1) in (int32, int64) else e.one("Cast", name, to=number_of(int64))


@writer
def scatter(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    at = node.attributes
    return e.one("ScatterElements", xs[0], _index(e, node, xs[1]), xs[2], axis=at["axis"], reduction=at["reduction"])


@writer
def cumsum(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("CumSum", xs[0], e.size(node.attributes["axis"]))


@writer
def argmax(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("Cast", e.one("ArgMax", xs[0], axis=node.attributes["axis"], keepdims=0), to=number_of(int32))


@writer
def topk(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    values, indices = e.node("TopK", [xs[0], e.shape([node.attributes["k"]])], 2)
    return [values, e.one("Cast", indices, to=number_of(int32))]


@writer
def softmax(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("Softmax", xs[0], axis=node.attributes["axis"]) if kind(node).bits >= 32 else None


@writer
def gelu(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("Gelu", xs[0], approximate=node.attributes["approximate"]) if kind(node).bits >= 32 else None


@writer
def rms_norm(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    if kind(node) is not float32:
        return None
    return e.one("RMSNormalization", *xs, epsilon=node.attributes["eps"], axis=-1)


@writer
def layer_norm(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    if kind(node) is not float32 or len(xs) < 2 or not all(xs):
        return None
    return e.one("LayerNormalization", *xs, epsilon=node.attributes["eps"], axis=-1)


@writer
def int_matmul(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    return e.one("MatMul", *(e.one("Cast", x, to=number_of(int32)) for x in xs))


def weight_type(weight: WeightType) -> DType:
    """The element type in which a weight is exported: its own if it is a dense float one, else float32."""
    from ..schemes import scheme

    dense = {scheme(name).dense for name, _ in weight.parts}
    only = dense.pop() if len(dense) == 1 else None
    return only if only is not None and only.is_float and only.bits >= 16 else float32


@writer
def dequantize(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    weight, dtype = node.operands[0], node.attributes["dtype"]
    assert weight is not None
    held = weight_type(weight.type) if isinstance(weight.type, WeightType) else weight.dtype
    return e.one("Identity", xs[0]) if held is dtype else e.one("Cast", xs[0], to=number_of(dtype))


@writer
def embedding(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    weight, dtype = node.operands[1], node.attributes["dtype"]
    if weight is None or not isinstance(weight.type, WeightType):
        return None
    index = xs[0] if kind(node) in (int32, int64) else e.one("Cast", xs[0], to=number_of(int64))
    rows = e.one("Gather", xs[1], index, axis=0)
    return rows if weight_type(weight.type) is dtype else e.one("Cast", rows, to=number_of(dtype))


@writer
def linear(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    weight = node.operands[1]
    if weight is None or not isinstance(weight.type, WeightType) or kind(node).bits < 32:
        return None
    turned = e.one("Transpose", xs[1], perm=[1, 0])
    if weight_type(weight.type) is not kind(node):
        turned = e.one("Cast", turned, to=number_of(kind(node)))
    y = e.one("MatMul", xs[0], turned)
    return e.one("Add", y, xs[2]) if len(xs) > 2 and xs[2] else y


def _windows(node: Node) -> dict[str, Any] | None:
    at = node.attributes
    if not all(isinstance(p, int) and p >= 0 for p in at["pads"]):
        return None
    return {"strides": list(at["strides"]), "pads": list(at["pads"]), "dilations": list(at["dilations"])}


@writer
def conv(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    found = _windows(node)
    if found is None or not kind(node).is_float:
        return None
    return e.one("Conv", *filter(None, xs), **found, group=node.attributes["groups"])


@writer
def conv_transpose(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    at, found = node.attributes, _windows(node)
    reach = zip(at["output_padding"], at["strides"], at["dilations"], strict=True)
    if found is None or not kind(node).is_float or any(p >= max(s, d) for p, s, d in reach):
        return None
    extra = {"output_padding": list(at["output_padding"]), "group": at["groups"]}
    return e.one("ConvTranspose", *filter(None, xs), **found, **extra)


@writer
def max_pool(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    found = _windows(node)
    if found is None or not kind(node).is_float or not _pads_fit(node):
        return None
    return e.one("MaxPool", xs[0], **found, kernel_shape=list(node.attributes["kernel"]))


@writer
def average_pool(e: Emitter, node: Node, xs: Sequence[str]) -> Any:
    found = _windows(node)
    if found is None or not _pads_fit(node):
        return None
    counted = {"count_include_pad": int(node.attributes["count_pads"])}
    return e.one("AveragePool", xs[0], **found, **counted, kernel_shape=list(node.attributes["kernel"]))


def _pads_fit(node: Node) -> bool:
    """Pools of ONNX Runtime want pads smaller than the kernel."""
    kernel, pads = node.attributes["kernel"], node.attributes["pads"]
    return all(isinstance(p, int) and p < kernel[i % len(kernel)] for i, p in enumerate(pads))
