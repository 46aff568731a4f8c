"""What has to hold besides the numbers: memory, repetition, batches, capture, waiting, and honest answers."""

from __future__ import annotations

from .batch import batch_slice
from .bits import difference, digest, same
from .capture import eager_differs, second_run
from .experiment import Experiment, Finding, blamed
from .memory import run_guarded, unwritten
from .repeat import after_churn, repeated, unsteady
from .supports import claimed, contradiction, forced, refused
from .synchronisation import at_rest, waited

__all__ = [
    "Experiment",
    "Finding",
    "after_churn",
    "at_rest",
    "batch_slice",
    "blamed",
    "claimed",
    "contradiction",
    "difference",
    "digest",
    "eager_differs",
    "forced",
    "refused",
    "repeated",
    "run_guarded",
    "same",
    "second_run",
    "unsteady",
    "unwritten",
    "waited",
]
