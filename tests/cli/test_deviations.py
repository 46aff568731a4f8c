"""`xinheng conformance fingerprint` and `attribute`: what they print, and what their exit status says."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Command


def test_the_fingerprint_of_a_device(xinheng: Command) -> None:
    done = xinheng("conformance", "fingerprint", "--device", "sim:exact")
    assert (done.status, done.err) == (0, "")
    assert "sums in float64" in done.out.splitlines()[-1]
    told = json.loads(xinheng("conformance", "fingerprint", "--device", "sim:exact", "--json").out)
    assert told["accumulator"]["matmul float32"]["bits"] == 53
    assert told["line"].startswith("sim:exact: ")
    assert told["contradictions"] == []


def test_a_device_that_declares_otherwise_is_told(xinheng: Command) -> None:
    done = xinheng("conformance", "fingerprint", "--device", "sim:saturating")
    assert done.status == 1
    assert "contradiction: declares overflow to infinity, but float32 gives saturate" in done.out


def attribute(xinheng: Command, model: Path, device: str, folder: Path, *more: str) -> tuple[int, str]:
    place = f"runtime.cache_dir={folder}"
    given = ("--device", device, "--reference", "sim:exact", "--dtype", "float32", "--tokens", "32", "--set", place)
    done = xinheng("conformance", "attribute", model, *given, *more)
    assert done.err == ""
    return done.status, done.out


def test_a_device_without_a_deviation(xinheng: Command, model: Path, tmp_path: Path) -> None:
    status, out = attribute(xinheng, model, "sim:nz-cache", tmp_path)
    assert status == 0
    assert "nothing to explain" in out
    told = json.loads(attribute(xinheng, model, "sim:nz-cache", tmp_path, "--json")[1])
    assert (told["deviates"], told["guilty"], told["first_layer"]) == (False, [], None)


def test_a_device_whose_sums_are_narrow(xinheng: Command, model: Path, tmp_path: Path) -> None:
    status, out = attribute(xinheng, model, "sim:bf16-accumulator", tmp_path)
    assert status == 1
    assert out.splitlines()[2].startswith("linear")
    assert "first output beyond twice the noise: layer 0" in out
