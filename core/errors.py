"""Every error that xinheng raises on purpose, under one root.

A message names the thing, the reason and the next step; whoever catches `XinhengError` can print it as it is.
"""

from __future__ import annotations


class XinhengError(Exception):
    """Root of all deliberate errors."""


class GraphError(XinhengError):
    """A graph, an op call, a type or its text form is not well formed."""


class UnsupportedOp(XinhengError):
    """No kernel, decomposition or allowed fallback runs this node on this device."""


class DeviceError(XinhengError):
    """A device is absent, cannot be opened or failed while running."""


class OutOfMemory(DeviceError):
    """A device has less free memory than was asked for.

    `asked` and `free` are bytes, None where the software of the device does not tell.
    """

    def __init__(self, message: str, asked: int | None = None, free: int | None = None) -> None:
        super().__init__(message)
        self.asked, self.free = asked, free


class PluginError(XinhengError):
    """A plugin is missing, broken or speaks another version of the contract."""


class SettingsError(XinhengError):
    """A setting is unknown or has an impossible value."""


class FormatError(XinhengError):
    """A file is not what it claims to be; the message names file, field and offset."""


class SignatureError(XinhengError):
    """A document was changed after it was written, or nobody who is trusted signed it."""


class CertificateError(XinhengError):
    """A device lacks the certificate that the settings require of it."""


class ModelError(XinhengError):
    """A model and its checkpoint do not fit each other, or this engine has no builder for it."""


class RequestError(XinhengError):
    """A request for generation is invalid or cannot be served."""


def nearest(name: str, known: list[str]) -> str:
    """A hint ", did you mean 'x'?" for a misspelt name, or an empty string."""
    from difflib import get_close_matches

    match = get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean {match[0]!r}?" if match else ""
