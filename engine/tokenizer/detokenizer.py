"""Turns token ids into text as they arrive: whole characters only, nothing that may yet become a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from .stop_matcher import StopMatcher
from .tokenizer import Tokenizer


class Detokenizer:
    """The text of one growing sequence of tokens. Not to be shared between threads.

    The pieces from `push` and `finish`, joined, are `tokenizer.decode` of all ids up to the first stop string, cut
    where it may. `prompt_ids` are the tokens before: after text, a leading space of the first token belongs to the
    answer; at the start and after a control token it is the one that encoding would have put there, and is dropped.
    `stop`: strings that end the text, dropped with all that follows unless `include_stop`. Raises RequestError for an
    empty one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        *,
        stop: Sequence[str] = (),
        skip_special: bool = True,
        include_stop: bool = False,
    ) -> None:
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matcher = StopMatcher(stops, include=include_stop) if stops else None
        at_start = not prompt_ids or tokenizer.is_control(prompt_ids[-1])
        self._drop_space = tokenizer.leading_space and at_start
        self._parts: list[str] = []

    @property
    def stopped(self) -> str | None:
        """The stop string that has been met, if any."""
        return self._matcher.matched if self._matcher is not None else None

    @property
    def text(self) -> str:
        """Everything given out so far."""
        if len(self._parts) > 1:
            self._parts[:] = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def push(self, ids: Sequence[int]) -> str:
        """The text that became certain through `ids`, maybe empty; empty for ever once a stop string has been met."""
        if self.stopped is not None:
            return ""
        skip = self._skip_special
        data = b"".join(self._tokenizer.token_bytes(index, skip_special=skip) for index in ids)
        return self._give(self._decoder.decode(data))

    def finish(self) -> str:
        """The text still held back, with one U+FFFD for a character that was never completed. Ends the sequence."""
        if self.stopped is not None:
            return ""
        rest = self._give(self._decoder.decode(b"", final=True))
        if self._matcher is None or self._matcher.matched is not None:
            return rest
        held = self._matcher.flush()
        self._parts.append(held)
        return rest + held

    def _give(self, text: str) -> str:
        if self._drop_space and text:
            self._drop_space = False
            text = text.removeprefix(" ")
        if self._matcher is not None:
            text = self._matcher.push(text)
        if text:
            self._parts.append(text)
        return text
