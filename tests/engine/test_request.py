"""Sampling parameters, the seed of a sequence, and when a sequence ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from xinheng.core.errors import RequestError
from xinheng.engine.request import Request, RequestOutput, SamplingParams, Sequence, TokenOutput


def sequence(max_tokens: int = 100, stop_ids: frozenset[int] = frozenset(), **params: Any) -> Sequence:
    return Sequence(Request("r", (1, 2, 3), SamplingParams.parse(**params), stop_ids), max_tokens)


def ended(run: Sequence) -> str | None:
    return run.finish_reason


def test_defaults_sample_without_filters_and_fill_the_context() -> None:
    params = SamplingParams.parse()
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p, params.min_p) == (None, 1.0, 0, 1.0, 0.0)
    assert (params.seed, params.stop, params.stop_token_ids, params.ignore_eos, params.min_tokens) == (
        None,
        (),
        (),
        False,
        0,
    )


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("temperature", 0, 0.0),
        ("temperature", 2, 2.0),
        ("top_k", -1, 0),
        ("top_k", 40, 40),
        ("top_p", 1, 1.0),
        ("min_p", 0.999, 0.999),
        ("seed", -(2**63), -(2**63)),
        ("seed", 2**63 - 1, 2**63 - 1),
        ("stop", "END", ("END",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", None, ()),
        ("stop_token_ids", [7, 8], (7, 8)),
        ("stop_token_ids", None, ()),
        ("max_tokens", 10**9, 10**9),
    ],
)
def test_accepted_values(field: str, value: Any, kept: Any) -> None:
    assert getattr(SamplingParams.parse(**{field: value}), field) == kept


@pytest.mark.parametrize(
    ("field", "value", "bound"),
    [
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", 1.5, "integer"),
        ("max_tokens", True, "integer"),
        ("min_tokens", -1, "at least 0"),
        ("temperature", -0.1, "at least 0"),
        ("temperature", float("nan"), "finite"),
        ("temperature", float("inf"), "finite"),
        ("temperature", "hot", "number"),
        ("top_k", -2, "-1 for off"),
        ("top_p", 0, "above 0"),
        ("top_p", 1.01, "at most 1"),
        ("min_p", 1, "below 1"),
        ("seed", 2**63, "64 bits"),
        ("stop", "", "none of them empty"),
        ("stop", ["x"] * 17, "at most 16"),
        ("stop", 5, "string"),
        ("stop_token_ids", [-1], "at least 0"),
        ("stop_token_ids", ["a"], "at least 0"),
        ("ignore_eos", "yes", "true or false"),
    ],
)
def test_refused_values_are_named_with_their_range(field: str, value: Any, bound: str) -> None:
    with pytest.raises(RequestError) as error:
        SamplingParams.parse(**{field: value})
    message = str(error.value)
    assert message.startswith(f"{field} is ") and bound in message
    shown = value[0] if isinstance(value, list) else value
    assert repr(shown) in message


def test_unknown_and_contradictory_fields() -> None:
    with pytest.raises(RequestError, match=r"unknown sampling parameter 'temprature', did you mean 'temperature'\?"):
        SamplingParams.parse(temprature=1)
    with pytest.raises(RequestError, match="min_tokens is 5, it must not be above max_tokens, 4"):
        SamplingParams.parse(min_tokens=5, max_tokens=4)
    with pytest.raises(RequestError, match=r"top_p is 2.*; .*min_p is 2"):
        SamplingParams.parse(top_p=2, min_p=2)
    with pytest.raises(ValidationError):
        SamplingParams.parse().__setattr__("temperature", 0.0)


def test_long_values_are_shortened_in_messages() -> None:
    with pytest.raises(RequestError) as error:
        SamplingParams.parse(temperature="x" * 10_000)
    assert len(str(error.value)) < 250


def test_choices_get_distinct_repeatable_seeds() -> None:
    params = SamplingParams.parse(seed=2**63 - 1)
    assert [params.for_choice(i).seed for i in range(3)] == [2**63 - 1, -(2**63), -(2**63) + 1]
    assert SamplingParams.parse().for_choice(2).seed is None


@given(seed=st.integers(-(2**63), 2**63 - 1))
def test_seed_words_hold_all_64_bits(seed: int) -> None:
    low, high = sequence(seed=seed).seed
    assert 0 <= low < 2**32 and 0 <= high < 2**32
    assert (high << 32 | low) == seed % 2**64


def test_unseeded_sequences_differ() -> None:
    assert len({sequence().seed for _ in range(20)}) == 20


def test_length_ends_a_sequence_at_its_own_limit() -> None:
    run = sequence(max_tokens=2)
    run.append(9)
    assert run.finish_reason is None and run.output_ids == (9,)
    run.append(8)
    assert run.finish_reason == "length" and run.stop_reason is None and run.num_outputs == 2


def test_end_token_of_the_model_has_no_stop_reason_and_a_requested_one_has_its_id() -> None:
    run = sequence(stop_ids=frozenset({7}), stop_token_ids=(5,))
    run.append(7)
    assert (run.finish_reason, run.stop_reason) == ("stop", None)
    run = sequence(stop_ids=frozenset({7}), stop_token_ids=(5,))
    run.append(5)
    assert (run.finish_reason, run.stop_reason) == ("stop", 5)


def test_ignore_eos_leaves_requested_stop_ids() -> None:
    run = sequence(stop_ids=frozenset({7, 8}), ignore_eos=True, stop_token_ids=(8,))
    run.append(7)
    assert ended(run) is None
    run.append(8)
    assert ended(run) == "stop" and run.stop_reason == 8


def test_min_tokens_come_before_a_stop_token() -> None:
    run = sequence(stop_ids=frozenset({7}), min_tokens=2)
    for _ in range(2):
        run.append(7)
        assert run.finish_reason is None
    run.append(7)
    assert run.finish_reason == "stop"


def test_stop_wins_over_length() -> None:
    run = sequence(max_tokens=1, stop_ids=frozenset({7}))
    run.append(7)
    assert run.finish_reason == "stop"


def test_clamp_is_recorded() -> None:
    assert not sequence(max_tokens=6).clamped
    clamped = Sequence(Request("r", (1,), SamplingParams.parse(max_tokens=7)), 6)
    assert clamped.clamped
    assert not Sequence(Request("r", (1,), SamplingParams.parse(max_tokens=6)), 6).clamped


def test_outputs_say_whether_they_are_the_last() -> None:
    assert not TokenOutput("r", (1,)).finished
    assert TokenOutput("r", (), "abort").finished
    run = sequence(max_tokens=1)
    assert not RequestOutput.of(run, "").finished
    run.append(4)
    output = RequestOutput.of(run, "four")
    assert output.finished and output.token_ids == (4,) and output.prompt == (1, 2, 3) and output.text == "four"
