"""What the doctor says: a stable code, how grave it is, what is the case, and what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Severity(StrEnum):
    """An error breaks the contract; a warning will annoy users; a note is good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Symptom(BaseModel):
    """One thing that is wrong or worth knowing; what goes on with `code` never changes its meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    severity: Severity
    text: str
    remedy: str = ""


class Findings(BaseModel):
    """What a stage found out: symptoms, and figures by name, such as how long something took."""

    symptoms: list[Symptom] = []
    figures: dict[str, Any] = {}

    def error(self, code: str, text: str, remedy: str) -> None:
        self.symptoms.append(Symptom(code=code, severity=Severity.ERROR, text=text, remedy=remedy))

    def warning(self, code: str, text: str, remedy: str) -> None:
        self.symptoms.append(Symptom(code=code, severity=Severity.WARNING, text=text, remedy=remedy))

    def note(self, code: str, text: str, remedy: str = "") -> None:
        self.symptoms.append(Symptom(code=code, severity=Severity.NOTE, text=text, remedy=remedy))
