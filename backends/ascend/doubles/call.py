"""An operator as its callers see it: what only the call itself shows is checked, and updates of graphs are kept."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..._torch.emulation import EmulatedTensor
from .rules import Double, demand, meet
from .tasks import updating

OVERLOADS = ("default", "out")
"""Those that this backend calls; the package may have more."""
_INTEGER_LISTS = ("List[int]", "Optional[List[int]]", "List[SymInt]", "Optional[List[SymInt]]")


class OperatorDouble:
    """An operator in front of its double.

    Lists of integers must be lists of the host, not tensors, which torch would convert silently; tensors that the
    vendor reads on the host must be there; and some keywords must be given, as their defaults are never what is meant.
    """

    def __init__(self, operator: Any, double: Double, name: str) -> None:
        self._operator, self._double, self._name = operator, double, name
        schemas = [getattr(operator, overload)._schema for overload in operator.overloads() if overload in OVERLOADS]
        self._lists = {a.name for s in schemas for a in s.arguments if str(a.type) in _INTEGER_LISTS}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self._name
        for word in self._lists & kwargs.keys():
            demand(name, not isinstance(kwargs[word], torch.Tensor), f"{word} must be a list of the host, not a tensor")
        missing = [word for word in self._double.spoken if word not in kwargs]
        demand(name, not missing, f"{', '.join(missing)} must be given; the default is never what is meant")
        for word in self._double.hosted:
            demand(name, not isinstance(kwargs.get(word), EmulatedTensor), f"{word} must be a tensor of the host")
        devices = (x.device for x in tree_leaves((args, kwargs)) if isinstance(x, EmulatedTensor))
        meet(next(devices, torch.device("cpu")))
        task = updating()
        return self._operator(*args, **kwargs) if task is None else task.renew(self._operator, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        # torch itself looks overloads up here
        return getattr(self._operator, name)
