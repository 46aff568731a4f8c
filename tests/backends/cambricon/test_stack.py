"""What a Cambricon card lacks, told over trees of files that were made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from xinheng.backends.cambricon import CambriconBackend
from xinheng.backends.cambricon.stack import cards, findings
from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceSpec

ALL = {"torch": "2.7.1", "torch_mlu": "1.28.0+torch2.7.1", "torch_mlu_ops": "1.12.1"}


def package(*lacking: str, **others: str) -> Callable[[str], str | None]:
    return {name: version for name, version in (ALL | others).items() if name not in lacking}.get


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The root of a machine with four cards and Neuware."""
    for file in (
        *(f"dev/cambricon_dev{n}" for n in range(4)),
        "usr/local/neuware/lib64/libcnrt.so",
        "dev/cambricon_ctl",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    return tmp_path


def test_a_complete_machine_has_no_findings(machine: Path) -> None:
    assert findings(machine, {}, package()) == []


@pytest.mark.parametrize(("mask", "left"), [(None, [0, 1, 2, 3]), ("2,0", [2, 0]), ("1,9,2", [1]), ("", [])])
def test_masks_name_physical_cards(machine: Path, mask: str | None, left: list[int]) -> None:
    environ = {} if mask is None else {"MLU_VISIBLE_DEVICES": mask}
    assert cards(machine, environ) == left
    assert [f.code for f in findings(machine, environ, package())] == ([] if left else ["cambricon.masked"])


@pytest.mark.parametrize(
    ("installed", "code"),
    [
        (package("torch_mlu"), "cambricon.torch-mlu-missing"),
        (package("torch"), "cambricon.torch-pair"),
        (package(torch="2.13.0"), "cambricon.torch-pair"),
        (package("torch_mlu_ops"), "cambricon.torch-mlu-ops-missing"),
    ],
)
def test_packages_that_do_not_fit_are_named(machine: Path, installed: Callable[[str], str | None], code: str) -> None:
    found = findings(machine, {}, installed)
    assert [f.code for f in found] == [code]
    assert all(f.remedy and f.told("zh") != f.told("en") for f in found)


def test_an_empty_machine_lacks_everything_from_the_hardware_up(tmp_path: Path) -> None:
    codes = [f.code for f in findings(tmp_path, {}, package("torch_mlu"))]
    assert codes == ["cambricon.driver-missing", "cambricon.neuware-missing", "cambricon.torch-mlu-missing"]


def test_neuware_is_looked_for_where_the_environment_says(machine: Path) -> None:
    assert [f.code for f in findings(machine, {"NEUWARE_HOME": "/opt/nw"}, package())] == ["cambricon.neuware-missing"]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("cambricon:0", "cannot be opened: there is no Cambricon card"),
        ("cambricon:mlu59", "did you mean 'mlu590'"),
        ("cambricon:mlu590@tmo_1_4", "no runtime 'tmo_1_4'"),
        ("cambricon:0,1", "a card is opened as cambricon:0"),
    ],
)
def test_devices_that_are_not_there_say_why(spec: str, told: str) -> None:
    with pytest.raises(DeviceError, match=told):
        CambriconBackend().open(DeviceSpec.parse(spec))
