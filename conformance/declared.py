"""What a device need not run, since it declares that it cannot: such refusals are no debt, and no level asks for it."""

from __future__ import annotations

from collections.abc import Iterator

from xinheng.core.hal import Capabilities
from xinheng.core.ir import DType, StateType, TensorType, WeightType
from xinheng.core.ops import OPSET
from xinheng.core.schemes import scheme

from .call import Call


def excuse(call: Call, capabilities: Capabilities) -> str | None:
    """Why a device may refuse a call, from its own declaration; None if it has no excuse."""
    lacking = next((kind for kind in dtypes_of(call) if kind not in capabilities.dtypes), None)
    if lacking is not None:
        return f"the device lists no {lacking}"
    states = (kind for kind in (*call.types, *call.result_types) if isinstance(kind, StateType))
    coding = next((kind["scheme"] for kind in states if kind.quantized), None)
    if coding is not None and coding not in capabilities.cache_schemes:
        return f"the device lists no caches of {coding}"
    late = next((s.name for s in call.graph().symbols().values() if s.unbacked), None)
    if late is not None and not capabilities.dynamic_shapes:
        return f"the device takes fixed sizes only, and {late} is known only after {call.op} ran"
    longest, limit = _longest(call), capabilities.max_length
    if limit is not None and longest > limit:
        return f"the device takes sequences of at most {limit} tokens, not {longest}"
    return None


def dtypes_of(call: Call) -> Iterator[DType]:
    """The dtypes of its tensors, of states of a float dtype, and of dense weights."""
    for kind in (*call.types, *call.result_types):
        if isinstance(kind, TensorType):
            yield kind.dtype
        elif isinstance(kind, StateType):
            yield from (() if kind.quantized else (part.dtype for part in kind.parts))
        elif isinstance(kind, WeightType):
            yield from (dense for name, _ in kind.parts if (dense := scheme(name).dense) is not None)


def _longest(call: Call) -> int:
    """The longest sequence that a call reads from a cache."""
    names = [operand.name for operand in OPSET[call.op].operands]
    if not {"cache", "seq_lens"} <= {*names}:
        return 0
    return max((0, *map(int, call.values[names.index("seq_lens")])))
