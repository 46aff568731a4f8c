"""The conformance suite `models`: what a device makes of a whole model, against a trusted run of the same model.

Selection options: `model`, references separated by commas (without it the suite has no items); `reference`, the trusted
device (cpu:0); `tokens` of the text (2,048; 20,000 from the full tier on); `dtype` of activations (what the device
prefers); `gates`, one of `GATES` (same-dtype, or w8a8 where numerics are fast).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from xinheng.core.baseline import Baseline, Noise, Trust
from xinheng.core.divergence import Array, Deviation, Interval, interval
from xinheng.core.errors import DeviceError, OutOfMemory, SettingsError, UnsupportedOp
from xinheng.core.hal import Device, DeviceOptions, Numerics
from xinheng.core.model_probe import ModelProbe
from xinheng.core.plugins import PluginManager
from xinheng.core.settings import RuntimeSettings
from xinheng.core.suite import Item, Outcome, Selection, Suite, Verdict

from .model_probe import EngineModel


@dataclass(frozen=True, slots=True)
class Gates:
    """Limits of a model-level comparison.

    Attributes:
        same: least share of positions with the same likeliest token, ties left out.
        perplexity: most that perplexity may grow, as a share.
    """

    same: float
    perplexity: float


GATES = {
    "same-dtype": Gates(0.995, 0.001),
    "w8a8": Gates(0.98, 0.005),
    "w4": Gates(0.95, 0.02),
}
"""By what the device does otherwise than the baseline, which reads the same weights."""

KL = 1e-4
"""A mean divergence, in nats, that is fine whatever the noise."""
BEYOND = 1e9
"""What is infinite, in figures."""
TIE = 4.0
"""A lead of fewer noise units than this is a tie."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a device made of a model."""

    baseline: Baseline
    noise: Noise
    deviation: Deviation
    walk: Array
    gates: Gates


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a gate holds; `proves` is False where the measurement decides nothing."""

    ok: bool
    message: str
    measures: dict[str, float]
    worst: float | None = None
    proves: bool = True


class ModelSuite(Suite):
    """Four items per model: divergence, likeliest tokens, perplexity, and layers."""

    name: ClassVar[str] = "models"
    patience: ClassVar[float] = 3600.0
    model: ClassVar[type[EngineModel]] = EngineModel

    def __init__(self, selection: Selection, numerics: Numerics | None = None) -> None:
        super().__init__(selection, numerics)
        wanted = selection.options.get("gates", "same-dtype" if self.numerics.mode == "strict" else "w8a8")
        if wanted not in GATES:
            raise SettingsError(f"suite models: gates is {wanted!r}; it is one of {', '.join(GATES)}")
        self._gates = GATES[wanted]
        self._tokens = _count(selection.options.get("tokens", "2048" if selection.tier == 0 else "20000"))
        self._models: dict[str, EngineModel] = {}
        self._measured: dict[tuple[str, str], Measurement] = {}

    def items(self) -> Sequence[Item]:
        listed = [Item(f"models/{name}/{what}", f"model {what}") for name in self._opened() for what in FINDINGS]
        return [item for item in listed if self.selection.admits(item)]

    def run(self, id: str, device: Device) -> Outcome:
        began = time.perf_counter()
        _, name, what = (*id.split("/"), "", "")[:3]
        if name not in self._opened() or what not in FINDINGS:
            raise SettingsError(f"suite models has no item {id!r}; its options decide which models it has")
        try:
            measured = self._measure(name, device)
        except UnsupportedOp as error:
            return _outcome(id, what, Verdict.UNSUPPORTED, "", str(error), began)
        except (OutOfMemory, MemoryError) as error:
            text = str(error) or "the host has no memory left"
            return _outcome(id, what, Verdict.OUT_OF_MEMORY, "out-of-memory", text, began)
        except DeviceError as error:
            return _outcome(id, what, Verdict.FAIL, "error", str(error), began)
        found = FINDINGS[what](measured)
        verdict = (Verdict.PASS if found.ok else Verdict.FAIL) if found.proves else Verdict.BAD_CASE
        defect = "" if found.ok and found.proves else "numbers" if found.proves else "useless-bound"
        return _outcome(id, what, verdict, defect, found.message, began, found)

    def _opened(self) -> dict[str, EngineModel]:
        references = self.selection.options.get("model", "")
        if not self._models:
            for reference in filter(None, references.split(",")):
                model = EngineModel(reference)
                if model.name in self._models:
                    raise SettingsError(f"suite models: two models are called {model.name!r}")
                self._models[model.name] = model
        return self._models

    def _measure(self, name: str, device: Device) -> Measurement:
        """The measurement of a model, made once; all its items read it."""
        if (name, device.spec) not in self._measured:
            self._measured[name, device.spec] = self._measured_now(self._models[name], device)
        return self._measured[name, device.spec]

    def _measured_now(self, model: EngineModel, device: Device) -> Measurement:
        probe = model.open(device, self.numerics, self.selection.options.get("dtype", "auto"))
        try:
            baseline, noise = self._trusted(model, probe)
            return Measurement(baseline, noise, baseline.deviation(probe), baseline.walk(probe), self._gates)
        finally:
            probe.close()

    def _trusted(self, model: EngineModel, probe: ModelProbe) -> tuple[Baseline, Noise]:
        runtime, spec = RuntimeSettings(), self.selection.options.get("reference", "cpu:0")
        texts = model.texts(self._tokens)
        try:
            trusted = PluginManager(runtime.plugins_disabled).open(spec, DeviceOptions(cache_dir=runtime.cache_dir))
            try:
                trust = Trust(model, trusted, texts, runtime.cache_dir / "baselines")
                baseline = trust.baseline()
                return baseline, trust.noise(baseline, probe, self.numerics.mode)
            finally:
                trusted.close()
        except (DeviceError, UnsupportedOp) as error:  # which is no fault of the device under test
            raise SettingsError(f"suite models: the reference {spec} fails: {error}; choose another one") from error


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 2:
        raise SettingsError(f"suite models: tokens is {text!r}; it is a number of at least 2")
    return int(text)


def _outcome(
    id: str, what: str, verdict: Verdict, defect: str, message: str, began: float, found: Finding | None = None
) -> Outcome:
    return Outcome(
        id=id,
        op=f"model {what}",
        verdict=verdict,
        defect=defect,
        message=message,
        worst=None if found is None or found.worst is None else _finite(found.worst),
        measures={} if found is None else {name: _finite(x) for name, x in found.measures.items()},
        seconds=time.perf_counter() - began,
    )


def _finite(x: float) -> float:
    """A number that reports can hold; NaN and infinity count as `BEYOND`."""
    return min(x, BEYOND) if x == x else BEYOND


def _figures(name: str, of: Interval) -> dict[str, float]:
    return {name: of.mean, f"{name}_low": of.low, f"{name}_high": of.high}


def divergence(m: Measurement) -> Finding:
    """The mean KL divergence of predictions, at most twice that of the noise or `KL`."""
    found, limit = interval(m.deviation.kl), max(2 * m.noise.kl, KL)
    measures = _figures("kl", found) | {
        "kl_p999": float(np.percentile(m.deviation.kl, 99.9)),
        "kl_noise": m.noise.kl,
        "tokens": float(len(m.deviation.kl)),
    }
    told = f"mean KL {found.mean:.3g} ({found.low:.3g} to {found.high:.3g}), at most {limit:.3g}"
    return Finding(
        found.mean <= limit, f"{told}; noise {m.noise.kl:.3g} by {m.noise.told}", measures, found.mean / limit
    )


def likeliest(m: Measurement) -> Finding:
    """How often the likeliest token is the same, where the baseline's lead is no tie."""
    clear = m.baseline.margins >= TIE * m.noise.margin
    skipped, count = int(np.count_nonzero(~clear)), len(clear)
    measures = {"skipped": float(skipped), "tokens": float(count), "margin_noise": m.noise.margin}
    if not clear.any():
        return Finding(False, f"all {count} positions are ties within {TIE:g} units of noise", measures, proves=False)
    found = interval(m.deviation.same[clear].astype(np.float64))
    told = f"{found.mean:.2%} of the likeliest tokens are the same, at least {m.gates.same:.1%}"
    return Finding(
        found.mean >= m.gates.same,
        f"{told}; {skipped} of {count} positions are ties",
        measures | _figures("same", found),
        (1 - found.mean) / (1 - m.gates.same),
    )


