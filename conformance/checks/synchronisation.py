"""Waiting: what is read as soon as an event and a copy say so is what is there when all work is done."""

from __future__ import annotations

from .bits import difference
from .experiment import Experiment, Finding, Results, blamed


def waited(experiment: Experiment) -> Finding | None:
    """Run once more and read the results twice: by copies started at once, and after the device has come to rest."""
    trial, device = experiment.trial, experiment.device
    with blamed(device, "failed to run"):
        event = trial.start()
        copies = [device.copy_async(buffer) for buffer in trial.bound.outputs.values()]
        event.wait()
        early = tuple(copy.wait() for copy in copies)
        device.synchronize()
        late = tuple(device.download(buffer) for buffer in trial.bound.outputs.values())
    text = difference(early, late)
    if text is None:
        return None
    return Finding("synchronisation", f"results copied after their event are not those of a device at rest: {text}")


def at_rest(experiment: Experiment) -> Results:
    """The results of one more run, read after the device has come to rest: what is right now was read too early."""
    trial, device = experiment.trial, experiment.device
    with blamed(device, "failed to run"):
        trial.start().wait()
        device.synchronize()
        return trial.results()
