"""Tensors of an emulated device, and how ops run on them.

A tensor wraps one in host memory. An op is unwrapped, run on the processor and wrapped again. What a real device
refuses is refused here too: operands on two devices, element types the chip lacks, ops its framework lacks, and host
reads while a graph is captured.
"""

from __future__ import annotations

from typing import Any

import torch

from .board import Board, board_of
from .tree import tree_leaves, tree_map

MIXED = frozenset(
    {"aten::copy_", "aten::_copy_from", "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::set_"}
)
"""Ops to which torch lets operands of the host come."""
READS = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"})
"""Ops whose result, or the size of it, has to reach the host."""
PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution", "aten::logsumexp"})
"""Ops whose order of sums follows the sizes of their operands where the processor computes them."""


class EmulatedTensor(torch.Tensor):
    """A tensor on an emulated device; `host` is the memory it stands for."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor, device: torch.device) -> EmulatedTensor:
        made: EmulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=device,
            requires_grad=False,
        )
        made.host = host
        return made

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.host!r} on {self.device}"

    def __deepcopy__(self, memo: Any) -> EmulatedTensor:
        return EmulatedTensor(self.host.clone(), self.device)

    def tolist(self) -> Any:
        board_of(self.device).reading("tolist")
        return self.host.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert a tensor on {self.device} to numpy; copy it to the host by Tensor.cpu() first")

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})


def run(function: Any, args: Any, kwargs: Any) -> Any:
    """Run an op of torch for the emulated device that its operands are on, or that it is told.

    Raises:
        RuntimeError: a device of that kind would refuse it.
        NotImplementedError: the framework of the chip has no such op.
    """
    name = function._schema.name
    if name == "aten::_pin_memory":
        return args[0]
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    target = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)), None)
    ours = [leaf for leaf in given if isinstance(leaf, EmulatedTensor)]
    board = board_of(ours[0].device if ours else target)
    _check(name, function, board, given, ours)
    leaving = target is not None and target.type != board.device.type
    if leaving or name in READS or (name == "aten::_copy_from" and not isinstance(args[1], EmulatedTensor)):
        board.reading(name)
    if any(not isinstance(leaf, EmulatedTensor) and leaf.dim() > 0 for leaf in given):
        board.reading(f"{name} from memory of the host")
    home = board_of(target) if target is not None and not leaving else board
    if kwargs.get("pin_memory"):
        kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    made = execute(function, args, kwargs, board)
    known = {id(leaf.host): leaf for leaf in ours}

    def wrapped(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or isinstance(x, EmulatedTensor):
            return x
        if leaving:
            return x.clone() if id(x) in known else x
        if id(x) in known and (target is None or known[id(x)].device == home.device):
            if known[id(x)].shape != x.shape:
                raise RuntimeError(f"{name} resized its result, which a device written in Python cannot do")
            return known[id(x)]
        return placed(x.clone() if id(x) in known else x, home, name)

    return tree_map(wrapped, made)


def placed(host: torch.Tensor, board: Board, what: str) -> EmulatedTensor:
    """A tensor of a device over host memory, which is counted as the device's."""
    board.require(host.dtype, what)
    board.keep(host)
    return EmulatedTensor(host, board.device)


def execute(function: Any, args: Any, kwargs: Any, board: Board) -> Any:
    """Call a function on the host memory of its operands, and note the call in the graph that is being captured."""
    plain, named = tree_map(_host, (args, kwargs))
    if board.graph is not None:
        board.graph.preserve(function, plain, named)
    if getattr(getattr(function, "_schema", None), "name", "") in PRODUCTS:
        function = _once_rounded(function)
    made = function(*plain, **named)
    if board.graph is not None:
        board.graph.note(function, plain, named, made)
    return made


def _once_rounded(function: Any) -> Any:
    """A product with sums in float64, so that a row has the same bits whatever rows are beside it."""

    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    def call(*args: Any, **kwargs: Any) -> Any:
        kind = next(x.dtype for x in args if isinstance(x, torch.Tensor))
        return function(*tree_map(wide, args), **tree_map(wide, kwargs)).to(kind)

    return call


def _host(x: Any) -> Any:
    if isinstance(x, EmulatedTensor):
        return x.host
    if isinstance(x, torch.device) and x.type != "meta":
        return torch.device("cpu")
    return x


def _check(name: str, function: Any, board: Board, given: list[Any], ours: list[EmulatedTensor]) -> None:
    if name in board.chip.unsupported:
        raise NotImplementedError(f"Could not run {name!r} with arguments from the {board.device.type!r} backend")
    places = {leaf.device for leaf in given if isinstance(leaf, EmulatedTensor) or leaf.dim() > 0}
    if ours and len(places) > 1 and name not in MIXED | board.chip.hosted:
        told = " and ".join(sorted(map(str, places)))
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {told} ({function})")
