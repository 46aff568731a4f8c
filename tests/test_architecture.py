"""The architecture as assertions: layers, names, sizes, exports and what an import costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("backends", "cli", "conformance", "core", "engine", "serve")
NEUTRAL = tuple(layer for layer in LAYERS if layer != "backends")
FRAMEWORKS = {"mindspore", "onnx", "torch", "torch_mlu", "torch_npu", "triton"}
VENDOR_WORDS = (
    "ascend|ascendcl|cambricon|cann|cncl|cuda|cudnn|gcu|hccl|hip|huawei|hygon|iluvatar|mlu|musa|nccl|npu|nvidia|rocm"
    "|torch_mlu|torch_npu|xpu"
)


def sources(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts:
                yield path


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[tuple[int, int, str]]:
    """Line, level and module of every import statement, wherever it stands; level 0 is absolute."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.level, node.module or ""


def test_every_layer_is_linked_into_the_package() -> None:
    links = {path.name: path for path in (ROOT / "src" / "xinheng").iterdir() if path.is_symlink()}
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert set(links) == set(LAYERS) == folders
    for layer, link in links.items():
        assert str(link.readlink()) == f"../../{layer}"
        assert link.resolve() == ROOT / layer


def test_no_import_starts_with_the_bare_name_of_a_layer() -> None:
    wrong = [
        f"{shown(path)}:{line}: import {module}, write xinheng.{module}"
        for path in sources(*LAYERS, "src/xinheng", "tests", "scripts")
        for line, level, module in imports(path)
        if level == 0 and module.partition(".")[0] in LAYERS
    ]
    assert wrong == []


def test_imports_are_relative_inside_a_layer_and_absolute_across() -> None:
    wrong = []
    for path in sources(*LAYERS):
        parts = path.relative_to(ROOT).parts
        for line, level, module in imports(path):
            if level == 0 and module.split(".")[:2] == ["xinheng", parts[0]]:
                wrong.append(f"{shown(path)}:{line}: {module} is in the same layer, import it relatively")
            if level >= len(parts):
                wrong.append(f"{shown(path)}:{line}: a relative import leaves the layer")
    assert wrong == []


def test_frameworks_are_imported_by_backends_only() -> None:
    wrong = [
        f"{shown(path)}:{line}: import {module}"
        for path in sources(*NEUTRAL)
        for line, level, module in imports(path)
        if level == 0 and module.partition(".")[0] in FRAMEWORKS - exchanged(path)
    ]
    assert wrong == []


def exchanged(path: Path) -> set[str]:
    """What a file may import because the exchange of models is its purpose."""
    suites = ROOT / "conformance" / "suites"
    known = {suites / "onnx_node.py": {"onnx"}, suites / "opinfo.py": {"torch"}}
    return {"onnx"} if path.is_relative_to(ROOT / "core" / "interop") else known.get(path, set())


def test_vendors_are_named_in_backends_only() -> None:
    word = re.compile(rf"(?<![a-z])({VENDOR_WORDS})(?![a-z])", re.IGNORECASE)
    wrong = [
        f"{shown(path)}:{number}: {match[0]}"
        for path in sources(*NEUTRAL, suffixes=(".py", ".cpp", ".h", ".html", ".js", ".css", ".j2", ".toml", ".json"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in word.finditer(line)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("folders", "suffixes", "limit"),
    [
        ((*LAYERS, "src/xinheng", "scripts"), (".py",), 400),
        (("tests",), (".py",), 600),
        (("backends",), (".cpp", ".h"), 600),
    ],
    ids=["code", "tests", "native"],
)
def test_files_are_small(folders: tuple[str, ...], suffixes: tuple[str, ...], limit: int) -> None:
    lengths = {shown(path): len(path.read_text("utf-8").splitlines()) for path in sources(*folders, suffixes=suffixes)}
    assert {path: length for path, length in lengths.items() if length > limit} == {}


def test_functions_are_short() -> None:
    long = [
        f"{shown(path)}:{node.lineno}: {node.name} has {length} lines"
        for path in sources(*LAYERS, "scripts", "tests")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > 60
    ]
    assert long == []


def test_modules_are_named_after_what_they_hold() -> None:
    vague = {"base", "common", "helper", "helpers", "misc", "util", "utils"}
    assert [shown(path) for path in sources(*LAYERS, "tests") if path.stem in vague or path.parent.name in vague] == []


def test_every_module_says_what_it_is() -> None:
    dumb = [
        shown(path)
        for path in sources(*LAYERS, "src/xinheng", "scripts", "tests")
        if len((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split()) < 3
    ]
    assert dumb == []


def test_exports_are_complete_and_sorted() -> None:
    wrong = []
    for path in sources(*LAYERS):
        if path.name != "__init__.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        exported: list[str] = []
        imported: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
                exported = ast.literal_eval(node.value)
            elif isinstance(node, ast.ImportFrom) and node.level and node.module:  # not `from . import submodule`
                imported |= {alias.asname or alias.name for alias in node.names}
        public = {name for name in imported if not name.startswith("_")}
        if missing := public - set(exported):
            wrong.append(f"{shown(path)}: __all__ lacks {sorted(missing)}")
        if exported != sorted(exported, key=export_order):
            wrong.append(f"{shown(path)}: __all__ is not sorted")
    assert wrong == []


def export_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name: the order that ruff sorts into."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name


@pytest.mark.parametrize("module", ["core", "core.plugins", "core.compiler", *(n for n in NEUTRAL if n != "core")])
def test_importing_loads_no_framework(module: str) -> None:
    code = f"import sys, xinheng.{module}; print(sorted({FRAMEWORKS!r} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
