"""One case on one device: what the checks share, with the errors of the device apart from those of the suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xinheng.core.errors import DeviceError, XinhengError
from xinheng.core.hal import Device, Numerics, Profile

from ..bounds.rules import Rules
from ..call import Call
from ..case import Case
from ..judge import Judgement, judge
from ..trial import Trial

Results = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: a word of `Outcome.defect`, and a sentence."""

    defect: str
    message: str


class Experiment:
    """A case, made ready on a device and run.

    Every method that runs something raises DeviceError for whatever goes wrong on the device.

    Attributes:
        trial: the executable that ran, and is run again by checks.
        first: the results of the first run.
    """

    def __init__(self, case: Case, device: Device, numerics: Numerics) -> None:
        self.case, self.device, self.numerics = case, device, numerics
        self.arithmetic = device.capabilities.arithmetic
        self.trial = self.prepare(case.call)
        self.first: Results = ()

    def prepare(self, call: Call) -> Trial:
        """A call made ready, compiled anew."""
        with blamed(self.device, "could not be made ready"):
            return Trial(call, self.device, self.numerics)

    def run(self, trial: Trial | None = None, inputs: Any = None, profile: Profile | None = None) -> Results:
        """One run to the end, by default of the executable that ran first."""
        with blamed(self.device, "failed to run"):
            return (trial or self.trial).run(inputs, profile)

    def judge(self, call: Call, made: Results) -> Judgement:
        """The verdict on results of this call, or of one with other numbers of the same kind."""
        rules = Rules.of(self.arithmetic, self.case.kind, self.case.structured, self.trial.decomposed)
        return judge(call, made, rules, self.arithmetic.programs if self.arithmetic else None)


@contextmanager
def blamed(device: Device, what: str) -> Iterator[None]:
    """Turn whatever is raised into an error of the device.

    Raises:
        XinhengError: as it was raised.
        DeviceError: anything else but running out of memory was raised.
    """
    try:
        yield
    except (XinhengError, MemoryError):
        raise
    except Exception as error:
        raise DeviceError(f"{device.spec} {what}: {type(error).__name__}: {error}") from error
