"""Text that remembers which of its characters a chat template wrote itself.

Everything else (content, roles, tool descriptions, whatever a Python or Jinja function returns as a plain `str`) counts
as the user's. So a lost mark makes template text ordinary, and never makes a user's text special.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

Span = tuple[int, int]


class Traced(str):
    """A string with the spans of its characters that come from the template: sorted, disjoint, not touching.

    Methods that only select or join characters keep the spans. All others are those of `str`, whose results carry none.
    """

    __slots__ = ("_spans",)
    _spans: tuple[Span, ...]

    def __new__(cls, text: object = "", spans: Iterable[Span] = ()) -> Traced:
        self = super().__new__(cls, text)
        self._spans = tuple(spans)
        return self

    def __str__(self) -> str:
        return self  # `str(x)`, which Jinja and its filters call freely, keeps the spans.

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        if not isinstance(key, slice):
            index = range(len(self))[key]
            return _cut(self, index, index + 1)
        begin, end, step = key.indices(len(self))
        if step == 1:
            return _cut(self, begin, max(begin, end))
        return concat(_cut(self, index, index + 1) for index in range(begin, end, step))

    def __iter__(self) -> Iterator[str]:
        return (_cut(self, index, index + 1) for index in range(len(self)))

    def __add__(self, other: str, /) -> Traced:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str, /) -> Traced:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex, /) -> Traced:
        return concat([self] * count.__index__())

    def __rmul__(self, count: SupportsIndex, /) -> Traced:
        return self * count

    def join(self, parts: Iterable[str], /) -> Traced:
        joined: list[str] = []
        for part in parts:
            joined += (self, part) if joined else (part,)
        return concat(joined)

    def lstrip(self, chars: str | None = None, /) -> Traced:
        return _cut(self, len(self) - len(super().lstrip(chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> Traced:
        return _cut(self, 0, len(super().rstrip(chars)))

    def strip(self, chars: str | None = None, /) -> Traced:
        return self.rstrip(chars).lstrip(chars)

    def removeprefix(self, prefix: str, /) -> Traced:
        return _cut(self, len(prefix), len(self)) if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> Traced:
        return _cut(self, 0, len(self) - len(suffix)) if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        parts = super().split(sep, maxsplit)
        return _words(self, parts) if sep is None else _spaced(self, parts, len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        parts = super().rsplit(sep, maxsplit)
        return _last_words(self, parts) if sep is None else _spaced(self, parts, len(sep))

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = _spaced(self, super().splitlines(keepends=True), 0)
        return lines if keepends else [line[: len(str.splitlines(line)[0])] for line in lines]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        head, middle, _ = super().partition(sep)
        return _three(self, len(head), len(head) + len(middle))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        head, middle, _ = super().rpartition(sep)
        return _three(self, len(head), len(head) + len(middle))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Traced:
        if not old:
            return Traced(super().replace(old, new, count))
        parts = self.split(old, count)
        return (new if isinstance(new, Traced) else Traced(new)).join(parts)

    def lower(self) -> Traced:
        return _same_length(self, super().lower())

    def upper(self) -> Traced:
        return _same_length(self, super().upper())

    def capitalize(self) -> Traced:
        return _same_length(self, super().capitalize())

    def title(self) -> Traced:
        return _same_length(self, super().title())


class Absent(Traced):
    """The content of a message that has none: prints and joins as nothing, yet `is none` for a template that asks."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is None or super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()


def written(text: str) -> Traced:
    """`text` as the template's own, all of it."""
    return Traced(text, [(0, len(text))] if text else ())


def concat(parts: Iterable[Any]) -> Traced:
    """All parts joined, each keeping its spans; anything but a string is printed first and is not the template's."""
    texts: list[str] = []
    spans: list[Span] = []
    position = 0
    for part in parts:
        text = part if isinstance(part, str) else str(part)
        for begin, end in text._spans if isinstance(text, Traced) else ():
            if spans and spans[-1][1] == position + begin:
                spans[-1] = (spans[-1][0], position + end)
            else:
                spans.append((position + begin, position + end))
        texts.append(text)
        position += len(text)
    return Traced("".join(texts), spans)


def runs(text: str) -> Iterator[tuple[str, bool]]:
    """The stretches of `text` in order, each with whether the template wrote it; none is empty."""
    plain, position = str.__str__(text), 0
    for begin, end in text._spans if isinstance(text, Traced) else ():
        if begin > position:
            yield plain[position:begin], False
        yield plain[begin:end], True
        position = end
    if position < len(plain):
        yield plain[position:], False


def _cut(text: Traced, begin: int, end: int) -> Traced:
    spans = ((max(a, begin) - begin, min(b, end) - begin) for a, b in text._spans if a < end and b > begin)
    return Traced(str.__getitem__(text, slice(begin, end)), spans)


def _spaced(text: Traced, parts: list[str], gap: int) -> list[str]:
    """Parts that follow each other in `text`, `gap` characters apart."""
    located: list[str] = []
    position = 0
    for part in parts:
        located.append(_cut(text, position, position + len(part)))
        position += len(part) + gap
    return located


def _words(text: Traced, parts: list[str]) -> list[str]:
    """Parts of `text` that each begin at the next character that is not white space."""
    located: list[str] = []
    position = 0
    for part in parts:
        while str.__getitem__(text, position).isspace():
            position += 1
        located.append(_cut(text, position, position + len(part)))
        position += len(part)
    return located


def _last_words(text: Traced, parts: list[str]) -> list[str]:
    """Parts of `text` that each end at the last character before the one after it that is not white space."""
    located: list[str] = []
    position = len(text)
    for part in reversed(parts):
        while str.__getitem__(text, position - 1).isspace():
            position -= 1
        located.append(_cut(text, position - len(part), position))
        position -= len(part)
    return located[::-1]


def _three(text: Traced, begin: int, end: int) -> tuple[str, str, str]:
    return _cut(text, 0, begin), _cut(text, begin, end), _cut(text, end, len(text))


def _same_length(text: Traced, changed: str) -> Traced:
    return Traced(changed, text._spans if len(changed) == len(text) else ())
