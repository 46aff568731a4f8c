"""`xinheng explain`: which kernel runs each op of a model, why others were refused, and what each costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Assignments, DeviceName, DtypeName, Json, settings

if TYPE_CHECKING:
    from xinheng.core.receipt import Receipt
    from xinheng.engine.timing import TimedPhase


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
    from xinheng.core.hal import Numerics, chrome_trace
    from xinheng.engine.hub import Store, resolve
    from xinheng.engine.loading import open_devices
    from xinheng.engine.models import open_model
    from xinheng.engine.runner import cache_shape, coding_of, size_bounds

    runtime, engine = settings(set, device, dtype)
    path = resolve(model, Store(runtime.cache_dir))
    if time or trace is not None:
        from xinheng.engine.timing import timed_run

        timed = timed_run(path, runtime, engine, prompt, tokens)
        if trace is not None:
            profiles = {name: phase.profile for name, phase in timed.phases.items()}
            trace.write_text(chrome_trace(profiles), encoding="utf-8")
        _print(timed.receipt, timed.phases, json)
        return
    devices = open_devices(runtime)
    opened = open_model(path)
    program = opened.build(*coding_of(devices.main, runtime, engine, opened.config))
    bounds = size_bounds(program.groups, engine, *cache_shape(devices.main, engine, opened.config.max_position))
    numerics = Numerics(runtime.numerics, runtime.overrides)
    executable = compile(program.graph, devices.main, bounds=bounds, fallback=devices.fallback, numerics=numerics)
    if graph:
        print(executable.graph)
        return
    _print(executable.receipt, {}, json)


def _reasons(refused: tuple[tuple[str, str], ...]) -> str:
    return "; ".join(f"{kernel}: {reason}" for kernel, reason in refused)


def _print(receipt: Receipt, phases: dict[str, TimedPhase], json: bool) -> None:
    from ..output import print_json, print_table, size_text

    if json:
        data: dict[str, Any] = receipt.to_json() | {"summary": receipt.summary()}
        data["times"] = {name: _rows(phase) for name, phase in phases.items()}
        data["phases"] = {
            name: {"steps": p.steps, "seconds": p.seconds, "kernel_seconds": p.profile.seconds}
            for name, p in phases.items()
        }
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
    for name, phase in phases.items():
        _print_phase(name, phase)


def _rows(phase: TimedPhase) -> list[dict[str, Any]]:
    """The kernels of a phase for machines; rates are those of all calls of an op."""
    made = []
    for op, kernel, calls, seconds in phase.profile.by_kernel():
        done, moved = phase.rates(op)
        rates = {"operations_per_s": done, "bytes_per_s": moved}
        made.append({"op": op, "kernel": kernel, "calls": calls, "seconds": seconds, **rates})
    return made


def _print_phase(name: str, phase: TimedPhase) -> None:
    from ..output import print_table

    if not phase.steps:
        return
    steps, total = phase.steps, phase.profile.seconds
    told = f"{steps} step{'s' if steps > 1 else ''} of {phase.seconds / steps * 1e3:.2f} ms"
    print(f"\n{name}: {told}, of which {total / steps * 1e3:.2f} ms in kernels; per step:")
    rows = []
    for row in _rows(phase):
        rates = (row["operations_per_s"] / 1e9, row["bytes_per_s"] / 1e9) if phase.costs else ()
        spent = row["seconds"]
        calls = f"{row['calls'] / steps:g}"
        rows.append((row["op"], row["kernel"], calls, spent / steps * 1e6, 100 * spent / total, *rates))
    print_table(("op", "kernel", "calls", "us", "%", *(("Gop/s", "GB/s") if phase.costs else ())), rows)
