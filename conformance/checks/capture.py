"""D4 and what is left over: later runs of a bound executable follow their own inputs, captured as well as eager."""

from __future__ import annotations

from xinheng.core.hal import Profile

from ..call import Call
from .bits import difference, same
from .experiment import Experiment, Finding, Results
from .variants import other_numbers


def second_run(experiment: Experiment) -> tuple[Finding | None, bool]:
    """Run what has run before on other numbers, eagerly and as users run it, and judge the results.

    The executable goes back to the numbers of the case in the end.

    Returns:
        What is wrong, and whether eager and captured results have the same bits (D4).
    """
    trial, call = experiment.trial, other_numbers(experiment.case)
    trial.load(call)
    try:
        made = experiment.run()
        eager = experiment.run(profile=Profile())
        found, alike = experiment.judge(call, made), same(made, eager)
        if found.ok and alike:
            return None, True
        again = experiment.run()
    finally:
        trial.load(experiment.case.call)
    if found.ok:
        text = difference(again, made)
        return (None if text is None else Finding("repeat", f"two runs on the same numbers differ: {text}")), False
    return _blamed(experiment, call, (made, again, eager), found.message), False


def _blamed(experiment: Experiment, call: Call, runs: tuple[Results, Results, Results], message: str) -> Finding:
    """Why the first run on other numbers was wrong: leftovers go with the next run, and a record stays wrong."""
    made, again, eager = runs
    if experiment.judge(call, again).ok:
        return Finding("stale", f"the first run with other inputs has results of the one before: {message}")
    if experiment.judge(call, eager).ok:
        return Finding("capture", f"a run repeated with other inputs is wrong unless it is eager: {message}")
    if experiment.judge(call, experiment.run(experiment.prepare(call))).ok:
        old = ", those of the run before" if same(made, experiment.first) else ""
        return Finding("stale", f"a second run with other inputs gives wrong results{old}: {message}")
    return Finding("numbers", f"wrong on other numbers of the same kind: {message}")


def eager_differs(experiment: Experiment) -> Finding | None:
    """Whether a run of single kernels, as a profile demands it, has other bits than the first."""
    text = difference(experiment.run(profile=Profile()), experiment.first)
    return None if text is None else Finding("capture", f"eager and captured runs differ: {text}")
