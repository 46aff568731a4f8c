"""Levels: explicit lists that cover the op set, and what of them a run has reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date

import pytest

from xinheng.conformance.report import LedgerEntry, LevelResult
from xinheng.conformance.running.census import counted, expected, pinned, suite_of
from xinheng.conformance.running.levels import Declared, level_of, levels, reached, up_to
from xinheng.conformance.running.plan import wanted
from xinheng.core.errors import SettingsError
from xinheng.core.ir.dtype import DTYPES
from xinheng.core.ops import OPSET
from xinheng.core.suite import DECLARED, Outcome, Selection, Verdict

EVERYTHING = Declared(frozenset(DTYPES), "D4")
CELLS = {(op, "float32"): 2 for op in OPSET}
"""Two items for each op."""


def passing(cells: Iterable[tuple[str, str]] = CELLS, suites: Sequence[str] = ("supports",)) -> dict[str, Outcome]:
    """A run in which all is well, by id."""
    made = [
        Outcome(id=f"{op}/{kind}/{i}", op=op, dtype=kind, verdict=Verdict.PASS) for op, kind in cells for i in (0, 1)
    ]
    made += [Outcome(id=f"{name}/{op}", op=op, verdict=Verdict.PASS) for name in suites for op in OPSET]
    return {outcome.id: outcome for outcome in made}


def changed(id: str, verdict: Verdict, defect: str = "", dtype: str = "float32") -> dict[str, Outcome]:
    """The same run, but for one item."""
    return passing() | {id: Outcome(id=id, op=id.split("/")[0], dtype=dtype, verdict=verdict, defect=defect)}


def names(results: Iterable[LevelResult]) -> list[str]:
    return [one.level for one in results if one.reached]


def judged(
    outcomes: Mapping[str, Outcome], declared: Declared = EVERYTHING, **options: object
) -> tuple[LevelResult, ...]:
    return reached(outcomes.values(), declared, CELLS, **options)  # type: ignore[arg-type]


def test_every_op_belongs_to_exactly_one_level() -> None:
    listed = [op for level in levels() for op in level.ops]
    assert sorted(listed) == sorted(OPSET)
    assert [level.name for level in levels()] == ["L0", "L1", "L2", "L3", "L4"]
    assert all(list(level.ops) == sorted(level.ops) for level in levels())
    assert level_of("paged_attention").name == "L1"


def test_each_level_asks_for_float32_and_known_dtypes_and_at_least_the_determinism_below() -> None:
    for below, level in zip(levels(), levels()[1:], strict=False):
        assert below.determinism <= level.determinism
    for level in levels():
        assert "float32" in level.dtypes and {*level.dtypes} <= {*DTYPES}
        assert "ops" in level.suites
    with pytest.raises(SettingsError, match="there is no level 'L9'"):
        up_to("L9")


def test_the_number_of_cases_is_pinned() -> None:
    assert pinned() == counted(), "run scripts/pin_cases.py if cases were added or taken away on purpose"
    assert {op for op, _ in pinned()} == {*OPSET}
    for cell, (default, full, exhaustive) in pinned().items():
        assert 0 <= default <= full <= exhaustive, cell


def test_a_selection_has_as_many_items_as_are_pinned_for_it() -> None:
    everything = expected(Selection())
    assert sum(everything.values()) == sum(counts[0] for counts in pinned().values())
    assert set(expected(Selection(ops=frozenset({"add"}), dtypes=frozenset({"float16"})))) == {("add", "float16")}
    needed = wanted("ops", "L1", 0).ops
    assert needed == frozenset(op for level in up_to("L1") for op in level.ops)
    assert wanted("ops", "L1", 0, ["add", "all_reduce"]).ops == frozenset({"add"})
    assert wanted("onnx", "L1", 0).ops is None


def test_suites_are_told_apart_by_the_ids_of_their_items() -> None:
    assert [suite_of(id) for id in ("add/f32/3/normal/0", "onnx/test_add", "supports/add/f64/3/normal/0")] == [
        "ops",
        "onnx",
        "supports",
    ]


def test_a_run_without_failures_reaches_every_level() -> None:
    results = judged(passing())
    assert names(results) == ["L0", "L1", "L2", "L3", "L4"]
    assert [one.required for one in results] == [sum(len(x.ops) for x in up_to(one.level)) for one in results]
    assert all(one.passed == one.required and not one.missing for one in results)
    assert [one.level for one in judged(passing(), top="L1")] == ["L0", "L1"]


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PASS])
def test_a_failing_item_blocks_its_level_and_those_above(verdict: Verdict) -> None:
    results = judged(changed("rms_norm/float32/1", verdict, "numbers"))
    assert names(results) == ["L0"]
    (missing,) = results[1].missing
    assert (missing.op, missing.dtype, missing.items) == ("rms_norm", "float32", ("rms_norm/float32/1",))
    assert missing.reason == "1 of 2 items: numbers"
    assert results[1].passed == results[1].required - 1


def test_an_item_that_was_not_run_blocks() -> None:
    outcomes = passing()
    del outcomes["add/float32/1"]
    assert judged(outcomes)[0].missing[0].reason == "1 of 2 items were run"
    without = {id: o for id, o in passing().items() if o.op != "add"}
    assert judged(without)[0].missing[0].reason == "0 of 2 items were run"
    assert reached(without.values(), EVERYTHING)[0].missing[0].reason == "was not run"


def test_a_dtype_that_the_device_does_not_have_is_asked_of_nobody_unless_it_is_float32() -> None:
    cells = {*CELLS, ("add", "int64")}
    lacking = passing(cells) | {
        f"add/int64/{i}": Outcome(
            id=f"add/int64/{i}", op="add", dtype="int64", verdict=Verdict.UNSUPPORTED, defect=DECLARED
        )
        for i in (0, 1)
    }
    assert "L4" in names(judged(lacking, Declared(frozenset({"float32"}), "D4")))
    assert names(judged(lacking, Declared(frozenset({"float32", "int64"}), "D4")))[-1] == "L4"
    single = changed("add/float32/0", Verdict.UNSUPPORTED)
    assert names(judged(single, Declared(frozenset({"float16"}), "D4"))) == []


@pytest.mark.parametrize(
    ("defect", "highest"), [("repeat", "L0"), ("process", "L1"), ("batch", "L1"), ("capture", "L1"), ("stale", None)]
)
def test_determinism_blocks_the_levels_that_ask_for_it(defect: str, highest: str | None) -> None:
    found = names(judged(changed("add/float32/0", Verdict.FAIL, defect)))
    assert (found[-1] if found else None) == highest


def test_a_level_asks_for_a_promise() -> None:
    for promise, count in (("D0", 1), ("D1", 2), ("D3", 2), ("D4", 5)):
        results = judged(passing(), Declared(frozenset(DTYPES), promise))
        assert len(names(results)) == count
    assert (
        "declares determinism D0, the level needs D1"
        in judged(passing(), Declared(frozenset(DTYPES)))[1].missing[0].reason
    )


def test_the_ledger_excuses_only_what_no_level_asks_for() -> None:
    def excused(id: str, kind: str) -> dict[str, LedgerEntry]:
        fields = {"id": id, "owner": "o", "kind": kind, "issue": "i", "expires": date(2030, 1, 1)}
        return {id: LedgerEntry.model_validate(fields)}

    optional = changed("add/uint16/0", Verdict.FAIL, "numbers", "uint16")
    assert names(judged(optional)) == []
    assert names(judged(optional, excused=excused("add/uint16/0", "bug")))[-1] == "L4"
    for kind in ("bug", "flaky", "unsupported"):
        mandatory = judged(changed("add/float32/0", Verdict.PASS), excused=excused("add/float32/0", kind))
        assert mandatory[0].missing[0].reason == f"1 of 2 items: the ledger calls it {kind}"


def test_other_suites_count_as_far_as_they_are_about_ops_of_the_level() -> None:
    lying = passing() | {
        "supports/gelu": Outcome(id="supports/gelu", op="gelu", verdict=Verdict.FAIL, defect="supports")
    }
    results = judged(lying)
    assert names(results) == ["L0", "L1"]
    assert results[2].missing[0].op == "supports"
    assert judged(passing(suites=()))[0].missing[0].reason == "the suite was not run"
