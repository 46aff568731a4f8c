"""What is missing for a card is found on trees of files that look like machines, and cards are counted as masks say."""

from __future__ import annotations

from pathlib import Path

import pytest

from xinheng.backends.ascend import AscendBackend
from xinheng.backends.ascend.chips import CHIPS, chip_called, chip_of, chip_of_version
from xinheng.backends.ascend.stack import NEEDED, TOOLKIT, Machine, blocking, findings
from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceSpec

PAIR = {"torch": "2.13.0+cpu", "torch_npu": "2.13.0"}


def touched(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def whole(root: Path, cards: int = 4, packages: dict[str, str] | None = None, **environ: str) -> Machine:
    """A machine on which nothing is missing."""
    touched(root / "dev/davinci_manager")
    for card in range(cards):
        touched(root / f"dev/davinci{card}")
        touched(root / f"sys/bus/pci/devices/{card}/vendor", "0x19e5\n")
        touched(root / f"sys/bus/pci/devices/{card}/device", "0xd802\n")
    touched(root / "usr/local/Ascend/driver/version.info", "Version=24.1.rc3\nascendhal_version=7.35.19\n")
    home = root / TOOLKIT / "latest"
    touched(home / "version.cfg", "# version: 1.0\nruntime_running_version=[8.1]\n")
    touched(home / "compiler/version.info", "Version=8.1.RC1\n")
    for name in (*NEEDED, "libatb.so"):
        touched(home / "lib64" / name)
    given = {"ASCEND_HOME_PATH": str(home), "LD_LIBRARY_PATH": f"/nowhere:{home / 'lib64'}", **environ}
    return Machine(root, given, (PAIR if packages is None else packages).get)


def codes(machine: Machine, runtime: str = "torch_npu") -> list[str]:
    found = findings(machine, runtime)
    assert all(finding.chinese is not None and finding.remedy for finding in found)
    return [finding.code for finding in found]


def test_nothing_is_missing_on_a_whole_machine(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    assert codes(machine) == []
    found = AscendBackend(machine).probe()
    assert [info.spec for info in found] == ["ascend:0", "ascend:1", "ascend:2", "ascend:3"]
    assert found[1].name == "A2 (card 1)" and not found[1].emulated
    assert found[0].driver == "driver 24.1.rc3, CANN 8.1.RC1, torch_npu 2.13.0"


def test_an_empty_machine_misses_all_of_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {}, lambda name: None)
    assert codes(machine) == ["ascend.driver-missing", "ascend.cann-missing", "ascend.framework-missing"]
    assert codes(machine, "mindspore") == codes(machine)
    assert AscendBackend(machine).probe() == []


@pytest.mark.parametrize(
    ("mask", "cards"),
    [("2", [2]), ("3,1", [3, 1]), (" 0 , 2 ", [0, 2]), ("1,9,2", [1]), ("2,2", [2]), ("9", []), ("a", []), ("", [])],
)
def test_masks_map_to_cards(tmp_path: Path, mask: str, cards: list[int]) -> None:
    machine = whole(tmp_path, ASCEND_RT_VISIBLE_DEVICES=mask)
    assert list(machine.visible) == cards
    right = cards == [int(part) for part in mask.split(",") if part.strip().isdecimal()] and cards != []
    assert codes(machine) == ([] if right else ["ascend.device-mask"])
    if right:
        assert [info.name for info in AscendBackend(machine).probe()] == [f"A2 (card {card})" for card in cards]


def test_cann_is_found_piece_by_piece(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    home = machine.environ["ASCEND_HOME_PATH"]
    library = {"LD_LIBRARY_PATH": machine.environ["LD_LIBRARY_PATH"]}
    assert codes(Machine(tmp_path, {}, PAIR.get)) == ["ascend.cann-environment"]
    assert codes(Machine(tmp_path, {"ASCEND_HOME_PATH": home}, PAIR.get)) == ["ascend.cann-environment"]
    assert codes(Machine(tmp_path, library, PAIR.get)) == ["ascend.cann-environment"]
    (tmp_path / TOOLKIT / "latest/lib64/libopapi.so").unlink()
    assert codes(machine) == ["ascend.cann-incomplete"]
    assert "libopapi.so" in findings(machine)[0].text


def test_atb_is_asked_for_where_cards_attend_by_it(tmp_path: Path) -> None:
    machine = whole(tmp_path, cards=1)
    (tmp_path / TOOLKIT / "latest/lib64/libatb.so").unlink()
    assert codes(machine) == []
    touched(tmp_path / "sys/bus/pci/devices/0/device", "0xd500\n")
    assert codes(machine) == ["ascend.atb-missing"] and not blocking(findings(machine))


@pytest.mark.parametrize(
    ("packages", "code", "remedy"),
    [
        ({}, "ascend.framework-missing", "pip install 'xinheng[ascend]'"),
        ({"torch": "2.9.1"}, "ascend.framework-missing", "torch_npu==2.9.*"),
        ({"torch_npu": "2.13.0"}, "ascend.torch-missing", "torch==2.13.*"),
        ({"torch": "2.12.0", "torch_npu": "2.13.0"}, "ascend.torch-pair", "torch_npu==2.12.* or torch==2.13.*"),
        ({"torch": "2.13.0+cu126", "torch_npu": "2.13.0"}, "ascend.torch-build", "torch==2.13.0+cpu"),
    ],
)
def test_pairs_of_packages(tmp_path: Path, packages: dict[str, str], code: str, remedy: str) -> None:
    machine = whole(tmp_path, packages=packages)
    assert codes(machine) == [code]
    assert remedy in findings(machine)[0].remedy
    with pytest.raises(DeviceError, match=r"cannot be opened: .*pip install"):
        AscendBackend(machine).open(DeviceSpec.parse("ascend:0"))


def test_patch_numbers_and_builds_may_differ(tmp_path: Path) -> None:
    assert codes(whole(tmp_path, packages={"torch": "2.13.1+cpu", "torch_npu": "2.13.0.post2"})) == []


def test_settings_that_do_not_go_together(tmp_path: Path) -> None:
    machine = whole(
        tmp_path,
        ASCEND_LAUNCH_BLOCKING="1",
        PYTORCH_NPU_ALLOC_CONF="expandable_segments:True,max_split_size_mb:256",
    )
    assert codes(machine) == ["ascend.launch-blocking", "ascend.allocator-settings"]
    assert blocking(findings(machine)) == []


def test_closed_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = whole(tmp_path, cards=2)
    monkeypatch.setattr("os.access", lambda path, mode: "davinci1" not in str(path))
    assert codes(machine) == ["ascend.permission"] and "/dev/davinci1" in findings(machine)[0].text


def test_a_card_that_the_process_does_not_see(tmp_path: Path) -> None:
    backend = AscendBackend(whole(tmp_path, ASCEND_RT_VISIBLE_DEVICES="2"))
    with pytest.raises(DeviceError, match="ascend:1 does not exist; this process sees ascend:0 to ascend:0"):
        backend.open(DeviceSpec.parse("ascend:1"))
    with pytest.raises(DeviceError, match="names several cards"):
        backend.open(DeviceSpec.parse("ascend:0,1"))


def test_a_package_that_cannot_be_imported_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in ("ImportError('libhccl.so: cannot open')", "OSError('libatb.so')", "RuntimeError('ERR00007')"):
        touched(tmp_path / "site/torch_npu.py", f"raise {error}")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        with pytest.raises(DeviceError, match=r"torch_npu is installed and cannot be imported: .*set_env\.sh"):
            AscendBackend(whole(tmp_path)).open(DeviceSpec.parse("ascend:0"))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Ascend910B3", "910b"), ("Ascend910B4-1", "910b"), ("Ascend910B", "910a"), ("Ascend910ProA", "910a"),
        ("Ascend310P3", "310p"), ("Ascend910_9391", "910c"), ("Ascend950PR_9599", "950"),
    ],
)  # fmt: skip
def test_generations_by_name(name: str, word: str) -> None:
    assert chip_of(name) is chip_called(word)


def test_unknown_chips_are_none() -> None:
    assert chip_of("Ascend310B4") is None and chip_of_version(240) is None
    assert [chip_of(chip.soc) for chip in CHIPS] == list(CHIPS)
    assert [chip_of_version(number) for chip in CHIPS for number in chip.versions] == [c for c in CHIPS for _ in (0, 1)]
