"""HTML, Markdown and JUnit forms: complete, escaped, and in need of nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pytest

from xinheng.conformance.report import (
    Comparison,
    LedgerEntry,
    Report,
    Scope,
    comparison_html,
    report_html,
    report_junit,
    report_markdown,
)
from xinheng.conformance.report.chart import Axis, curves, histograms, lanes, points
from xinheng.conformance.report.comparison import grew
from xinheng.conformance.report.measures import models, speeds, walks
from xinheng.conformance.report.view import State, bounds_text, groups, headline, matrix, percent, replay
from xinheng.core.ops import OPSET
from xinheng.core.suite import Outcome

from .reports import DEVICE, LEDGER, MODES, OUTCOMES, outcome, report

VOID = {"meta", "link", "br"}
LOADING = {"src", "srcset", "data", "action", "poster", "xlink:href", "background"}


class Page(HTMLParser):
    """A page that was parsed: its tags, whether they are balanced, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def broken() -> Report:
    """A report with something of everything."""
    bad = [
        outcome("rms_norm", "float16", i, verdict="fail", defect="numbers", worst=2.0 + i, message="<12> & more")
        for i in range(3)
    ]
    bad.append(outcome("conv", verdict="crash", defect="crash", worst=None, message="signal 11"))
    bad.append(outcome("model", "", verdict="unsupported", worst=None))
    expired = LEDGER[0].model_copy(update={"id": "gelu/f16/8/normal/0", "standing": "expired"})
    return report(outcomes=[*OUTCOMES, *bad], ledger=[*LEDGER, expired], contradictions=["declares no flush"])


PAGES = {
    "good": lambda: report_html(report()),
    "bad": lambda: report_html(broken()),
    "bare": lambda: report_html(report(outcome(), levels=(), fingerprint=None, selftest=None)),
    "empty": lambda: report_html(report(outcomes=(), ledger=(), levels=(), fingerprint=None, selftest=None)),
    "comparison": lambda: comparison_html(Comparison.of(report(), broken())),
    "same": lambda: comparison_html(Comparison.of(report(), report())),
}


# ----------------------------------------------------------------------------------------------------------------- HTML
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_balanced_and_needs_nothing_else(name: str) -> None:
    text = PAGES[name]()
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in {"script", "iframe", "img", "object", "embed", "audio", "video", "base"}
        assert not LOADING & attributes.keys()
        href = attributes.get("href", "")
        assert not href or href.startswith(("#", "data:,")), href
    assert not re.search(r"@import|url\(", text)
    assert "http:" not in text and "https:" not in text
    assert dict(page.tags)["html"] == {"lang": "en", "data-words": "en"}


@pytest.mark.parametrize("name", PAGES)
def test_ids_and_words_of_others_are_escaped(name: str) -> None:
    text = PAGES[name]()
    assert "Acme A1 &lt;b&gt;" in text and "Acme A1 <b>" not in text
    assert "<12>" not in text
    if name == "bad":
        assert "&lt;12&gt; &amp; more" in text


def test_every_heading_has_both_languages() -> None:
    page = Page(PAGES["bad"]())
    languages = [attributes["lang"] for tag, attributes in page.tags if tag == "span" and "lang" in attributes]
    assert languages.count("en") == languages.count("zh") > 30
    assert "一致性报告" in page.text and "Conformance report" in page.text


def test_all_words_are_used_and_there() -> None:
    folder = resources.files("xinheng.conformance.report").joinpath("templates")
    words = set(re.findall(r"^([a-z-]+) = \[", folder.joinpath("words.toml").read_text("utf-8"), re.MULTILINE))
    used = set()
    for name in ("report", "compare", "parts"):
        text = folder.joinpath(f"{name}.html.jinja").read_text("utf-8")
        for argument in re.findall(r"\bt\(([^)]*)\)", text):
            used |= set(re.findall(r'"([a-z-]+)"', argument))
    states = {state.value for state in State if state is not State.NONE}
    assert words == used | states | {"arithmetic", "memory"}


def test_the_page_shows_what_decides() -> None:
    page = Page(PAGES["bad"]())
    for words in (
        "5 fail",
        "L1",
        "2 of 9 items: numbers",
        "signal 11",
        "xinheng conformance case conv/f32/8/normal/0 --device acme:0",
        "wang@acme.example",
        "2027-03-01",
        "expired",
        "declares no flush",
        "24 bits survive",
        "84 of 84",
        "driver 24.1",
        "D3, also row by row of a batch",
    ):
        assert words in page.text, words
    assert page.text.index("Failures") < page.text.index("Ops by dtype")
    signs = [attributes["class"] for tag, attributes in page.tags if attributes.get("class", "").startswith("cell ")]
    assert {"cell failed", "cell excused", "cell passed", "cell absent", "cell unsupported"} <= set(signs)


