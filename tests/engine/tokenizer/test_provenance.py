"""Text with origin: every operation gives the characters `str` gives, and never takes a user's for the template's.

Upper-case letters are the template's here and lower-case ones the user's, so a character shows its true origin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinheng.engine.tokenizer.provenance import Absent, Traced, concat, runs, written

FAST = settings(deadline=None, max_examples=60)
TEMPLATE, USER = "AB \n", "ab\t\n"


def traced(parts: list[tuple[bool, str]]) -> Traced:
    return concat(written(text) if ours else Traced(text) for ours, text in parts)


def part(ours: bool) -> st.SearchStrategy[tuple[bool, str]]:
    return st.tuples(st.just(ours), st.text(TEMPLATE if ours else USER, max_size=4))


TEXTS = st.lists(st.one_of(part(True), part(False)), max_size=6).map(traced)
CHARS = st.text("ABab \t\n", min_size=1, max_size=2)
COUNT = st.integers(-1, 3)


def flags(text: str) -> list[tuple[str, bool]]:
    return [(character, special) for run, special in runs(text) for character in run]


def origins(text: str) -> list[tuple[str, bool]]:
    """The origin of each letter; white space is left out, as both sides write it."""
    return [(character, special) for character, special in flags(text) if character.isalpha()]


def check(result: Any, plain: Any) -> None:
    if isinstance(plain, str):
        assert str.__str__(result) == plain
        assert all(special == character.isupper() for character, special in origins(result))
    else:
        assert len(result) == len(plain)
        for one, other in zip(result, plain, strict=True):
            check(one, other)


UNARY: list[Callable[[Any], Any]] = [
    lambda text: text.strip(),
    lambda text: text.lstrip(),
    lambda text: text.rstrip(),
    lambda text: text.splitlines(),
    lambda text: text.splitlines(True),
    lambda text: text[::-1],
    lambda text: text[::2],
    lambda text: text[-3:-1],
    lambda text: text[4:1],
    lambda text: list(text),
    lambda text: text * 2,
    lambda text: 2 * text,
    lambda text: text + text[:2],
    lambda text: "" + text,
    lambda text: text.split(),
    lambda text: text.rsplit(),
]


@pytest.mark.parametrize("operation", range(len(UNARY)))
@FAST
@given(text=TEXTS)
def test_unary(operation: int, text: Traced) -> None:
    check(UNARY[operation](text), UNARY[operation](str.__str__(text)))


BINARY: list[Callable[[Any, str, int], Any]] = [
    lambda text, chars, count: text.strip(chars),
    lambda text, chars, count: text.split(chars, count),
    lambda text, chars, count: text.rsplit(chars, count),
    lambda text, chars, count: text.split(None, count),
    lambda text, chars, count: text.rsplit(None, count),
    lambda text, chars, count: text.partition(chars),
    lambda text, chars, count: text.rpartition(chars),
    lambda text, chars, count: text.removeprefix(chars),
    lambda text, chars, count: text.removesuffix(chars),
    lambda text, chars, count: text.replace(chars, "", count),
    lambda text, chars, count: text[count:],
    lambda text, chars, count: text.join([text[:1], text[1:2], text[2:]]),
]


@pytest.mark.parametrize("operation", range(len(BINARY)))
@FAST
@given(text=TEXTS, chars=CHARS, count=COUNT)
def test_binary(operation: int, text: Traced, chars: str, count: int) -> None:
    check(BINARY[operation](text, chars, count), BINARY[operation](str.__str__(text), chars, count))


def test_a_part_is_not_looked_for_in_the_separator() -> None:
    text = concat((written("x</think>"), Traced("think")))
    head, tail = text.split("</think>")
    assert (list(runs(head)), list(runs(tail))) == ([("x", True)], [("think", False)])


def test_replacement_keeps_its_own_origin() -> None:
    text = concat((written("A-"), Traced("-a")))
    assert flags(text.replace("-", written("+"))) == [("A", True), ("+", True), ("+", True), ("a", False)]
    assert flags(text.replace("-", "+")) == [("A", True), ("+", False), ("+", False), ("a", False)]


def test_case_keeps_origin_only_if_lengths_agree() -> None:
    assert list(runs(written("abc").upper())) == [("ABC", True)]
    assert list(runs(written("straße").upper())) == [("STRASSE", False)]


@pytest.mark.parametrize(
    "operation",
    [
        lambda text: text.center(9, "*"),
        lambda text: (text + "{}").format(1),
        lambda text: "{}.".format(text),  # noqa: UP032 - what a template may do
        lambda text: "%s." % text,  # noqa: UP031
        lambda text: text.translate({}),
        lambda text: "".join([text]),
        lambda text: text.expandtabs(),
        lambda text: text.encode().decode(),
    ],
)
def test_everything_else_loses_the_mark_and_never_gains_one(operation: Callable[[Any], str]) -> None:
    assert not any(special for _, special in runs(operation(written("AB"))))


def test_str_and_print_keep_it() -> None:
    text = written("AB")
    assert str(text) is text
    assert list(runs(concat((text, 7, None)))) == [("AB", True), ("7None", False)]
    assert list(runs("plain")) == [("plain", False)]


def test_absent_is_none_and_empty() -> None:
    absent = Absent()
    assert absent == None and absent == "" and not absent  # noqa: E711 - what a template writes
    assert absent != "x" and "x" not in absent
    assert absent + "x" == "x"
    assert hash(absent) == hash("")
