"""Chat messages on their way into a template: checked, made uniform, and marked as the user's text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from xinheng.core.errors import RequestError

from .provenance import Absent, Traced


def as_users(value: Any) -> Any:
    """A copy of nested data whose strings are `Traced` text that the template did not write."""
    if isinstance(value, str):
        return Traced(value)
    if isinstance(value, Mapping):
        return {str(key): as_users(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_users(item) for item in value]
    return value


def prepare_messages(
    messages: Sequence[Mapping[str, Any]], *, parts: bool, arguments: str | None
) -> list[dict[str, Any]]:
    """The messages as a template expects them.

    `content` may be a string, None or a list of text parts. `parts` keeps it a list of parts, else parts are joined by
    line feeds. `arguments` is "object" or "text" for templates that take the arguments of tool calls in that form only.
    Fields that are None are left out. Raises RequestError naming the message at fault.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(f"messages must be a list, not {type(messages).__name__}")
    if not messages:
        raise RequestError("messages is empty; send at least one message")
    return [_prepare(index, message, parts, arguments) for index, message in enumerate(messages)]


def _prepare(index: int, message: Any, parts: bool, arguments: str | None) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages[{index}] must be an object with a string field 'role'")
    prepared = {name: value for name, value in message.items() if value is not None}
    calls = prepared.get("tool_calls")
    text = _text(index, prepared.get("content"))
    if calls is not None and not isinstance(calls, list | tuple):
        raise RequestError(f"messages[{index}].tool_calls must be a list")
    if not calls:
        prepared.pop("tool_calls", None)
    elif arguments is not None:
        prepared["tool_calls"] = [_with_arguments(call, arguments) for call in calls]
    prepared = {name: as_users(value) for name, value in prepared.items()}
    if text is None or (calls and not text):
        prepared["content"] = Absent()
    else:
        prepared["content"] = [{"type": "text", "text": Traced(text)}] if parts else Traced(text)
    return prepared


def _text(index: int, content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(f"messages[{index}].content must be a string, null or a list of parts")
    texts: list[str] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                f"messages[{index}].content[{number}] is of type {kind!r}; this model takes parts of type 'text' "
                "with a string field 'text' only"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _with_arguments(call: Any, form: str) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    value = function["arguments"]
    if form == "object" and isinstance(value, str):
        value = _parsed(value)
    elif form == "text" and not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": value}}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError as error:
        raise RequestError(f"the arguments of a tool call are not JSON: {error}") from error
