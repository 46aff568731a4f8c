"""Torch devices described by a table: who made them, what is missing, and one without hardware that runs a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from xinheng.backends._vendors import maker_of, vendors
from xinheng.backends.generic import GenericBackend
from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceSpec
from xinheng.core.plugins import PluginManager

from ...engine import tiny

NOTHING = {"has_module": lambda name: False, "has_tool": lambda name: False}


@pytest.mark.parametrize(
    ("card", "maker"),
    [("DCU K100_AI", "hygon"), ("MetaX C500", "metax"), ("Iluvatar BI-V150", "iluvatar"), ("P800 OAM", "kunlunxin"),
     ("PPU-ZW810E", "thead"), ("NVIDIA H20", None), ("AMD Instinct MI300X", None)],
)  # fmt: skip
def test_vendors_that_torch_calls_by_one_name_are_told_by_their_cards(card: str, maker: str | None) -> None:
    assert maker_of(card, hip=False, **NOTHING) == maker


def test_vendors_are_told_by_module_or_tool_where_the_card_has_no_name_of_theirs() -> None:
    assert maker_of("GPU", False, lambda name: name == "torch_xmlir", lambda name: False) == "kunlunxin"
    assert maker_of("GPU", False, lambda name: False, lambda name: name == "mx-smi") == "metax"
    assert maker_of("GPU", False, lambda name: False, lambda name: name in ("mx-smi", "nvidia-smi")) is None
    assert maker_of("gfx936", True, lambda name: False, lambda name: name == "hy-smi") == "hygon"
    assert maker_of("gfx942", True, lambda name: False, lambda name: name == "rocm-smi") is None


def test_each_vendor_is_told_with_what_it_misses() -> None:
    found = {finding.code: finding for finding in GenericBackend().diagnose()}
    assert set(found) == {f"generic.{name}-missing" for name in vendors()}
    told = found["generic.musa-missing"]
    assert "torch_musa is not installed" in told.text and "MUSA_VISIBLE_DEVICES" in told.remedy
    assert "build of torch that Hygon DCU ships" in found["generic.hygon-missing"].remedy


@pytest.mark.parametrize(
    ("spec", "what"),
    [("musa:0", "torch_musa is not installed.*install the driver and torch_musa"),
     ("hygon:0", "hy-smi is not installed.*the build of torch that Hygon DCU ships"),
     ("hygon:emulated", "'cuda' is a name of torch itself"), ("musa:fast", "there are numbers, and the word emulated"),
     ("musa:emulated@jax", "musa runs on torch only"), ("nothing:0", "the table of vendors has musa")],
)  # fmt: skip
def test_what_cannot_be_opened_is_explained(spec: str, what: str) -> None:
    with pytest.raises(DeviceError, match=what):
        GenericBackend().open(DeviceSpec.parse(spec))


def test_names_of_the_table_reach_this_backend() -> None:
    with pytest.raises(DeviceError, match=r"device txda:0 cannot be opened: txda \(Tsingmicro\)"):
        PluginManager().open("txda:0")


PROGRAM = """
import json, sys
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, SamplingParams
answers = []
for device, graph in (("cpu:0", True), ("musa:emulated", True), ("musa:emulated", False)):
    with LLM(sys.argv[1], runtime=RuntimeSettings(device=device, dtype="float32", graph=graph)) as llm:
        made = llm.generate(["abc", "bcd"], SamplingParams(max_tokens=12, temperature=0))
        answers.append([m.token_ids for m in made])
        notes = [note for note in llm.receipt.notes if "captured" in note]
        answers.append(notes)
print(json.dumps(answers))
"""


def test_a_model_gives_the_ids_of_the_processor(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", tiny.LLAMA, seed=1)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    ours, no_graphs, theirs, graphs, plain, switched_off = json.loads(done.stdout)
    assert ours == theirs == plain
    assert any(note.startswith("captured as graphs: ") and "seqs=2" in note for note in graphs), graphs
    assert no_graphs == [] and switched_off == ["nothing is captured: runtime.graph is false"]
