"""What the NVIDIA driver says about the cards, asked through its management library: no CUDA context, no torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._vendors import shown

LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96
"""Bytes of a buffer for a name, which the library terminates."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card: its name, memory in bytes, compute capability and unique id."""

    name: str
    memory: int
    capability: tuple[int, int]
    uuid: str

    @property
    def architecture(self) -> str:
        """As in sm_90."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver that answers: its version, the newest CUDA it knows as (major, minor), and all cards by PCI order."""

    version: str
    cuda: tuple[int, int]
    cards: tuple[Card, ...]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def ask_driver(load: Callable[[str], Any] = ctypes.CDLL) -> Driver | None:
    """The driver and its cards; None where there is no library, or no driver behind it."""
    try:
        library = load(LIBRARY)
    except OSError:
        return None
    if library.nvmlInit_v2() != 0:
        return None
    try:
        return _asked(library)
    finally:
        library.nvmlShutdown()


def _asked(library: Any) -> Driver:
    cuda, count = ctypes.c_int(), ctypes.c_uint()
    library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    cards = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        # a card that fell off the bus has an index and no handle
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            cards.append(_card(library, handle))
    known = divmod(cuda.value, 1000)
    return Driver(_text(library.nvmlSystemGetDriverVersion), (known[0], known[1] // 10), tuple(cards))


def _card(library: Any, handle: ctypes.c_void_p) -> Card:
    memory, major, minor = _Memory(), ctypes.c_int(), ctypes.c_int()
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    name, uuid = _text(library.nvmlDeviceGetName, handle), _text(library.nvmlDeviceGetUUID, handle)
    return Card(name, memory.total, (major.value, minor.value), uuid)


def _text(function: Any, *before: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT)
    return buffer.value.decode(errors="replace") if function(*before, buffer, _TEXT) == 0 else ""


def visible(cards: Sequence[Card], environ: Mapping[str, str]) -> tuple[Card, ...]:
    """The cards that a process sees, in the order of its ordinals.

    `CUDA_VISIBLE_DEVICES` is a list of indices or of beginnings of unique ids; the first entry that names no card ends
    it, and an empty list hides all.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(cards)
    return shown(cards, (_named(entry.strip(), cards) for entry in listed.split(",")))


def _named(word: str, cards: Sequence[Card]) -> Card | None:
    """The card that an index or the beginning of a unique id means; None if it means none, or several."""
    if word.isdigit():
        return cards[int(word)] if int(word) < len(cards) else None
    named = [card for card in cards if word and card.uuid.startswith(word)]
    return named[0] if len(named) == 1 else None
