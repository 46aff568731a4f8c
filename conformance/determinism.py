"""Levels of determinism, and the defects that only a device has which promises one of them.

D0 nothing, D1 a repeated call has the same bits, D2 also in another process and after other work, D3 also row by row of
a batch and token by token of a prompt, D4 also from a captured graph. A device declares its level in
`Arithmetic.determinism`.
"""

from __future__ import annotations

from xinheng.core.hal import Device

PROMISED_BY = {"repeat": "D1", "process": "D2", "batch": "D3", "capture": "D4"}
"""By the `defect` of an outcome, the lowest level that it breaks."""


def promised(device: Device) -> str:
    """The level that a device declares; D0 if it declares nothing."""
    arithmetic = device.capabilities.arithmetic
    return arithmetic.determinism if arithmetic is not None else "D0"
