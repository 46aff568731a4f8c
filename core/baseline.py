"""What a trusted device makes of a model: the baseline that others are measured against, and the noise around it.

Both are kept in files, since a trusted run may take longer than the run that it is compared with.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .divergence import Array, Deviation, Predictions, nmse
from .errors import DeviceError
from .hal.device import Device, Numerics
from .ir.dtype import bfloat16, float16
from .model_probe import MeasuredModel, ModelProbe, Text

WALKED = 64
"""Tokens of the first text whose layers are compared."""
ROUNDED = 0.18
"""Mean squared error of one rounding in units of the square of its unit roundoff."""


@dataclass(frozen=True)
class Baseline:
    """Predictions of a trusted run for each text, and its layers for the beginning of the first."""

    texts: tuple[Text, ...]
    predictions: tuple[Predictions, ...]
    layers: tuple[NDArray[Any], ...]

    def deviation(self, probe: ModelProbe, texts: Sequence[int] | None = None) -> Deviation:
        """How another run differs, on the texts of these numbers or on all."""
        chosen = range(len(self.texts)) if texts is None else texts
        return Deviation.together([part for i in chosen for part in self._parts(probe, i)])

    def _parts(self, probe: ModelProbe, index: int) -> list[Deviation]:
        parts, at, following = [], 0, _following(self.texts[index])
        for rows in probe.logits(self.texts[index]):
            here = slice(at, at + len(rows))
            parts.append(Deviation.of(self.predictions[index][here], rows, following[here]))
            at += len(rows)
        return parts

    def walk(self, probe: ModelProbe) -> Array:
        """The NMSE of what goes into the first layer and of what comes out of each."""
        pairs = zip(probe.layers(self.texts[0][:WALKED]), self.layers, strict=True)
        return np.array([nmse(got, expected) for got, expected in pairs])

    @cached_property
    def margins(self) -> Array:
        """By how much the likeliest token leads at each position of all texts."""
        return np.concatenate([part.margin for part in self.predictions])


@dataclass(frozen=True)
class Noise:
    """How far correct runs in one dtype may be from the baseline.

    Attributes:
        kl: mean divergence.
        margin: root mean square of the change of the lead of the likeliest token.
        walk: the NMSE of layers.
        told: how it was measured.
    """

    kl: float
    margin: float
    walk: Array
    told: str


@dataclass(frozen=True)
class Trust:
    """The trusted device of a measurement, and where its results are kept; None keeps nothing."""

    model: MeasuredModel
    device: Device
    texts: tuple[Text, ...]
    folder: Path | None = None

    def baseline(self) -> Baseline:
        """The strict float32 run."""
        arrays = self._kept("baseline", self._run)
        parts = zip(*(np.split(arrays[name], self._ends) for name in ("ids", "logs", "rest", "true")), strict=True)
        layers = tuple(arrays[f"layer{i}"] for i in range(sum(name.startswith("layer") for name in arrays)))
        return Baseline(self.texts, tuple(Predictions(*part) for part in parts), layers)

    def noise(self, baseline: Baseline, probe: ModelProbe, mode: str = "strict") -> Noise:
        """The noise of the dtype that `probe` computes in.

        For a 16-bit dtype it is that of a run of the trusted device in it. For a wider one the noise of such a run is
        scaled to what one rounding and a sum of `longest_sum` terms cost in float32, ROUNDED u^2 + terms u^2.
        """
        kinds = [kind for kind in (bfloat16, float16) if kind in self.device.capabilities.dtypes]
        narrow = probe.dtype.bits <= 16
        if not narrow and not kinds:
            raise DeviceError(f"{self.device.spec} has no 16-bit float to measure noise by; choose another reference")
        kind = probe.dtype if narrow else kinds[0]
        arrays = self._kept(f"noise {kind} {mode}", lambda: self._rerun(baseline, kind.name, mode))
        told = f"a run of {self.device.spec} in {kind}"
        share = 1.0
        if not narrow:
            u, wide = kind.unit_roundoff, probe.dtype.unit_roundoff
            share = (ROUNDED + probe.longest_sum) * wide**2 / (ROUNDED * u**2)
            told += f", scaled to {probe.dtype} sums of {probe.longest_sum:,} terms"
        return Noise(
            float(arrays["kl"]) * share, float(arrays["margin"]) * share**0.5, np.asarray(arrays["walk"] * share), told
        )

    @property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum([len(text) for text in self.texts])[:-1]

    def _run(self) -> dict[str, NDArray[Any]]:
        probe = self.model.open(self.device, Numerics(), "float32")
        try:
            parts = []
            for text in self.texts:
                at, following = 0, _following(text)
                for rows in probe.logits(text):
                    parts.append(Predictions.of(rows, following[at : at + len(rows)]))
                    at += len(rows)
            layers = {f"layer{i}": np.asarray(x) for i, x in enumerate(probe.layers(self.texts[0][:WALKED]))}
        finally:
            probe.close()
        joined = {name: np.concatenate([getattr(p, name) for p in parts]) for name in ("ids", "logs", "rest", "true")}
        return joined | layers

    def _rerun(self, baseline: Baseline, dtype: str, mode: str) -> dict[str, NDArray[Any]]:
        probe = self.model.open(self.device, Numerics(mode), dtype)
        try:
            deviation, walk = baseline.deviation(probe), baseline.walk(probe)
        finally:
            probe.close()
        margin = np.sqrt(np.mean(deviation.margin**2))
        return {"kl": np.asarray(deviation.kl.mean()), "margin": np.asarray(margin), "walk": walk}

    def _kept(self, what: str, compute: Callable[[], dict[str, NDArray[Any]]]) -> Mapping[str, NDArray[Any]]:
        """What was computed before, if it is all there and unchanged; else what is computed now."""
        if self.folder is None:
            return compute()
        told = (self.model.identity, self.device.spec, self.device.name, version("xinheng"), what, str(self.texts))
        path = self.folder / f"{hashlib.sha256(chr(0).join(told).encode()).hexdigest()}.npz"
        found = _read(path)
        if found is None:
            found = compute()
            _write(path, found)
        return found


def _following(text: Text) -> NDArray[np.int64]:
    return np.array([*text[1:], -1], np.int64)


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, NDArray[Any]] | None:
    """The arrays of a file, None if it is not there, cut short or changed."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    told = arrays.pop("digest", None)
    return arrays if told is not None and str(told) == _digest(arrays) else None


def _write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        stored: dict[str, Any] = {**arrays, "digest": np.array(_digest(arrays))}
        np.savez(file, **stored)
    os.replace(file.name, path)
