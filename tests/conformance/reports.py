"""Small reports for tests, of a chip that does not exist."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from xinheng.conformance.fingerprints.fingerprint import Fingerprint
from xinheng.conformance.fingerprints.traits import Accumulator, Summation, Trait
from xinheng.conformance.report import (
    DeviceHeader,
    LedgerEntry,
    LevelResult,
    Missing,
    Modes,
    Report,
    Scope,
    Selftest,
)
from xinheng.core.suite import Outcome

DEVICE = DeviceHeader(
    spec="acme:0",
    name="Acme A1 <b>",
    driver="driver 24.1",
    plugin="xinheng-acme",
    plugin_version="1.2",
    packages={"numpy": "2.0"},
    platform="Linux",
    dtypes=("float32", "float16", "int32"),
)
MODES = Modes(arithmetic={"depth": 64, "accumulate": "float32", "flush": False, "programs": {}})
LEVELS = (
    LevelResult(level="L0", title="boots", reached=True, passed=4, required=4),
    LevelResult(level="L1", title="serves", reached=True, passed=6, required=6),
    LevelResult(
        level="L2",
        title="production",
        reached=False,
        passed=6,
        required=7,
        missing=(Missing(op="gelu", dtype="float16", reason="2 of 9 items: numbers"),),
    ),
)
LEDGER = (
    LedgerEntry(id="erf/f16/8/normal/0", owner="wang@acme.example", kind="bug", issue="A-1", expires=date(2027, 3, 1)),
)
SELFTEST = Selftest(
    seeded=84, seeded_killed=84, automatic=100, automatic_killed=99, correct_runs=120_000, false_alarms=0
)


def outcome(op: str = "add", kind: str = "float32", number: int = 0, **fields: Any) -> Outcome:
    """A passing item, unless the fields say otherwise."""
    short = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}.get(kind, kind)
    given = {"verdict": "pass", "worst": 0.25, "kernel": f"acme_{op}", "determinism": ("D1", "D3"), "seconds": 0.01}
    return Outcome(id=f"{op}/{short}/8/normal/{number}", op=op, dtype=kind, **{**given, **fields})


OUTCOMES = (
    outcome("add"),
    outcome("add", "float16", worst=0.98),
    outcome("add", "bfloat16", verdict="unsupported", defect="declared", worst=None),
    outcome("erf", "float16", verdict="fail", defect="numbers", worst=1.7, message="18 of 65536 elements"),
    outcome("rms_norm", worst=0.004),
    outcome("reshape", "int32", worst=0.0),
)
"""Five items of which one is a known failure, and one in a dtype that the chip does not have."""


def report(*outcomes: Outcome, **fields: Any) -> Report:
    """A report; of `OUTCOMES` and with everything a report can have, unless something is given."""
    given: dict[str, Any] = {
        "suite_version": "1.0",
        "device": DEVICE,
        "modes": MODES,
        "scope": Scope(level="L1", suites=("ops",)),
        "outcomes": outcomes or OUTCOMES,
        "ledger": () if outcomes else LEDGER,
        "levels": LEVELS,
        "fingerprint": fingerprint(),
        "selftest": SELFTEST,
        "seconds": 12.5,
        "created": datetime(2026, 11, 30, 12, tzinfo=UTC),
    }
    return Report.of(**{**given, **fields})


def fingerprint() -> Fingerprint:
    """What experiments would find on the chip."""
    yes, no = Trait(value="yes", evidence="one rounding"), Trait(value="no", evidence="2^-126 / 2 is kept")
    return Fingerprint(
        device="acme:0",
        accumulator={"matmul float32": Accumulator(value="float32", evidence="24 bits survive", bits=24)},
        summation={"matmul": Summation(value="blocks of 64", evidence="79 additions", depth=79, terms=1024)},
        inputs=Trait(value="none", evidence="24 bits survive"),
        fused={"matmul": yes},
        flush_inputs={"float16": no},
        flush_results={"float16": no},
        overflow={"float16": Trait(value="infinity", evidence="65504 * 2 is infinite")},
        rounding={"float16": Trait(value="half-even", evidence="of 64 ties")},
        grades={},
    )
