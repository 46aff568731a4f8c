"""`xinheng explain`: which kernel runs each op of a model, why others were refused, and what each costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Assignments, DeviceName, DtypeName, Json, settings

if TYPE_CHECKING:
    from xinheng.core.hal import Profile
    from xinheng.core.receipt import Receipt


def explain(
    model: Annotated[str, typer.Argument(help="A path, pypi:<package>, or the name of a stored model.")],
    device: DeviceName = None,
    dtype: DtypeName = None,
    time: Annotated[bool, typer.Option("--time", help="Run a prompt and some tokens, and time each kernel.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write the timed run as a Chrome trace.")] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Print the graph of one step instead.")] = False,
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens of the timed run.")] = 32,
    tokens: Annotated[int, typer.Option(min=1, help="Generated tokens of the timed run.")] = 16,
    set: Assignments = None,
    json: Json = False,
) -> None:
    """Show the receipt of a model on a device: every op, its kernel, and why better ones were refused."""
    from xinheng.core.compiler import compile
    from xinheng.core.hal import Numerics
    from xinheng.engine.hub import Store, resolve
    from xinheng.engine.loading import open_devices
    from xinheng.engine.models import open_model
    from xinheng.engine.runner import cache_shape, dtypes_of, size_bounds

    runtime, engine = settings(set, device, dtype)
    path = resolve(model, Store(runtime.cache_dir))
    if time or trace is not None:
        from xinheng.engine.timing import timed_run

        receipt, profiles = timed_run(path, runtime, engine, prompt, tokens)
        if trace is not None:
            trace.write_text(profiles["decode"].chrome_trace(), encoding="utf-8")
        _print(receipt, profiles, json)
        return
    devices = open_devices(runtime)
    kind, cache = dtypes_of(devices.main, runtime, engine)
    opened = open_model(path)
    program = opened.build(kind, cache.name)
    bounds = size_bounds(program.groups, engine, *cache_shape(devices.main, engine, opened.config.max_position))
    numerics = Numerics(runtime.numerics, runtime.overrides)
    executable = compile(program.graph, devices.main, bounds=bounds, fallback=devices.fallback, numerics=numerics)
    if graph:
        print(executable.graph)
        return
    _print(executable.receipt, {}, json)


def _reasons(refused: tuple[tuple[str, str], ...]) -> str:
    return "; ".join(f"{kernel}: {reason}" for kernel, reason in refused)


def _print(receipt: Receipt, profiles: dict[str, Profile], json: bool) -> None:
    from ..output import print_json, print_table, size_text

    times = {phase: profile.by_kernel() for phase, profile in profiles.items()}
    if json:
        data: dict[str, Any] = receipt.to_json() | {"summary": receipt.summary()}
        keys = ("op", "kernel", "calls", "seconds")
        data["times"] = {phase: [dict(zip(keys, row, strict=True)) for row in rows] for phase, rows in times.items()}
        print_json(data)
        return
    rows = []
    for line in sorted(receipt.lines, key=lambda item: -item.count):
        device = line.device + (" (moved)" if line.moved else "")
        rows.append((line.op, line.count, line.kernel, device, _reasons(line.refused)))
    for gone in receipt.decomposed:
        rows.append((gone.op, gone.count, "decomposed", "", _reasons(gone.refused) or "no kernel for it"))
    print_table(("op", "count", "kernel", "device", "refused"), rows)
    print(f"\n{receipt.summary()}")
    for crossing in receipt.crossings:
        most = "of no known size" if crossing.nbytes is None else f"at most {size_text(crossing.nbytes)}"
        print(f"{crossing.tensors} tensors cross from {crossing.source} to {crossing.target} in each run, {most}")
    for entry in receipt.layouts:
        count = f"{entry.weights} weight{'' if entry.weights == 1 else 's'}"
        print(f"{count} in {entry.scheme}: {entry.layout}, {size_text(entry.nbytes)}")
    for note in receipt.notes:
        print(f"note: {note}")
    for phase, timed in times.items():
        total = sum(row[3] for row in timed)
        print(f"\n{phase}: {total * 1e3:.1f} ms in kernels")
        shares = [(op, kernel, calls, seconds * 1e3, 100 * seconds / total) for op, kernel, calls, seconds in timed]
        print_table(("op", "kernel", "calls", "ms", "%"), shares)
