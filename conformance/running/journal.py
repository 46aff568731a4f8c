"""The journal of a run: each outcome is on disk soon after it is known, so that a killed run can go on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from xinheng.core.errors import FormatError, SettingsError
from xinheng.core.suite import Outcome

NAME = "journal.jsonl"
VERSION = 1
BATCH = 64
"""Lines after which what was handed to the system is forced to the disk, at the latest."""
SECONDS = 1.0
"""Seconds after which it is, at the latest, when the next line comes."""

Key = tuple[str, int]
"""What an outcome is of: the pass ("first" or "again"), and the place of the item in the run."""


class Journal:
    """An append-only file: a header that says which run it is of, then one line per outcome.

    Args:
        folder: that of the report; it is made if it is not there.
        identity: plain data that only the same run has.
        resume: go on with what is there; without it a journal that is there is written over.

    Raises:
        SettingsError: what is there is of another run.
        FormatError: what is there is no journal, or damaged before its last line.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path = folder / NAME
        self.outcomes: dict[Key, Outcome] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if resume and self.path.exists() and (end := self._read(identity)):
            os.truncate(self.path, end)
            self._file = self.path.open("ab")
        else:
            self._file = self.path.open("wb")
            self._write({"journal": VERSION, "run": identity})
        self._since, self._count = time.monotonic(), 0
        self._force()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._force()
        self._file.close()

    def add(self, key: Key, outcome: Outcome) -> None:
        """Keep an outcome."""
        self.outcomes[key] = outcome
        self._write({"pass": key[0], "place": key[1], "outcome": outcome.model_dump(exclude_defaults=True)})
        self._file.flush()
        self._count += 1
        if self._count >= BATCH or time.monotonic() - self._since > SECONDS:
            self._force()

    def _write(self, data: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(data, ensure_ascii=False, default=str).encode() + b"\n")

    def _force(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._since, self._count = time.monotonic(), 0

    def _read(self, identity: Mapping[str, Any]) -> int:
        """Read what is there; the offset behind the last whole line, 0 if there is not even a header."""
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
                if number == 1:
                    self._match(record, identity)
                else:
                    self.outcomes[record["pass"], int(record["place"])] = Outcome.model_validate(record["outcome"])
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                text = f"{self.path}: line {number} is no line of a journal: {error}"
                raise FormatError(f"{text}; start anew without --resume") from None
        return len(whole)

    def _match(self, header: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        if header["journal"] != VERSION:
            raise FormatError(f"{self.path}: journal format {header['journal']!r}, this is {VERSION}; start anew")
        theirs, ours = header["run"], json.loads(json.dumps(identity, default=str))
        for name in dict.fromkeys([*ours, *theirs]):
            if ours.get(name) != theirs.get(name):
                raise SettingsError(
                    f"{self.path} is of another run: {name} is {theirs.get(name)!r} there and {ours.get(name)!r} here; "
                    "take another --report folder, or start anew without --resume"
                )
