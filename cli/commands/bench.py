"""`xinheng bench`: how fast a model is on a device, and how near that is to what the machine gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Assignments, DeviceName, DtypeName, Json, settings

if TYPE_CHECKING:
    from xinheng.engine.bench import BenchResult
    from xinheng.engine.bench.result import Share, Spread


def bench(
    model: Annotated[str, typer.Argument(help="A path, pypi:<package>, or the name of a stored model.")],
    device: DeviceName = None,
    dtype: DtypeName = None,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt whose prefill is timed.")] = 512,
    tokens: Annotated[int, typer.Option(help="Decode steps.")] = 128,
    context: Annotated[int, typer.Option(help="Tokens that each sequence has before its decode steps.")] = 128,
    batch: Annotated[
        str, typer.Option(metavar="N,N,...", help="Sequences that are decoded together, one run each.")
    ] = "1,8,32",
    repeat: Annotated[int, typer.Option(help="Rounds that count; each measures everything once.")] = 5,
    roofline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a plot of every op below the machine's limits, as HTML.")
    ] = None,
    set: Assignments = None,
    json: Json = False,
) -> None:
    """Measure prefill and decode of a model, its memory, and its share of what the machine gives at most."""
    from xinheng.core.errors import RequestError
    from xinheng.engine.bench import BenchPlan, roofline_html
    from xinheng.engine.bench import bench as run

    from ..output import print_json, progress_bars

    plan = BenchPlan(prompt, tokens, context, BenchPlan.parse_batches(batch), repeat)
    runtime, engine = settings(set, device, dtype)
    with progress_bars(quiet=json) as report:
        result, found = run(model, plan, runtime, engine, report)
    if roofline is not None:
        if found is None:
            raise RequestError(f"there is no roofline: {'; '.join(result.notes)}")
        from xinheng.conformance.report.html import stylesheet

        about = result.about
        facts = [about["device_name"], f"{about['threads'] or 'default'} threads", f"numerics {about['numerics']}"]
        page = roofline_html(found, Path(result.model).name, facts, stylesheet())
        roofline.write_text(page, encoding="utf-8")
    if json:
        print_json(result.to_json())
    else:
        _print(result)


def _print(result: BenchResult) -> None:
    from ..output import print_table, size_text

    about, prefill = result.about, result.prefill
    threads = f", {about['threads']} threads" if about["threads"] else ""
    print(f"{about['device']} ({about['device_name']}){threads}, numerics {about['numerics']}, {about['dtype']}\n")
    rows = [(f"prefill {prefill.tokens}", *_rate(prefill.rate), "", *_share(prefill.share))]
    for each in result.decode:
        whole = f"{each.end_to_end.median:,.1f}"
        rows.append((f"decode, batch {each.batch}", *_rate(each.rate), whole, *_share(each.share)))
    print_table(("", "tokens/s", "spread", "end to end", "of the limit", "which is"), rows)
    first, memory = prefill.first_token_seconds, result.memory
    print(f"\ntime to first token {first.median * 1e3:,.1f} ms; loading took {result.load_seconds:.2f} s")
    print(f"memory: {size_text(memory['peak_bytes'])} at most; the model has {size_text(memory['model_bytes'])}")
    if result.limits is not None:
        rates = ", ".join(f"{kind} {rate / 1e9:,.0f} Gop/s" for kind, rate in result.limits["rates"].items())
        print(f"limits: reading {result.limits['bandwidth']['median'] / 1e9:.1f} GB/s; {rates}")
    if result.overhead is not None:
        o = result.overhead
        between = f"between them {o.hal * 1e6:,.0f} ({o.hal_share:.1%}), in the engine {o.engine * 1e6:,.0f}"
        print(f"a decode step: {o.step * 1e6:,.0f} us, of which in kernels {o.kernels * 1e6:,.0f}, {between}")
    calls = result.receipt["python_calls_per_step"]
    told = "" if calls is None else f"; Python calls {calls:g} kernels in a decode step"
    print(f"{result.receipt['summary']}{told}")
    for note in (*result.notes, *result.receipt["notes"]):
        print(f"note: {note}")


def _rate(rate: Spread) -> tuple[str, str]:
    return f"{rate.median:,.1f}", f"{rate.minimum:,.1f} to {rate.maximum:,.1f}"


def _share(share: Share | None) -> tuple[str, str]:
    return ("", "") if share is None else (f"{max(share.bandwidth, share.arithmetic):.0%}", share.limit)
