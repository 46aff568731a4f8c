"""The model suite: right devices pass its gates, a device with one wrong kernel does not, and baselines are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from xinheng.core.baseline import Baseline, Noise, Trust
from xinheng.core.divergence import Deviation, Predictions
from xinheng.core.errors import RequestError, SettingsError
from xinheng.core.hal import Device, KernelRegistry, Numerics, ReferenceDevice
from xinheng.core.model_probe import measured_model
from xinheng.core.ops import OPSET
from xinheng.core.plugins import PluginManager
from xinheng.core.suite import Outcome, Selection, Verdict
from xinheng.engine.model_probe import EngineModel
from xinheng.engine.model_suite import (
    GATES,
    Finding,
    Measurement,
    ModelSuite,
    divergence,
    layers,
    likeliest,
    perplexity,
)

from ..conformance.wrong_devices import device_with, eps_outside
from . import tiny

TOKENS = "256"
WHAT = ("kl", "top-1", "perplexity", "layers")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where baselines are kept, common to all tests here."""
    folder = tmp_path_factory.getbasetemp() / "model-suite"
    monkeypatch.setenv("XINHENG_RUNTIME__CACHE_DIR", str(folder))
    return folder


def outcomes(model: Path, device: Device, numerics: Numerics | None = None, **options: str) -> dict[str, Outcome]:
    """What becomes of each item, by the last part of its id."""
    chosen = {"model": str(model), "tokens": TOKENS, "reference": "sim:exact", "dtype": "float32"} | options
    suite = ModelSuite(Selection(options=chosen), numerics)
    made = {item.id.rpartition("/")[2]: suite.run(item.id, device) for item in suite.items()}
    suite.close()
    return made


def failed(made: dict[str, Outcome]) -> list[str]:
    return [what for what, outcome in made.items() if outcome.verdict is not Verdict.PASS]


def test_without_a_model_there_are_no_items() -> None:
    assert ModelSuite(Selection()).items() == []


def test_items_of_a_model(llama_folder: Path) -> None:
    suite = ModelSuite(Selection(options={"model": str(llama_folder)}))
    assert [item.id for item in suite.items()] == [f"models/tiny-llama/{what}" for what in WHAT]
    assert {item.op for item in suite.items()} == {f"model {what}" for what in WHAT}
    with pytest.raises(SettingsError, match="has no item 'models/tiny-llama/speed'"):
        suite.run("models/tiny-llama/speed", ReferenceDevice())


def test_a_right_device_passes(llama_folder: Path, device: Device) -> None:
    made = outcomes(llama_folder, device)
    assert failed(made) == []
    assert made["kl"].measures["kl"] < 1e-10
    assert made["kl"].measures["tokens"] == int(TOKENS)
    assert made["top-1"].measures["same"] == 1
    assert {name for name in made["layers"].measures if name.startswith("nmse")} == {"nmse_00", "nmse_01", "nmse_02"}


KINDS = [tiny.GEMMA3, tiny.GLM4, tiny.QWEN3_MOE, tiny.DEEPSEEK_V3]


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config["model_type"])
def test_layers_of_every_kind_of_model_are_found(config: tiny.Config, tmp_path: Path) -> None:
    model = EngineModel(str(tiny.write_model(tmp_path / "tiny", config)))
    probe = model.open(ReferenceDevice(), Numerics(), "float32")
    shown = probe.layers(model.texts(12)[0])
    assert [layer.shape for layer in shown] == [(12, config["hidden_size"])] * (config["num_hidden_layers"] + 1)
    steps = [np.linalg.norm(b - a) for a, b in pairwise(shown)]
    assert min(steps) > 0
    probe.close()


def test_sixteen_bits_are_measured_against_their_own_noise(llama_folder: Path) -> None:
    made = outcomes(llama_folder, PluginManager().open("cpu:0"), dtype="bfloat16")
    assert failed(made) == []
    assert made["kl"].measures["kl"] > 1e-5
    assert 0.2 < made["kl"].measures["kl"] / made["kl"].measures["kl_noise"] < 2
    assert made["top-1"].measures["skipped"] > 0
    assert 0.2 < made["layers"].measures["nmse_02"] / made["layers"].measures["noise_02"] < 2


def test_a_wrong_kernel_that_gates_cannot_see_shows_in_the_layers(llama_folder: Path) -> None:
    made = outcomes(llama_folder, device_with(rms_norm=eps_outside))
    assert failed(made) == ["layers"]
    assert "layer 0 is the first of 2 above twice the noise" in made["layers"].message


def test_a_badly_wrong_kernel_fails_everything(llama_folder: Path) -> None:
    def halved(q: object, *rest: object, scale: float, **attributes: object) -> object:
        return OPSET["paged_attention"].reference(q, *rest, scale=scale / 8, **attributes)

    made = outcomes(llama_folder, device_with(paged_attention=halved))
    assert set(failed(made)) >= {"kl", "top-1", "layers"}
    assert made["kl"].defect == "numbers"
    assert (made["kl"].worst or 0) > 10
    assert made["kl"].measures["kl_low"] < made["kl"].measures["kl"] < made["kl"].measures["kl_high"]


