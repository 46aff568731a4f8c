"""The conformance suite as tests of pytest, for the CI of a vendor. A test file is three lines:

    from xinheng.conformance.pytest_plugin import conformance_tests

    test_acme = conformance_tests("acme:0", level="L0")

Every item is a test. It runs in a worker process, so that a crash, a hang or a lack of memory is its failure and no
other's. What the ledger of the vendor expects to fail is an xfail; that it passes, or is out of date, is a failure. Two
more tests look at the ledger as a whole and at the number of items.

pytest loads this module in every run, so nothing is imported here that is not needed to say what the options are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .bench import Bench

_BENCHES: pytest.StashKey[dict[Wanted, Bench]] = pytest.StashKey()


@dataclass(frozen=True)
class Wanted:
    """What a vendor wants to be tested; see `conformance_tests`."""

    device: str
    level: str
    tier: str
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    suites: tuple[str, ...]
    ledger: Path | None
    isolate: bool


def conformance_tests(
    device: str,
    *,
    level: str = "",
    tier: str = "default",
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    suites: Sequence[str] = ("ops",),
    ledger: str | Path | None = None,
    isolate: bool = True,
) -> Callable[..., None]:
    """A test function for a test file: `test_acme = conformance_tests("acme:0", level="L1")`.

    Args:
        device: what users would name; --xinheng-device overrides it.
        level: what this level asks for, or --xinheng-level; without one, all items.
        tier: "default", "full" or "exhaustive".
        ops, dtypes: only these.
        suites: names of conformance suites.
        ledger: file of expectations, seen from the folder of the test file, or --xinheng-ledger; by default the file
            `expectations.toml` in the package of the plugin, if there is one.
        isolate: run items in worker processes; False lets a debugger in.
    """
    path = Path(ledger) if ledger is not None else None

    def test(xinheng_item: str, xinheng_bench: Bench, record_property: Callable[[str, object], None]) -> None:
        outcome = xinheng_bench.judge(xinheng_item)
        if outcome is not None:
            record_property("kernel", outcome.kernel)
            record_property("worst", outcome.worst)

    chosen = Wanted(device, level, tier, tuple(ops), tuple(dtypes), tuple(suites), path, isolate)
    test.wanted = chosen  # type: ignore[attr-defined]
    return test


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("xinheng", "tests that are made by xinheng.conformance.pytest_plugin.conformance_tests")
    group.addoption("--xinheng-device", metavar="SPEC", help="run them on this device instead of their own")
    group.addoption("--xinheng-level", metavar="LEVEL", help="run what this level asks for, L0 to L4")
    group.addoption("--xinheng-ledger", metavar="FILE", help="the file of expected failures")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = getattr(metafunc.function, "wanted", None)
    if isinstance(wanted, Wanted):
        ids = _bench(wanted, metafunc.config, metafunc.definition.path).ids
        metafunc.parametrize("xinheng_item", ids, ids=ids)


@pytest.fixture
def xinheng_bench(request: pytest.FixtureRequest) -> Bench:
    return _bench(request.function.wanted, request.config, request.path)


def _bench(wanted: Wanted, config: pytest.Config, file: Path) -> Bench:
    """The bench of a test function; it is kept to the end of the session."""
    from .bench import Bench

    chosen = _chosen(wanted, config, file)
    benches = config.stash.setdefault(_BENCHES, {})
    if chosen not in benches:
        benches[chosen] = Bench(chosen)
        config.add_cleanup(benches[chosen].close)
    return benches[chosen]


def _chosen(wanted: Wanted, config: pytest.Config, file: Path) -> Wanted:
    """What is wanted, after the options of the command line."""
    device, level, ledger = (config.getoption(f"--xinheng-{name}") for name in ("device", "level", "ledger"))
    if ledger is not None:
        path = config.invocation_params.dir / ledger
    else:
        path = file.parent / wanted.ledger if wanted.ledger is not None else None
    wanted = replace(wanted, device=device or wanted.device, ledger=path)
    return replace(wanted, level=level, ops=()) if level is not None else wanted
