"""`xinheng run`: one answer, or a conversation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Assignments, DeviceName, DtypeName, Json, settings

if TYPE_CHECKING:
    from xinheng.engine import LLM, Delta, SamplingParams


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
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    if prompt is None and json:
        raise RequestError("--json answers one prompt; give it as an argument or on standard input")
    if raw and system is not None:
        raise RequestError("--system needs a chat template; put it into the prompt yourself when you use --raw")
    runtime, engine = settings(set, device, dtype)
    with progress_bars(quiet=json) as report:
        llm = LLM(model, runtime=runtime, settings=engine, progress=report)
    with llm:
        talk = Talk(llm, params, system, raw)
        if prompt is None:
            talk.converse()
            return
        final = talk.answer(prompt, echo=not json)
        if json:
            from ..output import print_json

            print_json(summary(llm, final))
        elif stats:
            print_stats(llm, final)


class Talk:
    """A conversation with one model."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, raw: bool) -> None:
        self.llm, self.params, self.raw = llm, params, raw
        self._start: list[dict[str, Any]] = [{"role": "system", "content": system}] if system is not None else []
        self.messages = list(self._start)
        if not raw:
            self._need_template()

    def _need_template(self) -> None:
        from xinheng.core.errors import ModelError

        if self.llm.tokenizer.chat_template is None:
            raise ModelError(
                f"{self.llm.path.name} has no chat template, so it cannot hold a conversation; "
                "use --raw to continue a plain text"
            )

    def prompt_ids(self, text: str) -> list[int]:
        """The ids of the next prompt."""
        if self.raw:
            return self.llm.encode(text)
        return self.llm.tokenizer.encode_chat([*self.messages, {"role": "user", "content": text}])

    def answer(self, text: str, echo: bool = True) -> Delta:
        """Answer `text`, printing the answer as it comes; returns the last delta, which has the whole output."""
        last = None
        for last in self.llm.stream(self.prompt_ids(text), self.params):
            if echo:
                print(last.text, end="", flush=True)
        assert last is not None and last.output is not None
        if echo:
            print()
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": last.output.text}]
        return last

    def converse(self) -> None:
        """Read prompts until "/bye" or the end of the input; ^C ends an answer, not the conversation."""
        import readline  # noqa: F401  (gives input() line editing and history)

        print("/bye ends the conversation, /clear starts a new one, /? shows help", file=sys.stderr)
        while True:
            try:
                text = input(">>> ")
            except EOFError:
                return
            except KeyboardInterrupt:
                print("\nuse /bye to leave", file=sys.stderr)
                continue
            match text.strip():
                case "":
                    continue
                case "/bye":
                    return
                case "/clear":
                    self.messages = list(self._start)
                case "/?" | "/help":
                    print("/bye  leave\n/clear  forget the conversation\n/?  this help", file=sys.stderr)
                case _:
                    self._answer_or_explain(text)

    def _answer_or_explain(self, text: str) -> None:
        from xinheng.core.errors import RequestError

        try:
            self.answer(text)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
        except RequestError as error:
            print(f"xinheng: {error}", file=sys.stderr)


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
