"""Finds stop strings in a stream of text, giving out what can no longer belong to one (Aho and Corasick, 1975)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from xinheng.core.errors import RequestError


class StopMatcher:
    """Passes text through until one of `stops` is complete; of those complete at one character the longest wins.

    Holds back exactly the longest end of the text that begins a stop. One step per character, however many stops.
    Raises RequestError for an empty stop string.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if not all(stops):
            raise RequestError("a stop string is empty; leave it out or send at least one character")
        self.matched: str | None = None
        self._include = include
        self._held = ""
        self._state = 0
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._stop: list[str | None] = [None]
        self._fail = [0]
        for stop in stops:
            self._add(stop)
        self._link()

    def push(self, text: str) -> str:
        """The text that is safe to give out after `text` arrived; nothing once a stop has matched."""
        if self.matched is not None:
            return ""
        text = self._held + text
        for position in range(len(self._held), len(text)):
            self._state = self._step(self._state, text[position])
            stop = self._stop[self._state]
            if stop is not None:
                self.matched, self._held = stop, ""
                end = position + 1
                return text[: end if self._include else end - len(stop)]
        safe = len(text) - self._depth[self._state]
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """The text still held back, at the end of the stream."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._stop.append(None)
                self._fail.append(0)
            state = following
        self._stop[state] = stop

    def _link(self) -> None:
        """Point each state to its longest proper end that is also the beginning of a stop."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self._next[state].items():
                fail = self._step(self._fail[state], character)
                self._fail[following] = fail
                self._stop[following] = self._stop[following] or self._stop[fail]
                queue.append(following)

    def _step(self, state: int, character: str) -> int:
        while character not in self._next[state]:
            if state == 0:
                return 0
            state = self._fail[state]
        return self._next[state][character]
