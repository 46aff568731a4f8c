"""`xinheng conformance selftest`: what the suite itself is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...options import Json

if TYPE_CHECKING:
    from xinheng.conformance.selftests.selftest import SelfTest


def selftest(
    seeds: Annotated[int, typer.Option(min=0, help="How often operands of correct kernels are drawn.")] = 1000,
    op: Annotated[str, typer.Option("--op", metavar="OP,...", help="Only these ops.")] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default, one per processor.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Keep the figures, which reports then show.")] = False,
    json: Json = False,
) -> int:
    """Count how many wrong kernels the suite rejects, and how many correct ones; 1 if too few or any."""
    from xinheng.conformance.selftests.figures import keep
    from xinheng.conformance.selftests.selftest import selftest as examined

    from ...output import print_json, progress_bars

    with progress_bars(json) as bars:
        done = examined(
            seeds,
            [name.strip() for name in op.split(",")] if op else None,
            processes=workers,
            progress=bars and (lambda n, of: bars("self-test", n, of)),
        )
    if update:
        keep(done.model_dump(mode="json"))
    if json:
        print_json(done.model_dump(mode="json"))
    else:
        _show(done)
    return 0 if done.ok else 1


def _show(done: SelfTest) -> None:
    from ...output import print_table

    kinds = (("written by hand", done.seeded), ("made from graphs", done.automatic))
    rows = [(name, k.total, k.killed, f"{k.rate:.2%}", k.equivalent) for name, k in kinds]
    print_table(("wrong kernels", "all", "rejected", "rate", "no bugs"), rows)
    for id in (*done.seeded.survivors, *done.automatic.survivors):
        print(f"not rejected: {id}")
    for id in done.automatic.stale:
        print(f"explained, but rejected or gone: {id}")
    heard = [(a.op_class, a.dtype, a.seeds, a.runs, len(a.rejected)) for a in done.alarms]
    print()
    print_table(("correct kernels", "dtype", "seeds", "runs", "rejected"), heard)
    for rejected in (id for a in done.alarms for id in a.rejected):
        print(f"rejected: {rejected}")
    print()
    seen = [(s.op_class, s.dtype, s.fault, "none" if s.least is None else f"{s.least:g}", s.op) for s in done.strengths]
    print_table(("smallest faults seen", "dtype", "fault", "size", "of op"), seen)
    print(f"\n{done.cases:,} cases, {done.suite}, {done.seconds:.0f} s")
