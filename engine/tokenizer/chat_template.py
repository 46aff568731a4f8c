"""Chat templates: from messages to prompt text in which it is known, character by character, what the template wrote.

A user must not be able to write control tokens (ggml-org/llama.cpp#26273). Marking content by sentinels breaks
templates that trim, compare or cut it, and scanning content for forbidden strings breaks honest text. So strings carry
their origin while the template runs (`provenance`); the template's is only what stands in its source, and the BOS and
EOS tokens. There is no mark in the text, so there is none to forge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError, TemplateNotFound

from xinheng.core.errors import ModelError, RequestError, XinhengError

from .messages import as_users, prepare_messages
from .provenance import runs, written
from .segment import Segment
from .template_environment import TemplateEnvironment

_RESERVED = frozenset({"bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range"})
_PROBE = "0probe0"
_PROBE_ID = "abcdef123"  # Mistral's templates refuse ids of tool calls that have not nine characters.


class ChatTemplate:
    """A compiled chat template in Jinja, in a sandbox.

    Raises ModelError for a template that does not compile. Templates are the model's or the operator's: a sandbox keeps
    them from data and code, not from wasting time in nested loops.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._tokens = {"bos_token": written(bos_token), "eos_token": written(eos_token)}
        try:
            self._template = TemplateEnvironment().from_string(source)
        except TemplateSyntaxError as error:
            raise ModelError(f"the chat template does not compile: line {error.lineno}: {error.message}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[Segment]:
        """The prompt for `messages`, as neighbouring stretches of different origin.

        A message is a mapping with `role` and `content` (a string, None, or a list of `{"type": "text", "text": ...}`)
        and any other field its template knows. `kwargs` reach the template as variables; their text counts as the
        user's. Raises RequestError if the template refuses the messages, ModelError if the template itself is at fault.
        """
        reserved = _RESERVED & kwargs.keys()
        if reserved:
            raise RequestError(f"the chat template variable {min(reserved)!r} cannot be set by a request")
        try:
            prepared = prepare_messages(messages, parts=self._wants_parts, arguments=self._arguments)
            variables = {"tools": as_users(tools) or None, **as_users(kwargs)}
        except RecursionError:
            raise RequestError("messages or tools are nested too deeply") from None
        return self._run(prepared, add_generation_prompt=add_generation_prompt, **variables)

    def _run(self, messages: list[dict[str, Any]], **variables: Any) -> list[Segment]:
        try:
            text = self._template.render(messages=messages, **variables, **self._tokens)
        except (SecurityError, TemplateNotFound) as error:
            raise ModelError(f"the chat template does what the sandbox forbids: {error}") from error
        except TemplateError as error:
            raise RequestError(f"the chat template refuses these messages: {error}") from error
        except RecursionError as error:
            raise ModelError("the chat template calls itself without end") from error
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise RequestError(f"the chat template cannot render these messages: {reason}") from error
        return [Segment(stretch, special) for stretch, special in runs(text)]

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether the template prints content only as a list of parts: it would drop a plain string in silence."""

        def shows(parts: bool) -> bool:
            return _PROBE in self._probe([{"role": "user", "content": _PROBE}], parts=parts)

        return not shows(parts=False) and shows(parts=True)

    @cached_property
    def _arguments(self) -> str | None:
        """The only form, "object" or "text", in which the template prints arguments of tool calls well; None if any."""

        def shown(arguments: Any) -> str:
            call = {"id": _PROBE_ID, "type": "function", "function": {"name": "f", "arguments": arguments}}
            turns: list[dict[str, Any]] = [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ]
            return self._probe(turns, parts=self._wants_parts)

        text = f'"{_PROBE}"' in shown(f'{{"{_PROBE}": 1}}')
        structured = _PROBE in shown({_PROBE: 1})
        if text == structured:
            return None
        return "text" if text else "object"

    def _probe(self, messages: list[dict[str, Any]], *, parts: bool) -> str:
        try:
            prepared = prepare_messages(messages, parts=parts, arguments=None)
            return "".join(segment.text for segment in self._run(prepared, add_generation_prompt=True, tools=None))
        except XinhengError:
            return ""
