"""Whether a device tells the truth about what it supports: yes means that it runs, no that it refuses properly."""

from __future__ import annotations

from dataclasses import replace

from xinheng.core.errors import UnsupportedOp, XinhengError
from xinheng.core.hal import Device, Numerics
from xinheng.core.ir import Node

from ..call import Call
from ..trial import Trial
from .experiment import Finding, blamed


def claimed(device: Device, node: Node) -> bool:
    """What the device says about a node.

    Raises:
        DeviceError: it raised instead of saying anything.
    """
    with blamed(device, f"failed to say whether it supports {node.op.name}"):
        return device.supports(node)


def contradiction(device: Device, node: Node, claim: bool) -> Finding | None:
    """Whether the device would choose a kernel for a node that it says it does not support, or none for one it does."""
    with blamed(device, f"failed to choose a kernel of {node.op.name}"):
        kernel, refusals = device.select(node)
    if claim and kernel is None:
        told = "; ".join(f"{r.kernel}: {r.reason}" for r in refusals) or "it has none"
        return Finding("supports", f"says that it supports {node.op.name} here and has no kernel for it ({told})")
    if not claim and kernel is not None:
        return Finding("supports", f"says that it does not support {node.op.name} here and has kernel {kernel.name!r}")
    return None


def forced(call: Call, device: Device, numerics: Numerics) -> Finding | None:
    """What happens when an op that the device says it does not support is demanded of it as it is.

    It has to refuse with an error of xinheng; that the process survives is for the runner to see.
    """
    asked = replace(numerics, overrides={**numerics.overrides, call.op: "device"})
    try:
        trial = Trial(call, device, asked)
        trial.run()
    except XinhengError:
        return None
    except Exception as error:
        kind = type(error).__name__
        return Finding("supports", f"refuses {call.op} by {kind}, not by an error of xinheng: {error}")
    if not trial.kernels:
        return None  # nothing was left to run, as of a cast to the dtype that it is in
    return Finding("supports", f"says that it does not support {call.op} here and runs it when told to")


def refused(op: str, error: UnsupportedOp) -> Finding:
    """The finding where a device claimed to support a node and refused to run it."""
    return Finding("supports", f"says that it supports {op} here and refuses to run it: {error}")
