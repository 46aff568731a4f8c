"""`xinheng ops`: what graphs can compute."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import Json


def ops(
    name: Annotated[str | None, typer.Argument(help="Show this op; without it all are listed.")] = None,
    json: Json = False,
) -> None:
    """List the op set, or show one op with its formula, its schema and what it decomposes into."""
    import inspect

    from xinheng.core.ops import FAMILIES, OPSET

    from ..output import print_json, print_table

    if name is None:
        rows = [
            (op.name, family, "composite" if op.composite else "primitive", op.tolerance.value, op.doc.split("\n")[0])
            for family, members in FAMILIES.items()
            for op in members
        ]
        if json:
            keys = ("name", "family", "kind", "tolerance", "summary")
            print_json([dict(zip(keys, row, strict=True)) for row in rows])
        else:
            print_table(("op", "family", "kind", "tolerance", "meaning"), rows)
        return
    op = OPSET[name]
    program = inspect.getsource(op._decompose) if op._decompose is not None else None
    meaning = inspect.getsource(op.reference)
    if json:
        print_json(
            {
                "name": op.name,
                "signature": op.signature,
                "tolerance": op.tolerance.value,
                "since": op.since,
                "doc": op.doc,
                "reference": meaning,
                "decomposition": program,
            }
        )
        return
    print(op.signature, f"\n{op.doc}\n", f"tolerance: {op.tolerance.value}; since op set {op.since}", sep="\n")
    print("\nReference (float64):\n", meaning, sep="\n")
    print(f"Decomposition:\n\n{program}" if program else "This op is a primitive.")
