"""Models as measuring instruments: what a device makes of a given text, seen from outside the engine that runs it.

The suite `models` of entry-point group `xinheng.suites` brings the engine's side: its class has an attribute `model`, a
subclass of `MeasuredModel`. So conformance drives whole models and never imports the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import PluginError
from .hal.device import Device, Numerics
from .ir.dtype import DType
from .suite import GROUP

SUITE = "models"

Text = tuple[int, ...]
"""Token ids."""


class ModelProbe(ABC):
    """A model made ready on a device.

    Attributes:
        dtype: of its activations.
        longest_sum: most terms that are added up for one number in it.
        movable: the ops of its graph; those that share a state are one entry, since they can only be moved together.
    """

    dtype: DType
    longest_sum: int
    movable: tuple[frozenset[str], ...]

    @abstractmethod
    def logits(self, text: Text) -> Iterator[NDArray[np.float32]]:
        """The logits at every position of a text, a few positions [n, vocabulary] at a time.

        The last ones are computed token by token, as they are when text is generated.
        """

    @abstractmethod
    def layers(self, text: Text) -> Sequence[NDArray[Any]]:
        """What goes into the first layer and what comes out of each, [tokens, hidden]."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds on the device, which stays open."""


class MeasuredModel(ABC):
    """A model on disk.

    Args:
        reference: a path, or whatever else names a model to the engine.

    Attributes:
        name: for people, and in ids: a word without slashes.

    Raises:
        XinhengError: there is no such model, or it is damaged.
    """

    name: str

    @abstractmethod
    def __init__(self, reference: str) -> None: ...

    @property
    @abstractmethod
    def identity(self) -> str:
        """A hash that changes with every bit of the model."""

    @abstractmethod
    def texts(self, tokens: int) -> tuple[Text, ...]:
        """Texts of so many tokens together, which are the same for everybody who has this model and this release."""

    @abstractmethod
    def open(self, device: Device, numerics: Numerics, dtype: str = "auto") -> ModelProbe:
        """Make it ready on a device.

        Raises:
            UnsupportedOp: the device cannot run some op of it.
            SettingsError: the device has no such dtype.
        """


def measured_model(reference: str) -> MeasuredModel:
    """The model of a reference, by the engine that is installed.

    Raises:
        PluginError: no engine is installed, or several.
        XinhengError: what `MeasuredModel` raises.
    """
    entries = entry_points(group=GROUP, name=SUITE)
    if len(entries) != 1:
        raise PluginError(f"{len(entries)} packages bring the suite {SUITE!r} that runs models; it has to be one")
    loaded: Any = entries[SUITE].load()
    made: MeasuredModel = loaded.model(reference)
    return made
