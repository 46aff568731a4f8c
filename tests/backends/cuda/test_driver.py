"""The driver is asked through its management library, which is a double here."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import pytest

from xinheng.backends.cuda.driver import Card, ask_driver, visible

A100 = Card("NVIDIA A100-SXM4-80GB", 80 << 30, (8, 0), "GPU-aaaa1111")
H100 = Card("NVIDIA H100 80GB HBM3", 80 << 30, (9, 0), "GPU-bbbb2222")
T4 = Card("Tesla T4", 15 << 30, (7, 5), "GPU-aaaa3333")


@dataclass
class Library:
    """NVML of a driver with some cards; one of None is lost."""

    cards: tuple[Card | None, ...] = (A100, H100)
    status: int = 0
    opened: int = 0

    def nvmlInit_v2(self) -> int:
        self.opened += self.status == 0
        return self.status

    def nvmlShutdown(self) -> int:
        self.opened -= 1
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = 12080
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: int) -> int:
        return self._written(buffer, size, "570.86.15")

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.cards)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0 if self.cards[index] else 15

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total = self._card(handle).memory
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self._card(handle).capability
        return 0

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: int) -> int:
        return self._written(buffer, size, self._card(handle).name)

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: int) -> int:
        return self._written(buffer, size, self._card(handle).uuid)

    def _card(self, handle: Any) -> Card:
        card: Card | None = self.cards[handle.value - 1]
        assert card is not None
        return card

    def _written(self, buffer: Any, size: int, text: str) -> int:
        assert ctypes.sizeof(buffer) == size > len(text)
        buffer.value = text.encode()
        return 0


def test_cards_of_a_driver() -> None:
    library = Library()
    driver = ask_driver(lambda name: library)
    assert driver is not None
    assert (driver.version, driver.cuda, driver.cards) == ("570.86.15", (12, 8), (A100, H100))
    assert library.opened == 0
    assert H100.architecture == "sm_90"


def test_without_a_library_or_a_driver_there_is_none() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    assert ask_driver(missing) is None
    assert ask_driver(lambda name: Library(status=9)) is None


def test_a_lost_card_is_left_out() -> None:
    driver = ask_driver(lambda name: Library((None, H100)))
    assert driver is not None
    assert driver.cards == (H100,)


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        (None, (A100, H100, T4)),
        ("1", (H100,)),
        ("2,0", (T4, A100)),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", (A100,)),
        ("1,7,0", (H100,)),
        ("0,0", (A100,)),
        ("GPU-bbbb", (H100,)),
        ("GPU-aaaa3333, 0", (T4, A100)),
        ("GPU-aaaa", ()),  # two cards begin like this
    ],
)
def test_visible_cards(listed: str | None, seen: tuple[Card, ...]) -> None:
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert visible((A100, H100, T4), environ) == seen