def test_a_good_page_says_so() -> None:
    text = Page(PAGES["good"]()).text
    assert "4 of 5 items pass, 1 known failure." in text and "Failures ·" not in text
    assert "The only item passes." in Page(report_html(report(outcome()))).text


# ----------------------------------------------------------------------------------------------------------------- view
def test_the_matrix_holds_every_item_once_failures_first() -> None:
    made = broken()
    table = matrix(made)
    assert sum(cell.items for row in table.rows for cell in row.cells) == made.figures.total
    assert table.dtypes == ("float32", "float16", "bfloat16", "", "int32")
    assert next(rows for family, rows in table.families if family == "other suites")[0].op == "model"
    states = [row.state for _, rows in table.families for row in rows]
    assert states[0] is State.FAILED
    by_op = {row.op: row for row in table.rows}
    assert [c.state.value for c in by_op["add"].cells] == ["passed", "passed", "absent", "none", "none"]
    assert by_op["erf"].cells[1].state is State.EXCUSED
    assert by_op["rms_norm"].cells[1] == type(by_op["add"].cells[0])(State.FAILED, 3, 0, 4.0)
    assert by_op["model"].cells[3].state is State.UNSUPPORTED


def test_failures_are_grouped_with_the_worst_first() -> None:
    made = broken()
    found = [(g.op, g.verdict, len(g.outcomes), g.worst) for g in groups(made, made.failures)]
    assert found == [("conv", "crash", 1, None), ("rms_norm", "fail", 3, 4.0), ("model", "unsupported", 1, None)]


def test_the_command_runs_the_item_as_it_was_run() -> None:
    import shlex

    modes = MODES.model_copy(update={"numerics": "fast", "overrides": {"matmul": "@x"}})
    strange = outcome().model_copy(update={"id": "add/f32/[2 x 3];$/normal/0"})
    words = shlex.split(replay(report(modes=modes), strange))
    assert words[:4] == ["xinheng", "conformance", "case", strange.id]
    assert words[4:] == [
        *("--device", "acme:0"),
        *("--set", "runtime.numerics=fast"),
        *("--set", "runtime.overrides.matmul=@x"),
    ]


def test_the_command_of_an_item_of_another_suite_has_the_options_of_the_run() -> None:
    made = report(scope=Scope(suites=("ops", "models"), options={"model": "a b"}))
    item = outcome("model kl").model_copy(update={"id": "models/a/kl"})
    assert replay(made, item).endswith("models/a/kl --device acme:0 --option 'model=a b'")
    assert "--option" not in replay(made, outcome())


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (1.0, "100 %"), (0.99999, "99.99 %"), (1e-9, "0.01 %"), (0.5, "50.00 %"), (1.5, "150.00 %")],
)
def test_a_share_never_rounds_to_all_or_nothing(share: float, text: str) -> None:
    assert percent(share).replace("\N{NO-BREAK SPACE}", " ") == text


def test_errors_are_shown_in_bounds() -> None:
    assert [bounds_text(x) for x in (None, 0.0, 0.12345, 1.5, 1e9, float("inf"))] == ["", "0", "0.123", "1.5", "∞", "∞"]


def test_the_headline_of_an_empty_run_is_no_success() -> None:
    assert headline(report(outcomes=(), ledger=())) == "Nothing was run."
    short = report(outcome(), expected=9)
    assert headline(short) == "The only item passes, and yet the run fails:"


# --------------------------------------------------------------------------------------------------------------- charts
def test_places_on_the_axis() -> None:
    axis = Axis(100, 400)
    assert [axis.at(x) for x in (0.0, 1e-3, 0.01, 0.1, 1.0, 10.0, float("inf"))] == [100, 100, 200, 300, 400, 500, 500]
    assert axis.bound == 400 and axis.right == 500


def test_lanes_show_ops_beyond_the_bound_first() -> None:
    made = lanes(broken().spreads, Axis(0, 100))
    assert [lane.op for lane in made] == ["rms_norm", "erf", "add"]
    assert [mark.over for mark in made[0].marks] == [False, True]
    assert "reshape" not in {lane.op for lane in made}


