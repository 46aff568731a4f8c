"""The suite `opinfo`: the samples with which PyTorch tests its own functions, as calls of our ops on a device.

Each sample is judged by the error bounds of our op, as the cases of the suite `ops` are, or, where its numbers leave no
useful bound, by the tolerance of PyTorch's own tests. It also checks the op: where its float64 reference is not what
PyTorch computes in float64, the case is to blame and not the device.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import GraphError, UnsupportedOp, XinhengError, nearest
from xinheng.core.hal import Device, Numerics
from xinheng.core.ir import DType, TensorType
from xinheng.core.ir.dtype import DTYPES, cast_to, float32
from xinheng.core.suite import DECLARED, Item, Outcome, Suite, Verdict

from ..bounds import Rules
from ..call import Call, results
from ..case import SHORT, Tier
from ..declared import excuse
from ..draw import GIVEN
from ..judge import USELESS, judge
from ..operands import T, realise
from ..trial import Trial
from .torch_calls import Given, Uncovered
from .torch_table import COUNTERPARTS

KINDS = ("float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool")
"""The dtypes that samples are asked for in."""
TOLERANCE = "torch-tolerance"
"""The program of results that are as close to PyTorch's in float64 as its own tests demand."""
CLOSE = {"float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5)}
"""Relative and absolute tolerance of `torch.testing.assert_close` by dtype."""
MOST = 24
"""Samples per function and dtype in the default tier, evenly chosen; pools have thousands."""


@dataclass(frozen=True)
class TorchSample:
    """A sample as a call of ours, and what PyTorch computes of it in float64; None is not compared."""

    call: Call
    expected: tuple[Any, ...]


@dataclass(frozen=True)
class Group:
    """The samples of one function in one dtype that our op covers, by index, and why the others are left out."""

    samples: Mapping[int, TorchSample]
    uncovered: Mapping[str, int]


class OpInfoSuite(Suite):
    """Items are called `opinfo/op/dtype/function/index`, such as `opinfo/div/f32/div.no_rounding_mode/3`."""

    name = "opinfo"

    def items(self) -> Sequence[Item]:
        items = []
        for op, function, kind in self._groups():
            items += [Item(s.call.id, op, kind) for s in self._group(op, function, kind).samples.values()]
        return items

    def uncovered(self) -> Mapping[str, Counter[str]]:
        """By op, how many samples of the selection our op does not cover, and why."""
        found: dict[str, Counter[str]] = {}
        for op, function, kind in self._groups():
            found.setdefault(op, Counter()).update(self._group(op, function, kind).uncovered)
        return found

    def _groups(self) -> Sequence[tuple[str, str, str]]:
        ops, kinds = self.selection.ops, self.selection.dtypes
        return [
            (op, function, kind)
            for op, functions in COUNTERPARTS.items()
            for function in functions
            for kind in KINDS
            if (ops is None or op in ops) and (kinds is None or kind in kinds)
        ]

    def _group(self, op: str, function: str, kind: str) -> Group:
        return group(op, function, kind, self.selection.tier > Tier.DEFAULT)

    def run(self, id: str, device: Device) -> Outcome:
        sample, began = self._find(id), time.perf_counter()
        if fault := _disagreement(sample):
            return _outcome(sample, Verdict.BAD_CASE, "meaning", f"the op disagrees with PyTorch: {fault}")
        made = _run(sample, device, self.numerics)
        return made.model_copy(update={"seconds": time.perf_counter() - began})

    def _find(self, id: str) -> TorchSample:
        parts = id.split("/")
        names = {short: name for name, short in SHORT.items()}
        if len(parts) == 5 and parts[4].isdigit() and parts[3] in COUNTERPARTS.get(parts[1], {}):
            kind, index = names.get(parts[2], parts[2]), int(parts[4])
            for thorough in (False, True) if kind in KINDS else ():
                found = group(parts[1], parts[3], kind, thorough).samples.get(index)
                if found is not None:
                    return found
        hint = nearest(parts[1], list(COUNTERPARTS)) if len(parts) > 1 else ""
        raise XinhengError(f"suite 'opinfo' has no item {id!r}{hint}; one looks like opinfo/add/f32/add/3")


def _run(sample: TorchSample, device: Device, numerics: Numerics) -> Outcome:
    call, arithmetic = sample.call, device.capabilities.arithmetic
    try:
        trial = Trial(call, device, numerics)
    except UnsupportedOp as error:
        return _outcome(sample, Verdict.UNSUPPORTED, DECLARED if excuse(call, device.capabilities) else "", str(error))
    kernel = ", ".join(dict.fromkeys(trial.kernels))
    try:
        made = trial.run()
    except Exception as error:  # whatever a kernel raises is its answer
        return _outcome(sample, Verdict.FAIL, "error", f"{type(error).__name__}: {error}", kernel=kernel)
    rules = Rules.of(arithmetic, call.kind, structured=True)
    found = judge(call, made, rules, arithmetic.programs if arithmetic else None)
    if found.ok and found.useless > USELESS:
        fault = _far(sample, made)
        verdict = Verdict.FAIL if fault else Verdict.PASS
        return _outcome(sample, verdict, "numbers" if fault else "", fault, kernel=kernel, program=TOLERANCE)
    verdict = Verdict.PASS if found.ok else Verdict.FAIL
    outcome = _outcome(sample, verdict, found.defect, found.message, kernel=kernel, program=found.program)
    return outcome.model_copy(update={"worst": found.worst, "useless": found.useless})


def _outcome(sample: TorchSample, verdict: Verdict, defect: str = "", message: str = "", **more: Any) -> Outcome:
    call = sample.call
    kind = call.id.split("/")[2]
    dtype = {short: name for name, short in SHORT.items()}.get(kind, kind)
    return Outcome(id=call.id, op=call.op, dtype=dtype, verdict=verdict, defect=defect, message=message, **more)


def _far(sample: TorchSample, made: tuple[Any, ...]) -> str:
    """Which result is not as close to PyTorch's as its own tests demand, or nothing."""
    for i, (got, promised, theirs) in enumerate(zip(made, sample.call.result_types, sample.expected, strict=True)):
        if theirs is None or not isinstance(promised, TensorType):
            continue
        with np.errstate(all="ignore"):
            wanted = cast_to(np.asarray(theirs), promised.dtype).astype(np.float64)
            relative, absolute = CLOSE.get(promised.dtype.name, (0.0, 0.0))
            if not np.allclose(got.astype(np.float64), wanted, rtol=relative, atol=absolute, equal_nan=True):
                return f"result {i} is off by up to {np.nanmax(np.abs(got.astype(np.float64) - wanted))}"
    return ""


def _disagreement(sample: TorchSample) -> str:
    """Where our reference, in float64, is not what PyTorch computes in float64."""
    for i, (ours, theirs) in enumerate(zip(sample.call.reference(), sample.expected, strict=True)):
        if theirs is None:
            continue
        ours = np.asarray(ours)
        if ours.shape != np.shape(theirs):
            return f"result {i} is {list(ours.shape)} here and {list(np.shape(theirs))} there"
        if not np.allclose(ours.astype(np.float64), theirs, rtol=1e-6, atol=1e-9, equal_nan=True):
            return f"result {i} is {ours.reshape(-1)[:4]} here and {np.reshape(theirs, -1)[:4]} there"
    return ""


@cache
def group(op: str, function: str, kind: str, thorough: bool) -> Group:
    """The samples of a function in a dtype; `thorough` takes all there are, and those of its reference tests."""
    import torch

    info, dtype = _infos().get(function), getattr(torch, kind)
    if info is None or not info.supports_dtype(dtype, "cpu"):
        return Group({}, {})
    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(0)
        # not by the methods around these: they seek the test that calls them on the stack, and seed for each sample
        source = (thorough and info.reference_inputs_func) or info.sample_inputs_func
        drawn = list(source(info, "cpu", dtype, False))
        stride = 1 if thorough else -(-len(drawn) // MOST)
        samples, uncovered = {}, Counter[str]()
        for index in range(0, len(drawn), stride):
            id = f"opinfo/{op}/{SHORT.get(kind, kind)}/{function}/{index}"
            try:
                samples[index] = _converted(id, op, function, info, drawn[index])
            except Uncovered as reason:
                uncovered[str(reason)] += 1
    return Group(samples, uncovered)


@cache
def _infos() -> dict[str, Any]:
    """The entries of PyTorch by name and variant.

    Raises:
        XinhengError: PyTorch or a package that its tests need is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise XinhengError(f"suite 'opinfo': {error}; pip install 'xinheng[opinfo]'") from error
    return {".".join(filter(None, (info.name, info.variant_test_name))): info for info in op_db}


def _converted(id: str, op: str, function: str, info: Any, sample: Any) -> TorchSample:
    arguments = (sample.input, *sample.args)
    try:
        given: Given = COUNTERPARTS[op][function](*map(_ours, arguments), **_each(_ours, sample.kwargs))
    except TypeError as error:
        raise Uncovered(f"{function} takes what {op} does not: {error}") from error
    floats = [x.dtype for x in _tensors(given.operands) if x.dtype.is_float]
    made = [realise(x, float32, f"x{i}", (), GIVEN) for i, x in enumerate(given.operands)]
    sources = tuple(source for *_, source in made if source is not None)
    kind = floats[0] if floats else float32
    call = Call(id, op, kind, tuple(t for t, *_ in made), tuple(v for _, v, _ in made), given.attributes, sources)
    try:
        call.graph()
    except GraphError as error:
        raise Uncovered(f"{op} does not take its types") from error
    theirs = info.op(*map(_wide, arguments), **{**_each(_wide, sample.kwargs), **given.fixed})
    laid_out = results(given.results(_arrays(theirs)))
    return TorchSample(call, laid_out)


def _tensors(operands: Sequence[Any]) -> list[T]:
    return [x for x in operands if isinstance(x, T)]


def _each(convert: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: convert(value) for name, value in named.items()}


def _ours(x: Any) -> Any:
    """A tensor as a `T`, a dtype as ours; what is neither stays."""
    import torch

    if isinstance(x, torch.Tensor):
        kind = _kind(x.dtype)
        return T(_array(x), kind)
    if isinstance(x, torch.dtype):
        return _kind(x)
    return type(x)(map(_ours, x)) if type(x) in (list, tuple) else x


def _kind(x: Any) -> DType:
    name = str(x).removeprefix("torch.")
    if name not in DTYPES:
        raise Uncovered(f"has {name} tensors")
    return DTYPES[name]


def _wide(x: Any) -> Any:
    """A sample for PyTorch in float64."""
    import torch

    if isinstance(x, torch.Tensor):
        return x.detach().double() if x.is_floating_point() else x
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else x
    return type(x)(map(_wide, x)) if type(x) in (list, tuple) else x


def _arrays(x: Any) -> Any:
    return tuple(map(_arrays, x)) if isinstance(x, tuple | list) else _array(x)


def _array(x: Any) -> NDArray[Any]:
    found = x.detach().resolve_conj().resolve_neg()
    return np.array(found.double().numpy() if found.is_floating_point() else found.numpy())
