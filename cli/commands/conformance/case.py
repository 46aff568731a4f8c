"""`xinheng conformance case`: run one item again and look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...options import Assignments, Json, settings
from .planning import Options

if TYPE_CHECKING:
    from xinheng.conformance.running.replay import Replay
    from xinheng.core.suite import Outcome


def case(
    id: Annotated[str, typer.Argument(help="The id of an item, as reports have it.")],
    device: Annotated[str, typer.Option(help="name[:ordinals or word][@runtime]; see 'xinheng devices'.")],
    repeat: Annotated[int, typer.Option(min=1, help="Run it so many times, and stop where it fails.")] = 1,
    option: Options = None,
    set: Assignments = None,
    json: Json = False,
) -> int:
    """Run one item in this process; the exit status is 0 if it passes."""
    from xinheng.conformance.running.census import suite_of
    from xinheng.conformance.running.replay import Replay, replay
    from xinheng.core.hal import DeviceOptions
    from xinheng.core.plugins import PluginManager
    from xinheng.core.suite import Verdict

    from .planning import planned

    runtime, _ = settings(set, device)
    name = suite_of(id)
    plan = planned(runtime, suite=name, option=option)
    options = DeviceOptions(runtime.threads, runtime.cache_dir, plan.numerics, graph=runtime.graph)
    opened = PluginManager(disabled=runtime.plugins_disabled).open(runtime.device, options)
    try:
        suites = plan.load()
        while True:
            made = replay(id, opened, plan.numerics) if name == "ops" else Replay(suites[0].run(id, opened), (), {})
            repeat -= 1
            if made.outcome.verdict is not Verdict.PASS or not repeat:
                break
    finally:
        opened.close()
    _print(made, json)
    return 0 if made.outcome.verdict is Verdict.PASS else 1


def _print(made: Replay, json: bool) -> None:
    from ...output import print_json, print_table

    if json:
        from dataclasses import asdict

        data = asdict(made) | {"outcome": made.outcome.model_dump(mode="json")}
        print_json(data)
        return
    print(made.outcome.id)
    if made.operands:
        print_table(("operand", ""), made.operands)
    for name, elements in made.results.items():
        print(f"\n{name}, furthest from what is expected:")
        rows = [
            (
                str(list(e.index)),
                f"{e.got:.9g}",
                f"{e.expected:.9g}",
                f"{e.low:.9g}",
                f"{e.high:.9g}",
                _mark(e.admitted),
            )
            for e in elements
        ]
        print_table(("at", "got", "expected", "at least", "at most", ""), rows)
    print()
    print_table(("", ""), _facts(made.outcome))


def _mark(admitted: bool) -> str:
    return "" if admitted else "wrong"


def _facts(outcome: Outcome) -> list[tuple[str, str]]:
    worst = "" if outcome.worst is None else f"{outcome.worst:.3g} of the bound, {outcome.useless:.0%} of it useless"
    facts = {
        "verdict": f"{outcome.verdict.value} {outcome.defect}".strip(),
        "message": outcome.message,
        "kernel": outcome.kernel,
        "program": outcome.program,
        "worst error": worst,
        "determinism": ", ".join(outcome.determinism),
        "seconds": f"{outcome.seconds:.3g}",
        **{name: f"{value:.6g}" for name, value in outcome.measures.items()},
    }
    return [(name, text) for name, text in facts.items() if text]
