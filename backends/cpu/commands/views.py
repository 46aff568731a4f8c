"""Commands of pieces, concatenations and transposes: views where rows stay whole, strided copies elsewhere."""

from __future__ import annotations

from itertools import accumulate

from xinheng.core.ir.dim import Dim
from xinheng.core.ir.graph import Node, Value

from ..program import Argument, NotPlannable, Planner, value_bytes
from .encoder import encodes, operands_of, product_of

AXES = 4
"""`COPY_AXES` in csrc/copy.h."""

Axis = tuple[Dim, Dim, Dim]
"""A size, and the distances of its elements in bytes where they are read and where they are written."""


@encodes("numpy_split")
def split(plan: Planner, node: Node) -> None:
    (x,) = operands_of(node, "x")
    sizes, axis = node.attributes["sizes"], node.attributes["axis"] % len(x.shape)
    starts = list(accumulate(sizes, initial=0))[: len(sizes)]
    for start, piece in zip(starts, node.results, strict=True):
        _piece(plan, node, x, piece, axis, start)


@encodes("numpy_slice")
def slice_(plan: Planner, node: Node) -> None:
    (x,) = operands_of(node, "x")
    attributes, axis = node.attributes, node.attributes["axis"] % len(x.shape)
    size, start = x.shape[axis], attributes["start"]
    if attributes["step"] != 1 or not isinstance(start, int) or (isinstance(size, int) and start > size):
        raise NotPlannable("a slice with steps, or whose start is not known")
    if start and not isinstance(size, int):
        raise NotPlannable(f"a slice from {start} of an axis of {size}, which may be shorter")
    _piece(plan, node, x, node.results[0], axis, start)


def _piece(plan: Planner, node: Node, x: Value, piece: Value, axis: int, start: Dim) -> None:
    """A run of an axis: of the first and the last one it is a view, of others a copy."""
    size, row = value_bytes(x.dtype), plan.place(x).row
    inner: Dim = 1 if axis == len(x.shape) - 1 else product_of(x.shape[axis + 1 : -1]) * row
    offset = start * inner * size
    if not isinstance(offset, int):
        raise NotPlannable(f"a piece that starts at {start} of {x.type}")
    if axis in (0, len(x.shape) - 1):
        plan.alias(piece, x, offset, row if len(x.shape) > 1 else None)
    else:
        rows = product_of(piece.shape[axis:-1])
        block = product_of(x.shape[axis:-1]) * row
        run = piece.shape[-1] * size
        axes = [(product_of(x.shape[:axis]), block * size, rows * run), (rows, row * size, run)]
        copy(plan, node, plan.address(x, offset), plan.result(piece), axes, run)


@encodes("numpy_concat")
def concat(plan: Planner, node: Node) -> None:
    result, size = node.results[0], value_bytes(node.results[0].dtype)
    axis = node.attributes["axis"] % len(result.shape)
    outer, to = product_of(result.shape[:axis]), plan.result(result)
    stride, offset = product_of(result.shape[axis:]) * size, 0
    pieces = [value for value in node.operands if value is not None]
    for i, piece in enumerate(pieces):
        run = product_of(piece.shape[axis:]) * size
        if not plan.place(piece).contiguous and axis < len(result.shape) - 1:
            raise NotPlannable("concatenation of views along another axis than the last")
        source = plan.place(piece).row * size if axis == len(result.shape) - 1 else run
        copy(
            plan,
            node,
            plan.address(piece),
            Argument(to.kind, to.index, to.value + offset),
            [(outer, source, stride)],
            run,
        )
        if i + 1 < len(pieces):
            if not isinstance(run, int):
                raise NotPlannable(f"a piece behind one of {piece.type}")
            offset += run


@encodes("numpy_permute")
def permute(plan: Planner, node: Node) -> None:
    (x,) = operands_of(node, "x")
    axes, result, size = node.attributes["axes"], node.results[0], value_bytes(x.dtype)
    row = plan.place(x).row
    steps = [product_of(x.shape[i + 1 : -1]) * row if i + 1 < len(x.shape) else 1 for i in range(len(x.shape))]
    moved = [
        (x.shape[axis], steps[axis] * size, product_of(result.shape[i + 1 :]) * size) for i, axis in enumerate(axes)
    ]
    run: Dim = size
    if axes and axes[-1] == len(axes) - 1:
        run = moved.pop()[0] * size
    copy(plan, node, plan.address(x), plan.result(result), moved, run)


def contiguous(plan: Planner, node: Node, x: Value, result: Value) -> None:
    """A result that is the rows of a view one behind the other."""
    size = value_bytes(x.dtype)
    run, rows = x.shape[-1] * size, product_of(x.shape[:-1])
    copy(plan, node, plan.address(x), plan.result(result), [(rows, plan.place(x).row * size, run)], run)


def copy(plan: Planner, node: Node, source: Argument, target: Argument, axes: list[Axis], run: Dim) -> None:
    """Copy runs of `run` bytes along at most four axes; NotPlannable if there are more."""
    if len(axes) > AXES:
        raise NotPlannable(f"a copy along {len(axes)} axes")
    full: list[Axis] = [(1, 0, 0)] * (AXES - len(axes)) + axes
    columns = (size for column in zip(*full, strict=True) for size in column)
    plan.command("copy", node, source, target, *map(plan.number, columns), plan.number(run))
