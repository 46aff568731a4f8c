"""Finds and opens Cambricon devices: digits are cards, the words `mlu370` and `mlu590` are emulations."""

from __future__ import annotations

from typing import ClassVar

from xinheng.core.errors import DeviceError, nearest
from xinheng.core.hal import Backend, Device, DeviceInfo, DeviceOptions, DeviceSpec, Finding

from .chips import CHIPS
from .stack import cards, driver_version, findings

RELEASES = ("tmo_1_12", "tmo_1_3", "torch")
"""What an emulation stands for: a new and an old release of torch_mlu_ops, or none; the first is the default."""
OPTIONAL = "cambricon.torch-mlu-ops-missing"


class CambriconBackend(Backend):
    """Cards as `cambricon:0`; emulations as `cambricon:mlu590`, `cambricon:mlu590@tmo_1_3`, `cambricon:mlu370`."""

    name: ClassVar[str] = "cambricon"
    api_version: ClassVar[tuple[int, int]] = (1, 0)
    priority: ClassVar[int] = 60

    def probe(self) -> list[DeviceInfo]:
        emulated = [
            DeviceInfo(f"cambricon:{chip.word}", f"emulated {chip.name}", chip.memory, emulated=True) for chip in CHIPS
        ]
        if any(finding.code != OPTIONAL for finding in findings()):
            return emulated
        found = [DeviceInfo(f"cambricon:{i}", f"MLU card {n}", driver=driver_version()) for i, n in enumerate(cards())]
        return [*found, *emulated]

    def open(self, spec: DeviceSpec, options: DeviceOptions | None = None) -> Device:
        given = options or DeviceOptions()
        if spec.word is not None:
            return _open_emulation(spec, given)
        if spec.runtime not in (None, "torch") or len(spec.ordinals) > 1:
            raise DeviceError(f"device {spec} does not exist; a card is opened as cambricon:0 or cambricon:0@torch")
        missing = [f for f in findings() if f.code != OPTIONAL]
        if missing:
            told = "; ".join(f"{f.text}: {f.remedy}" for f in missing)
            raise DeviceError(f"device {spec} cannot be opened: {told}")
        from .card import open_card

        return open_card(spec, given)

    def diagnose(self) -> list[Finding]:
        return findings()


def _open_emulation(spec: DeviceSpec, options: DeviceOptions) -> Device:
    words = [chip.word for chip in CHIPS if chip.word]
    release = spec.runtime or RELEASES[0]
    if spec.word not in words:
        raise DeviceError(
            f"device {spec} does not exist{nearest(str(spec.word), words)}; emulated are {', '.join(words)}"
        )
    if release not in RELEASES:
        raise DeviceError(
            f"device {spec}: no runtime {release!r}{nearest(release, list(RELEASES))}; known: {', '.join(RELEASES)}"
        )
    try:
        from .emulation import open_emulation
    except ImportError as error:
        raise DeviceError(f"device {spec} needs torch: {error}; pip install 'xinheng[cambricon]'") from error
    return open_emulation(str(spec), spec.word, release, options)