def test_a_device_that_lacks_an_op_is_told(llama_folder: Path) -> None:
    device = ReferenceDevice("test:poor")
    device.kernels = KernelRegistry()
    made = outcomes(llama_folder, device)
    assert {outcome.verdict for outcome in made.values()} == {Verdict.UNSUPPORTED}


def test_a_kernel_that_fails_is_an_outcome(llama_folder: Path) -> None:
    def broken(gate: object, up: object) -> object:
        raise RuntimeError("the chip is on fire")

    made = outcomes(llama_folder, device_with(silu_and_mul=broken))
    assert {(outcome.verdict, outcome.defect) for outcome in made.values()} == {(Verdict.FAIL, "error")}


def test_a_reference_that_fails_is_no_fault_of_the_device(llama_folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"the reference sim:no-such fails: device sim:no-such does not exist"):
        outcomes(llama_folder, ReferenceDevice(), reference="sim:no-such")


@pytest.mark.parametrize(("option", "value"), [("gates", "w3"), ("tokens", "many"), ("tokens", "1")])
def test_impossible_options(option: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{option} is '{value}'"):
        ModelSuite(Selection(options={option: value}))


def test_texts_are_the_same_every_time_and_end_somewhere(llama_folder: Path) -> None:
    model = EngineModel(str(llama_folder))
    texts = model.texts(600)
    assert list(map(len, texts)) == [256, 256, 88]
    assert texts == EngineModel(str(llama_folder)).texts(600)
    with pytest.raises(RequestError, match="has no 100000000 tokens"):
        model.texts(100_000_000)


def test_the_identity_of_a_model_is_that_of_its_bits(llama_folder: Path, tmp_path: Path) -> None:
    same = tiny.write_model(tmp_path / "same", tiny.LLAMA, seed=1)
    other = tiny.write_model(tmp_path / "other", tiny.LLAMA, seed=2)
    assert EngineModel(str(llama_folder)).identity == EngineModel(str(same)).identity
    assert EngineModel(str(llama_folder)).identity != EngineModel(str(other)).identity


class Counting(ReferenceDevice):
    """Counts the texts that are run on it."""

    runs = 0

    def compile(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        self.runs += 1
        return super().compile(*args, **kwargs)  # type: ignore[arg-type]


@pytest.fixture
def kept(llama_folder: Path, tmp_path: Path) -> Iterator[Trust]:
    model = measured_model(str(llama_folder))
    yield Trust(model, Counting("test:counting"), model.texts(40), tmp_path / "kept")


def test_a_baseline_is_kept_and_checked(kept: Trust) -> None:
    device = kept.device
    assert isinstance(device, Counting)
    first, made = kept.baseline(), device.runs
    again = kept.baseline()
    assert made > 0
    assert device.runs == made
    np.testing.assert_array_equal(first.predictions[0].logs, again.predictions[0].logs)
    assert kept.folder is not None
    (file,) = kept.folder.iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    np.testing.assert_array_equal(kept.baseline().predictions[0].logs, first.predictions[0].logs)
    assert device.runs == 2 * made


def measurement(kl: float, same: float, loss: float, walk: float) -> Measurement:
    """Of 1,000 positions with a clear lead, of a device with these deviations; the noise of each is 1e-3."""
    rng = np.random.default_rng(0)
    leads = Predictions(np.zeros((1000, 2), np.int32), np.tile([-0.1, -5.0], (1000, 1)), *np.full((2, 1000), -3.0))
    baseline = Baseline(((0,) * 1000,), (leads,), ())
    deviation = Deviation(
        kl * rng.uniform(0.5, 1.5, 1000),
        np.arange(1000) >= 1000 * (1 - same),
        np.zeros(1000),
        loss * rng.uniform(0.5, 1.5, 1000),
    )
    noise = Noise(1e-3, 1e-3, np.full(3, 1e-3), "chance")
    return Measurement(baseline, noise, deviation, np.array([0, walk, walk]), GATES["same-dtype"])


@pytest.mark.parametrize(
    ("finding", "good", "bad"),
    [
        (divergence, measurement(1.9e-3, 1, 0, 0), measurement(2.2e-3, 1, 0, 0)),
        (likeliest, measurement(0, 0.996, 0, 0), measurement(0, 0.994, 0, 0)),
        (perplexity, measurement(0, 1, 9e-4, 0), measurement(0, 1, 1.1e-3, 0)),
        (perplexity, measurement(0, 1, -0.1, 0), measurement(0, 1, 0.1, 0)),
        (layers, measurement(0, 1, 0, 1.9e-3), measurement(0, 1, 0, 2.1e-3)),
        (layers, measurement(0, 1, 0, 0), measurement(0, 1, 0, np.inf)),
    ],
)
def test_gates(finding: Callable[[Measurement], Finding], good: Measurement, bad: Measurement) -> None:
    assert finding(good).ok
    assert not finding(bad).ok
    assert (finding(bad).worst or 0) > 1


@pytest.mark.slow
def test_a_downloaded_model(smollm2_path: Path) -> None:
    made = outcomes(smollm2_path, PluginManager().open("cpu:0"), reference="cpu:0", dtype="bfloat16")
    assert failed(made) == []
    assert made["perplexity"].measures["perplexity"] < 40