def test_histograms_count_every_item_and_keep_the_bound_apart() -> None:
    errors = [0.0, 1e-6, 1e-3, 0.0011, 0.9, 1.0, 1.0000001, 7.0, 50.0, float("inf")]
    items = [outcome(number=i, worst=error) for i, error in enumerate(errors)]
    (made,) = histograms(items, Axis(0, 400), 100.0, ("float32",))
    assert (made.items, made.exact) == (10, 1)
    assert sum(bar.count for bar in made.bars) == 9
    assert sum(bar.count for bar in made.bars if bar.over) == 4
    assert all(bar.left >= Axis(0, 400).bound for bar in made.bars if bar.over)
    assert max(bar.height for bar in made.bars) == 100.0
    first, *_ = made.bars
    assert (first.count, first.left) == (3, 0.5)


def test_points_are_of_what_both_have() -> None:
    made = points(report().spreads, broken().spreads, Axis(0, 100), grew)
    assert {(p.op, p.dtype) for p in made} == {
        ("add", "float32"), ("add", "float16"), ("erf", "float16"), ("rms_norm", "float32")
    }  # fmt: skip
    assert not any(point.moved for point in made)


# ----------------------------------------------------------------------------------------------- models, speed, support
def test_models_are_shown_with_the_walk_through_their_layers() -> None:
    walk = {f"nmse_{i:02d}": 1e-6 * 2**i for i in range(12)} | {f"noise_{i:02d}": 1e-6 for i in range(12)}
    layers = outcome("model layers", "", verdict="fail", defect="numbers", message="layer 3 is the first", worst=2.5)
    made = report(layers.model_copy(update={"id": "models/tiny/layers", "measures": walk}), outcome())
    (found,) = walks(made)
    assert found.model == "tiny" and found.errors == tuple(walk[f"nmse_{i:02d}"] for i in range(12))
    page = Page(report_html(made))
    assert "layer 3 is the first" in page.text and "250.00" in page.text and "layer 10" in page.text
    assert sum(tag == "polyline" for tag, _ in page.tags) == 3
    assert models(report()) == () == walks(report(outcome(measures={"nmse_00": 1.0})))


def test_curves_hold_what_is_zero_or_endless_at_their_ends() -> None:
    drawn = curves([[1e-4, 0.0, 1e-2, float("inf")]], 10, 300, 100)
    assert drawn.curves[0].points == ((10, 100.0), (110, 100.0), (210, 0.0), (310, 0.0))
    assert drawn.ticks == ((100.0, "1e-4"), (50.0, "1e-3"), (0.0, "1e-2"))
    assert len(curves([[0.0, 0.0]], 0, 1, 1).ticks) == 2


def test_speed_is_that_of_the_item_that_uses_most_of_the_machine() -> None:
    def timed(number: int, kind: str = "float32", **shares: float) -> Outcome:
        rates = {"microseconds": 10.0, "gbps": 1.5, "gflops": 2.5}
        return outcome("matmul", kind, number, measures={**rates, **shares})

    made = report(
        timed(0, bandwidth_share=0.2, arithmetic_share=0.1),
        timed(1, bandwidth_share=0.3, arithmetic_share=0.9),
        timed(2, "float16", bandwidth_share=0.5, arithmetic_share=0.1),
        timed(3, "int32"),
        outcome(),
    )
    found = [(s.dtype, s.best.id[-1], s.share, s.limit) for s in speeds(made)]
    assert found[:2] == [("float32", "1", 0.9, "arithmetic"), ("float16", "2", 0.5, "memory")]
    assert found[2][:3] == ("int32", "3", None)
    assert "90.00" in Page(report_html(made)).text


def test_where_only_support_was_asked_for_a_refusal_is_an_answer() -> None:
    made = report(
        outcome("add", measures={"native": 1.0}, worst=None),
        outcome("gelu", measures={"native": 0.0}, worst=None),
        outcome("sin", verdict="unsupported", worst=None),
        outcome("cos", verdict="fail", defect="error", worst=None),
        scope=Scope(mode="support"),
    )
    assert [o.op for o in made.failures] == ["cos"]
    assert headline(made) == "2 of 4 items are supported, 1 of them by kernels of the device's own."
    states = {row.op: row.state.value for row in matrix(made).rows}
    assert states == {"add": "passed", "gelu": "decomposed", "sin": "unsupported", "cos": "failed"}


