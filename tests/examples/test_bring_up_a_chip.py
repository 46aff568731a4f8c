"""`docs/bring-up-a-chip.md`, followed step by step: a package, a model, a kernel, and a certificate."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .conftest import ROOT
from .reader import BLOCK, Reader

PAGE = ROOT / "docs" / "bring-up-a-chip.md"
CERTIFICATE = "## Four: the certificate"


class Vendor(Reader):
    """A reader whose package is installed as it is now: `pip install -e` would follow its changes."""

    def code(self, before: str, text: str) -> None:
        super().code(before, text)
        self.commands("pip install -e xinheng-acme")


@pytest.fixture(scope="module")
def vendor(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Vendor:
    """Somebody at three in the afternoon."""
    made = Vendor(tmp_path_factory.mktemp("vendor"), tiny_llama, patience=1800.0)
    made.follow(PAGE.read_text(encoding="utf-8").partition(CERTIFICATE)[0])
    return made


def test_the_day_can_be_followed(vendor: Vendor) -> None:
    page = PAGE.read_text(encoding="utf-8").partition(CERTIFICATE)[0]
    assert len(vendor.done) == page.count("```") // 2
    times = [float(x.replace(",", "")) for x in re.findall(r"^\w+ +\w+ +\d+ +([\d.,]+) +[\d.]+", vendor.printed, re.M)]
    assert times == sorted(times, reverse=True), "kernels come in the order of their time"


@pytest.mark.slow
def test_the_certificate(vendor: Vendor) -> None:
    rest = PAGE.read_text(encoding="utf-8").partition(CERTIFICATE)[2]
    (block, _) = BLOCK.finditer(rest)
    vendor.commands(block["text"])
    made = json.loads((vendor.folder / "out" / "certificate.json").read_text(encoding="utf-8"))
    assert made["level"] == "L2" and made["device"]["emulated"]
