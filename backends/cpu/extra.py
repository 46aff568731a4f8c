"""The optional packages of this backend: torch, whose kernels run where there is no native one."""

from __future__ import annotations

from importlib.util import find_spec

INSTALL = "pip install 'xinheng[cpu]'"


def has_torch() -> bool:
    """Whether torch is installed; it is not imported."""
    return find_spec("torch") is not None
