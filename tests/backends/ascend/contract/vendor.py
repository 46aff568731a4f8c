"""The vendor's own package in this process, and the calls of its operators that were made while tests ran."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

FOLDER = os.environ.get("XINHENG_NPU_CONTRACT")
"""Where `make test-npu-contract` put the package and stubs of what it links to."""


CALLS: dict[str, tuple[Any, Any, Any, Any]] = {}
"""One call of each kind: operator, operands, keywords, generation; by types, shapes and all else that was given."""


def load() -> None:
    """Import the package, and let our doubles compute for its operators on the host.

    Raises:
        RuntimeError: it cannot be imported, or is another package than that of the folder.
    """
    assert FOLDER is not None
    sys.path.insert(0, str(Path(FOLDER) / "site"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package: Any = importlib.import_module("torch_npu")
    if not Path(package.__file__).is_relative_to(FOLDER):
        raise RuntimeError(f"torch_npu came from {package.__file__}, not from {FOLDER}")
    from xinheng.backends.ascend import doubles
    from xinheng.backends.ascend.chips import chip_called

    doubles.install(chip_called("910b"), declare=False)


@contextmanager
def recorded() -> Iterator[None]:
    """Keep the calls that are made inside."""
    from xinheng.backends.ascend.doubles.call import OperatorDouble
    from xinheng.backends.ascend.doubles.rules import emulated

    plain = OperatorDouble.__call__

    def call(self: OperatorDouble, *args: Any, **kwargs: Any) -> Any:
        key = f"{self._name} {tree_map(_described, (args, kwargs))}"
        kept = tree_map(_copied, (args, kwargs)) if key not in CALLS else None
        made = plain(self, *args, **kwargs)  # a call that is refused is none
        if kept is not None:
            CALLS[key] = (self._operator.default, *kept, emulated())
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OperatorDouble, "__call__", call)
        yield


@contextmanager
def bare(given: Any) -> Iterator[None]:
    """The operators of the package without our checks in front, as tools of torch look them up.

    Those tools copy operands, and a copy forgets its format: meanwhile it is told by the shape, as in the call `given`.
    """
    from xinheng.backends.ascend.doubles import atb, cache, formats, linear, moe, rules
    from xinheng.backends.ascend.doubles.call import OperatorDouble

    kept = {x.shape: rules.format_of(x) for x in tree_leaves(given) if isinstance(x, torch.Tensor)}
    with pytest.MonkeyPatch.context() as patch:
        for module in (atb, cache, formats, linear, moe):
            if hasattr(module, "format_of"):
                patch.setattr(module, "format_of", lambda x: kept.get(x.shape, rules.ND))
        for space in (torch.ops.npu, torch.ops.atb):
            for name, operator in list(vars(space).items()):
                if isinstance(operator, OperatorDouble):
                    patch.setattr(space, name, operator._operator)
        yield


def _described(x: Any) -> Any:
    return (str(x.dtype), tuple(x.shape), x.stride()) if isinstance(x, torch.Tensor) else x


def _copied(x: Any) -> Any:
    """A tensor that later changes do not reach, in the format it has."""
    if not isinstance(x, torch.Tensor):
        return x
    from xinheng.backends.ascend.doubles.rules import format_of, marked

    return marked(x.clone(), format_of(x))
