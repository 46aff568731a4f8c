"""The programs in `benchmarks/`: what they make of samples, and that the page shows the results that are committed."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def plot() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("plot")
    sys.path.remove(str(BENCHMARKS))
    for name in ("plot", "summary"):
        sys.modules.pop(name, None)


def sample(peer: str, what: str, turn: int, rate: float, disturbed: bool = False) -> dict[str, Any]:
    place = {"kind": "sample", "model": "m", "phase": "decode", "what": what, "peer": peer, "round": turn}
    return place | {"rate": rate, "disturbed": disturbed, "bandwidth": 1e9, "weights": 5e6}


def test_ratios_are_of_medians_without_what_was_disturbed(plot: ModuleType) -> None:
    results = [sample("a", "decode", i, rate) for i, rate in enumerate((100.0, 120.0, 110.0))]
    results += [sample("b", "decode", i, rate) for i, rate in enumerate((50.0, 40.0, 55.0))]
    results.append(sample("b", "decode", 3, 1.0, disturbed=True))
    ours, other = plot.measures(results)
    assert (ours.median, other.median, other.spread, other.left_out) == (110.0, 50.0, (40.0, 55.0), 1)
    assert ours.ratio(other) == (2.2, 2.0, 3.0)
    assert ours.shares == [0.5, 0.6, 0.55]
    assert "| b | 50 | 40 to 55 | 3 (1 left out) | 2.20 (2.00 to 3.00) | 25 % |" in plot.summary(results, "a")


def test_less_is_better_for_a_cold_start(plot: ModuleType) -> None:
    cold = [
        {"kind": "sample", "model": "m", "phase": "cold", "what": "cold", "peer": peer, "round": 0, "disturbed": False}
        | {"cold_seconds": seconds, "peak_rss": 2**20}
        for peer, seconds in (("a", 1.0), ("b", 3.0))
    ]
    ours, _, other, _ = plot.measures(cold)
    assert ours.what == "cold start, s" and ours.ratio(other) == (3.0, 3.0, 3.0)


def test_figures_are_documents_with_all_their_points_inside(plot: ModuleType) -> None:
    results = [sample("a & b", f"decode at {n}", 0, 1e5 / n) for n in (128, 1024, 32000)]
    (figure,) = plot.figures(plot.measures(results), {})
    assert figure.file == "m-context"
    root = ElementTree.fromstring(plot.svg(figure))
    space = "{http://www.w3.org/2000/svg}"
    points = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{space}circle")]
    assert len(points) == 3 + 1  # and one of the legend
    assert all(0 < x < plot.WIDTH and 0 < y < plot.HEIGHT for x, y in points)


def test_a_page_without_a_place_for_results_is_an_error(plot: ModuleType) -> None:
    with pytest.raises(ValueError, match="no comments"):
        plot.with_results("# A page\n", "text")


def test_the_page_shows_the_committed_results(plot: ModuleType) -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    results = plot.read(sorted((BENCHMARKS / "results").glob("*.jsonl")))
    files = [line.partition("](")[2].rstrip(")") for line in page.splitlines() if line.startswith("![")]
    remedy = "run benchmarks/plot.py with --page docs/performance.md"
    assert plot.with_results(page, plot.section(results, files, "xinheng")) == page, remedy


@pytest.mark.parametrize("path", sorted((BENCHMARKS / "specs").glob("*.json")), ids=lambda path: path.stem)
def test_specs_name_drivers_that_exist(path: Path) -> None:
    spec = json.loads(path.read_text(encoding="utf-8"))
    assert spec["model"] == path.stem and spec["peers"][0]["name"] == "xinheng"
    names = [peer["name"] for peer in spec["peers"]]
    assert len(set(names)) == len(names)
    assert all((BENCHMARKS / "peers" / peer["driver"]).is_file() for peer in spec["peers"])
