"""`xinheng conformance list`: the items of suites, to be filtered as a run would be."""

from __future__ import annotations

from typing import Annotated

import typer

from ...options import Assignments, Json, settings
from .planning import Dtypes, Level, Ops, Options, Suites, TierName, planned


def list_items(
    level: Level = "",
    tier: TierName = "default",
    suite: Suites = "ops",
    op: Ops = "",
    dtype: Dtypes = "",
    option: Options = None,
    count: Annotated[bool, typer.Option("--count", help="Only tell how many there are of each op and dtype.")] = False,
    set: Assignments = None,
    json: Json = False,
) -> None:
    """List what a run with these options would run."""
    from collections import Counter

    from ...output import print_json, print_table

    runtime, _ = settings(set)
    plan = planned(runtime, level=level, tier=tier, suite=suite, op=op, dtype=dtype, option=option)
    items = [place.item for place in plan.places(plan.load())]
    if count:
        rows = [(*cell, n) for cell, n in Counter((item.op, item.dtype) for item in items).items()]
        if json:
            print_json([dict(zip(("op", "dtype", "items"), row, strict=True)) for row in rows])
        else:
            print_table(("op", "dtype", "items"), [*rows, ("all", "", len(items))])
    elif json:
        print_json([{"id": item.id, "op": item.op, "dtype": item.dtype} for item in items])
    else:
        print("\n".join(item.id for item in items))
