"""Attribution names the wrong kernel behind a model that is off, and nobody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.conformance.attribution import Attribution, Investigation, Way, attribute, referred
from xinheng.core.baseline import Baseline, Trust
from xinheng.core.hal import Device, Numerics, ReferenceDevice
from xinheng.core.model_probe import MeasuredModel, ModelProbe, Text, measured_model
from xinheng.core.ops import OPSET

from ..engine import tiny
from .wrong_devices import device_with, eps_outside, low_silu, window_of

TOKENS = 256


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    folder = tmp_path_factory.mktemp("attributed")
    model = measured_model(str(tiny.write_model(folder / "tiny-llama", tiny.LLAMA)))
    return Trust(model, ReferenceDevice(), model.texts(TOKENS), folder / "baselines")


def found(trust: Trust, device: Device, dtype: str = "float32", **overrides: str) -> Attribution:
    return attribute(trust, device, Numerics(overrides=overrides), dtype)


def test_a_right_device_has_nothing_to_explain(trust: Trust) -> None:
    right = found(trust, device_with())
    assert not right.deviates
    assert (right.ops, right.first_layer, right.explained, right.runs) == ((), None, True, 1)
    assert right.tokens == TOKENS


def test_rounding_to_sixteen_bits_is_no_guilt(trust: Trust) -> None:
    right = found(trust, device_with(), "bfloat16")
    assert right.kl > 1e-5
    assert not right.deviates
    wrong = found(trust, device_with(paged_attention=window_of(8)), "bfloat16")
    assert wrong.ops == ("paged_attention", "write_cache")


def test_a_norm_with_eps_outside_the_root(trust: Trust) -> None:
    wrong = found(trust, device_with(rms_norm=eps_outside))
    assert wrong.deviates
    assert wrong.ops == ("rms_norm",)
    assert wrong.explained
    (guilt,) = wrong.guilty
    assert guilt.healed == ("rms_norm",)
    assert wrong.residual < wrong.noise < guilt.gain_low < guilt.gain < guilt.gain_high
    assert wrong.first_layer == 0
    assert wrong.layers[0] == 0


def test_two_wrong_kernels_of_which_one_is_a_hundred_times_worse(trust: Trust) -> None:
    wrong = found(trust, device_with(rms_norm=eps_outside, silu_and_mul=low_silu))
    assert wrong.ops == ("silu_and_mul", "rms_norm")
    assert wrong.guilty[0].gain > 50 * wrong.guilty[1].gain
    assert wrong.explained


def test_ops_that_share_a_state_are_moved_together(trust: Trust) -> None:
    wrong = found(trust, device_with(paged_attention=window_of(40)))
    (guilt,) = wrong.guilty
    assert guilt.ops == ("paged_attention", "write_cache")
    assert guilt.healed == ("paged_attention",)


def test_an_op_that_is_overridden_anyway_is_no_suspect(trust: Trust) -> None:
    wrong = found(trust, device_with(rms_norm=eps_outside), rms_norm="device")
    assert wrong.deviates
    assert (wrong.guilty, wrong.explained) == ((), False)


def test_the_first_wrong_layer(trust: Trust) -> None:
    calls = 0

    def second_layer_off(x: object, *rest: object, **attributes: object) -> object:
        nonlocal calls
        calls += 1
        return (low_silu if calls % 2 == 0 else reference)(x, *rest, **attributes)

    reference = OPSET["silu_and_mul"].reference
    wrong = found(trust, device_with(silu_and_mul=second_layer_off))
    assert (wrong.first_layer, wrong.ops) == (1, ("silu_and_mul",))


def test_it_can_be_written_down(trust: Trust) -> None:
    made = found(trust, device_with(rms_norm=eps_outside))
    assert Attribution.model_validate_json(made.model_dump_json()) == made


class Rigged(Investigation):
    """Divergences by a rule instead of runs; `asked` counts the texts that each way was measured on."""

    def __init__(self, rule: Callable[[frozenset[str]], float], texts: int = 8) -> None:
        super().__init__(Unused(), ReferenceDevice(), Baseline(((0, 1),) * texts, (), ()), 1e-3, Numerics(), "float32")
        self.rule, self.asked = rule, Counter[Way]()

    def divergence(self, way: Way, text: int) -> NDArray[np.float64]:
        self.asked[way] += 1
        spread = np.random.default_rng(text).uniform(0.5, 1.5, 64)
        return self.rule(frozenset(op for op, _ in way)) * spread


class Unused(MeasuredModel):
    name = "unused"

    def __init__(self, reference: str = "") -> None: ...

    @property
    def identity(self) -> str:
        raise NotImplementedError

    def texts(self, tokens: int) -> tuple[Text, ...]:
        raise NotImplementedError

    def open(self, device: Device, numerics: Numerics, dtype: str = "auto") -> ModelProbe:
        raise NotImplementedError


SUSPECTS = [frozenset({op}) for op in "abcdefgh"]


def test_ops_that_matter_only_together_are_found() -> None:
    case = Rigged(lambda replaced: 0.0 if {"b", "g"} <= replaced else 1.0)
    assert [sorted(ops) for ops in case.search(SUSPECTS)] == [["b", "g"]]


def test_ops_that_matter_each_are_found_and_no_others() -> None:
    case = Rigged(lambda replaced: 1 - 0.7 * ("c" in replaced) - 0.299 * ("d" in replaced) - 5e-4 * ("h" in replaced))
    assert case.search(SUSPECTS) == [frozenset("c"), frozenset("d")]


def test_a_clear_answer_takes_one_text_and_an_unclear_one_takes_all() -> None:
    case = Rigged(lambda replaced: 1.0 if not replaced else 0.5 if replaced == {"a"} else 0.95)
    case.material = 0.05
    assert case.gain((), referred({"a"})).low > case.material
    assert case.asked[referred({"a"})] == 1
    case.gain((), referred({"b"}))
    assert case.asked[referred({"b"})] == len(case.baseline.texts)