# ------------------------------------------------------------------------------------------------------------- Markdown
def test_the_summary_has_the_figures_and_what_to_do() -> None:
    text = report_markdown(broken())
    assert text.startswith("# Acme A1 <b>: L1\n")
    for words in ("What unlocks L2:", "`gelu` float16", "| L1 | serves | ✓ |", "0 false alarms in 120,000 runs"):
        assert words in text
    assert "`xinheng conformance case rms_norm/f16/8/normal/0 --device acme:0`" in text
    assert "| `erf` |" in text and "| `add` |" not in text
    assert broken().digest in text


def test_the_summary_is_short_whatever_fails() -> None:
    many = [outcome(op, verdict="fail", defect="numbers", worst=3.0) for op in OPSET]
    text = report_markdown(report(*many))
    assert text.count("xinheng conformance case") == 20 and f"- and {len(OPSET) - 20} more" in text


# ---------------------------------------------------------------------------------------------------------------- JUnit
def suites(text: str) -> Iterator[ElementTree.Element]:
    root = ElementTree.fromstring(text.encode())
    assert root.tag == "testsuites"
    assert set(root.attrib) == {"name", "tests", "failures", "errors", "time"}
    for suite in root:
        assert suite.tag == "testsuite"
        needed = {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"}
        assert set(suite.attrib) == needed
        assert re.fullmatch(r"\d+\.\d{3}", suite.get("time", ""))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
        assert suite.get("tests") == str(len(suite))
        for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert suite.get(count) == str(len(suite.findall(f"testcase/{tag}")))
        for case in suite:
            assert case.tag == "testcase" and set(case.attrib) == {"classname", "name", "time"}
            assert len(case) <= 1
        yield suite
    assert root.get("tests") == str(sum(len(suite) for suite in root))


def test_every_item_is_a_test_case() -> None:
    made = broken()
    cases = {case.get("name", ""): case for suite in suites(report_junit(made)) for case in suite}
    assert {o.id for o in made.outcomes} < set(cases)
    tags = {name: case[0].tag if len(case) else "" for name, case in cases.items()}
    assert tags["add/f32/8/normal/0"] == ""
    assert tags["add/bf16/8/normal/0"] == tags["erf/f16/8/normal/0"] == "skipped"
    assert tags["rms_norm/f16/8/normal/0"] == tags["model//8/normal/0"] == "failure"
    assert tags["conv/f32/8/normal/0"] == "error"
    failure = cases["rms_norm/f16/8/normal/0"][0]
    assert failure.get("type") == "numbers" and failure.get("message") == "<12> & more"
    assert "xinheng conformance case rms_norm/f16/8/normal/0" in (failure.text or "")
    assert "known bug of wang@acme.example, A-1, until 2027-03-01" in (
        cases["erf/f16/8/normal/0"][0].get("message") or ""
    )


REFUSED = report(outcome(verdict="unsupported"), scope=Scope(mode="support"))


@pytest.mark.parametrize(
    "made", [report(), broken(), report(expected=9), report(outcomes=(), ledger=(), expected=1), REFUSED]
)
def test_junit_fails_if_and_only_if_the_run_does(made: Report) -> None:
    found = [case for suite in suites(report_junit(made)) for case in suite if case.find("skipped") is None]
    assert any(len(case) for case in found) == (not made.passed)


def test_what_is_wrong_beside_the_items_is_a_case_too() -> None:
    run = next(suite for suite in suites(report_junit(broken())) if suite.get("name") == "run")
    assert [case[0].get("message") for case in run] == [
        "ledger: gelu/f16/8/normal/0: expired",
        "fingerprint: the device declares no flush",
    ]


def test_characters_that_xml_does_not_allow_are_replaced() -> None:
    text = report_junit(report(outcome(verdict="fail", defect="error", message="\x00\x1b[31m \ud800 芯 \U0001f600")))
    (suite, *_) = suites(text)
    assert suite[0][0].get("message") == "\ufffd\ufffd[31m \ufffd 芯 \U0001f600"


def test_the_headings_of_an_emulation_say_so() -> None:
    emulated = report(device=DEVICE.model_copy(update={"emulated": True}))
    assert "L1 (emulated)" in report_markdown(emulated)
    assert "it proves nothing about silicon" in report_html(emulated)


def test_a_ledger_entry_of_any_date_is_shown(tmp_path: Path) -> None:
    from datetime import date

    entry = LedgerEntry(id="x", owner="o", kind="flaky", expires=date(1, 1, 1), standing="unknown")
    assert "0001-01-01" in report_html(report(ledger=[entry]))
