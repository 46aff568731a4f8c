"""The doctor of plugins: does a backend keep the contract before anybody trusts its numbers?"""

from __future__ import annotations

from .checkup import Checkup, check
from .symptom import Severity, Symptom

__all__ = ["Checkup", "Severity", "Symptom", "check"]
