"""`xinheng bench`: what it prints, the plot it writes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .conftest import Command

SMALL = ("--prompt", 12, "--tokens", 6, "--context", 5, "--batch", "1,3", "--repeat", 2)
SETTINGS = ("--set", "engine.max_model_len=64", "--set", "runtime.threads=1")


def test_json_has_everything_that_was_measured(xinheng: Command, model: Path) -> None:
    done = xinheng("bench", model, *SMALL, *SETTINGS, "--device", "cpu", "--json")
    assert (done.status, done.err) == (0, "")
    data = json.loads(done.out)
    assert data["version"] == 1 and data["model"] == str(model)
    about = data["about"]
    assert about["plan"] == {"prompt": 12, "tokens": 6, "context": 5, "batches": [1, 3], "repeat": 2}
    assert (about["device"], about["numerics"], about["threads"]) == ("cpu:0", "strict", 1)
    assert about["machine"]["processor"] and about["machine"]["memory_bytes"] > 0
    prefill, decode = data["prefill"], data["decode"]
    assert prefill["tokens"] == 12 and [each["batch"] for each in decode] == [1, 3]
    for spread in (prefill["rate"], prefill["first_token_seconds"], *(each["rate"] for each in decode)):
        assert spread["samples"] == 2
        assert 0 < spread["minimum"] <= spread["lower_quartile"] <= spread["median"] <= spread["maximum"]
    assert prefill["rate"]["maximum"] == pytest.approx(12 / prefill["first_token_seconds"]["minimum"])
    for each in decode:  # prompts only add time
        assert each["end_to_end"]["maximum"] < each["rate"]["maximum"] * 7 / 6
    assert data["memory"]["peak_bytes"] > data["memory"]["model_bytes"] > 0 and data["load_seconds"] > 0
    overhead = data["overhead"]
    parts = (overhead["kernels_seconds"], overhead["hal_seconds"], overhead["engine_seconds"])
    assert sum(parts) == pytest.approx(overhead["step_seconds"])
    assert {"op", "kernel", "device", "count"} == set(data["receipt"]["kernels"][0])
    assert data["receipt"]["python_calls_per_step"] >= 0


def test_shares_are_of_limits_that_the_processor_measured(xinheng: Command, model: Path) -> None:
    data = json.loads(xinheng("bench", model, *SMALL, *SETTINGS, "--device", "cpu", "--json").out)
    if data["limits"] is None:
        assert any("does not measure its limits" in note for note in data["notes"])
        return
    assert data["limits"]["rates"]["float32"] > 1e6 and data["limits"]["bandwidth"]["median"] > 1e6
    for part in (data["prefill"], *data["decode"]):
        share = part["share"]
        assert 0 < share["bandwidth"] < 1.5 and 0 < share["arithmetic"] < 1.5
        larger = "bandwidth" if share["bandwidth"] >= share["arithmetic"] else "arithmetic"
        assert share["limit"] == larger


def test_a_device_without_limits_says_so(xinheng: Command, model: Path) -> None:
    device = ("--device", "sim:exact", "--batch", "1", "--prompt", 4, "--tokens", 2, "--context", 2, "--repeat", 1)
    done = xinheng("bench", model, *device, *SETTINGS)
    assert (done.status, done.err) == (0, "")
    assert "note: sim:exact does not measure its limits: no shares of them, no roofline" in done.out
    assert "limits:" not in done.out.replace("its limits:", "") and "prefill 4" in done.out


def test_the_table_is_for_people(xinheng: Command, model: Path) -> None:
    done = xinheng("bench", model, *SMALL, *SETTINGS, "--device", "cpu")
    assert (done.status, done.err) == (0, "")
    for text in ("prefill 12", "decode, batch 1", "decode, batch 3", "time to first token", "a decode step: "):
        assert text in done.out


def test_the_roofline_is_a_page_that_needs_nothing_else(xinheng: Command, model: Path, tmp_path: Path) -> None:
    page = tmp_path / "roofline.html"
    done = xinheng("bench", model, *SMALL, *SETTINGS, "--device", "cpu", "--roofline", page)
    if done.status:
        pytest.skip("without native kernels the processor does not measure its limits")
    text = page.read_text(encoding="utf-8")
    assert "http" not in text.replace("http-equiv", "") and "<script" not in text
    assert "prefers-color-scheme: dark" in text
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(plots) == 3  # the prefill and two sizes of batches
    for plot in plots:
        root = ElementTree.fromstring(plot)
        width, height = (float(root.attrib[name]) for name in ("width", "height"))
        circles = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter("circle")]
        assert circles and all(0 <= x <= width and 0 <= y <= height for x, y in circles)
        told = [title.text or "" for title in root.iter("title")]
        assert any(t.startswith("paged_attention") for t in told) and any(t.startswith("linear") for t in told)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--batch", "1,x"), "batch sizes '1,x' have 'x'; write positive integers such as 1,8,32"),
        (("--batch", "0"), "batch sizes '0' have '0'"),
        (("--batch", "4,4"), "a batch size stands twice in 4, 4"),
        (("--batch", "9999"), "batch sizes 9999 must be from 1 to 4096"),
        (("--repeat", 0), "repeat is 0; measure at least once"),
        (("--tokens", 0), "a benchmark with tokens 0 measures nothing; give at least 1"),
        (("--prompt", 64), "prompt 64 needs sequences of 65 tokens and the context of this model has 64; ask for less"),
        (("--context", 60), "context 60 with 6 tokens needs sequences of 67 tokens"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    xinheng: Command, model: Path, options: tuple[object, ...], told: str
) -> None:
    done = xinheng("bench", model, *SMALL, *SETTINGS, *map(str, options), "--device", "sim:exact")
    assert done.status == 1 and done.out == ""
    assert told in done.err and done.err.count("\n") == 1