def perplexity(m: Measurement) -> Finding:
    """By which share perplexity grows, paired token by token; too much if all of the interval is."""
    found = interval(m.deviation.loss[~np.isnan(m.deviation.loss)])
    share = Interval(*(float(np.expm1(x)) for x in (found.mean, found.low, found.high)))
    true = np.concatenate([part.true for part in m.baseline.predictions])
    measures = _figures("growth", share) | {"perplexity": float(np.exp(found.mean - np.nanmean(true)))}
    told = f"perplexity {measures['perplexity']:.4g} is {share.mean:+.3%} ({share.low:+.3%} to {share.high:+.3%})"
    limit = m.gates.perplexity
    return Finding(share.low <= limit, f"{told}, at most {limit:+.1%}", measures, max(share.low, 0.0) / limit)


def layers(m: Measurement) -> Finding:
    """The NMSE of each layer, at most twice that of the noise; the first that is above shows where it begins."""
    ratio = m.walk / np.maximum(2 * m.noise.walk, np.finfo(np.float64).tiny)
    guilty = np.flatnonzero(~(ratio <= 1))
    measures = {f"nmse_{i:02d}": float(x) for i, x in enumerate(m.walk)}
    measures |= {f"noise_{i:02d}": float(x) for i, x in enumerate(m.noise.walk)}
    if not guilty.size:
        return Finding(True, f"no layer is above twice the noise, {m.noise.told}", measures, float(ratio.max()))
    first = int(guilty[0])
    where = f"layer {first - 1}" if first else "the embedding"
    told = f"{where} is the first of {len(guilty)} above twice the noise: NMSE {m.walk[first]:.3g}"
    return Finding(False, f"{told}, noise {m.noise.walk[first]:.3g} by {m.noise.told}", measures, float(ratio.max()))


FINDINGS: dict[str, Callable[[Measurement], Finding]] = {
    "kl": divergence,
    "top-1": likeliest,
    "perplexity": perplexity,
    "layers": layers,
}
"""The items of a model by the last part of their ids."""
