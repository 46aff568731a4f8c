"""Write the parts of README and docs that are made from the code, so that they cannot drift from it.

    python scripts/generate_docs.py             writes them
    python scripts/generate_docs.py --check     changes nothing, names stale files, and exits with 1 if there are any

A page says where such a part stands by a pair of comments; what lies between them belongs to this program:

    <!-- generated: NAME -->
    <!-- end -->

`PARTS` lists the names. The part `output` runs the code block before it, Python or a `xinheng` command line, and shows
what it prints. Run it in the development environment: the CPU backend is opened for the table of kernels.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PART = re.compile(r"(?P<head><!-- generated: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(?P<tail><!-- end -->)", re.DOTALL)
BLOCK = re.compile(r"^```(?P<language>python|sh)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
SECONDS = 300


class DocumentationError(Exception):
    """A page asks for something that cannot be made; the message names the page and the part."""


def pages(root: Path = ROOT) -> list[Path]:
    """Every page that may hold generated parts."""
    return sorted([*root.glob("README*.md"), *(root / "docs").rglob("*.md")])


def refreshed(text: str, where: str) -> str:
    """The page `text` with all its generated parts made anew.

    Raises:
        DocumentationError: a part has an unknown name, lacks its end, or the program of an `output` part fails.
    """
    if text.count("<!-- generated:") != len(PART.findall(text)):
        raise DocumentationError(f"{where}: a generated part has no '<!-- end -->'")

    def made(match: re.Match[str]) -> str:
        name = match["name"]
        if name == "output":
            body = _output(text[: match.start()], where)
        elif name in PARTS:
            body = PARTS[name]()
        else:
            raise DocumentationError(f"{where}: unknown part {name!r}; known: output, {', '.join(PARTS)}")
        return f"{match['head']}\n{body.strip()}\n\n{match['tail']}"

    return PART.sub(made, text)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def prose(text: str) -> str:
    """Text from a docstring or help text as Markdown in which angle brackets stay visible."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else p.replace("<", "&lt;").replace(">", "&gt;") for p in pieces)


def _output(before: str, where: str) -> str:
    blocks = list(BLOCK.finditer(before))
    if not blocks:
        raise DocumentationError(f"{where}: an output part has no python or sh block before it")
    language, code = blocks[-1]["language"], blocks[-1]["code"]
    commands = [[sys.executable, "-c", code]] if language == "python" else list(_command_lines(code))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("XINHENG_")}
    environment |= {"NO_COLOR": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    printed = ""
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            result = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
            )
            if result.returncode:
                raise DocumentationError(f"{where}: the program before an output part failed:\n{result.stderr}")
            printed += result.stdout
    shown = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    return f"```text\n{shown}\n```"


def _command_lines(code: str) -> Iterator[list[str]]:
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["xinheng"]:
            yield [sys.executable, "-m", *words]


def ops_part() -> str:
    """Every op of every family."""
    from xinheng.core.ops import FAMILIES

    rows = [
        (f"[`{op.name}`](#{op.name})", family, _kind(op), op.tolerance.value, prose(op.doc.split("\n")[0]))
        for family, members in FAMILIES.items()
        for op in members
    ]
    parts = [table(("Op", "Family", "Kind", "Tolerance", "Meaning"), rows)]
    for family, members in FAMILIES.items():
        module = importlib.import_module(f"xinheng.core.ops.{family}")
        parts.append(f"## Family {family}\n\n{prose(inspect.getdoc(module) or '')}")
        parts.extend(map(_op, members))
    return "\n\n".join(parts)


def _kind(op: Any) -> str:
    return "composite" if op.composite else "primitive"


def _op(op: Any) -> str:
    lines = [f"### {op.name}", f"```python\n{_signature(op)}\n```", prose(op.doc)]
    lines.append(f"Kind: {_kind(op)}. Tolerance class: {op.tolerance.value}. Since op set {op.since}.")
    if op.composite:
        source = textwrap.dedent(inspect.getsource(op._decompose)).strip()
        lines.append(f"<details><summary>Decomposition</summary>\n\n```python\n{source}\n```\n\n</details>")
    return "\n\n".join(lines)


def _signature(op: Any) -> str:
    line = f"def {op.signature}: ..."
    if len(line) <= 88:
        return line
    head, _, tail = line.partition("(")
    arguments, _, result = tail.rpartition(")")
    return f"{head}(\n" + "".join(f"    {part},\n" for part in arguments.split(", ")) + f"){result}"


def settings_part() -> str:
    """Every setting of every layer, one table each."""
    from xinheng.core.settings import settings_table

    return "\n\n".join(
        f"## Table `{cls.table}`\n\n{prose(inspect.getdoc(cls) or '')}\n\n{settings_table([cls]).strip()}"
        for cls in settings_classes()
    )


def settings_classes() -> list[Any]:
    """The settings classes of all layers: those defined in a module called `settings`."""
    import xinheng
    from xinheng.core.settings import Settings

    found = []
    for layer in pkgutil.iter_modules(xinheng.__path__):
        path = ROOT / layer.name / "settings.py"
        if not path.is_file():
            continue
        module = importlib.import_module(f"xinheng.{layer.name}.settings")
        for value in vars(module).values():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if own and issubclass(value, Settings) and hasattr(value, "table"):
                found.append(value)
    return found


def commands_part() -> str:
    """Every command with its arguments and options."""
    import typer

    from xinheng.cli.main import app

    return "\n\n".join(_commands(typer.main.get_command(app), "xinheng"))


def _commands(command: Any, name: str) -> Iterator[str]:
    if command.hidden:
        return
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            yield from _commands(inner, f"{name} {word}")
        return
    arguments = [p for p in command.params if not p.opts[0].startswith("-")]
    options = [p for p in command.params if p not in arguments and not p.hidden]
    spelled = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments]
    usage = " ".join([name, *spelled, *(["[OPTIONS]"] if options else [])])
    rows = [(f"`{p.name.upper()}`", _value(p), _default(p), prose(p.help or "")) for p in arguments]
    rows += [(f"`{', '.join(p.opts)}`", _value(p), _default(p), prose(p.help or "")) for p in options]
    text = f"### {name}\n\n{prose(inspect.cleandoc(command.help or ''))}\n\n```text\n{usage}\n```"
    yield text + ("\n\n" + table(("Argument or option", "Value", "Default", "Meaning"), rows) if rows else "")


def _value(parameter: Any) -> str:
    if parameter.metavar:
        return f"`{parameter.metavar}`"
    if getattr(parameter, "is_flag", False):
        return ""
    kind = getattr(parameter.type_descriptor.annotation, "__name__", str(parameter.type_descriptor.annotation))
    return {"str": "text", "int": "integer", "float": "number", "Path": "path", "list": "text"}.get(kind, kind)


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    return "" if value is None or isinstance(value, bool | list | tuple) else f"`{value}`"


def architectures_part() -> str:
    """The architectures there are builders for."""
    from xinheng.engine.models.model import ALIASES, architectures

    rows = []
    for name in architectures():
        module = importlib.import_module(f"xinheng.engine.models.{name}")
        also = ", ".join(f"`{alias}`" for alias, target in ALIASES.items() if target == name)
        summary = (inspect.getdoc(module) or "").split("\n")[0]
        hooks = {"from_gguf": "GGUF", "from_hugging_face": "safetensors"}
        formats = [what for hook, what in hooks.items() if hasattr(module, hook)]
        rows.append((f"`{name}`", also, ", ".join(formats), prose(summary)))
    return table(("Architecture", "Also", "Read from", "What it is"), rows)


def schemes_part() -> str:
    """The packed weight schemes."""
    from xinheng.core.schemes import SCHEMES

    rows = [
        (f"`{s.name}`", str(s.block), str(s.block_bytes), f"{s.bits:g}") for s in SCHEMES.values() if s.dense is None
    ]
    dense = ", ".join(f"`{s.name}`" for s in SCHEMES.values() if s.dense is not None)
    packed = table(("Scheme", "Values per block", "Bytes per block", "Bits per value"), rows)
    return f"{packed}\n\nDense schemes store one number per value: {dense}."


def dtypes_part() -> str:
    """The element types."""
    from xinheng.core.ir import DTYPES

    return ", ".join(f"`{name}`" for name in DTYPES) + "."


def sampling_part() -> str:
    """The parameters of a request."""
    from xinheng.engine import SamplingParams

    fields = SamplingParams.model_fields.items()
    rows = [(f"`{name}`", f"`{field.default}`", prose(field.description or "")) for name, field in fields]
    return table(("Parameter", "Default", "Allowed"), rows)


def support_part() -> str:
    """What ran where, from docs/support.toml and the backends and vendors that have no record in it."""
    records = tomllib.loads((ROOT / "docs" / "support.toml").read_text(encoding="utf-8"))["record"]
    rows = [(f"`{r['device']}`", r["evidence"], r["where"], r["what"], r["how"]) for r in records]
    recorded = {r["device"].partition(":")[0] for r in records}
    vendors = tomllib.loads((ROOT / "backends" / "_vendors" / "vendors.toml").read_text(encoding="utf-8"))
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    for name in sorted({*vendors, *entries["xinheng.backends"]} - recorded):
        what = "" if name in entries["xinheng.backends"] else "by a row of the table of the backend `generic`"
        rows.append((f"`{name}`", "nothing", vendors.get(name, {}).get("vendor", ""), what, ""))
    return table(("Device", "Evidence", "Where", "What ran", "How to repeat it"), rows)


def certificates_part() -> str:
    """What was proven: the certificates in docs/reports, each read and held against its digest."""
    from xinheng.core.certificate import Certificate
    from xinheng.core.errors import XinhengError
    from xinheng.core.signature import read_document, verify

    rows = []
    for path in sorted((ROOT / "docs" / "reports").glob("*.json")):
        try:
            document = read_document(path)
            verify(document)
            made = Certificate.read(document, path.name)
        except XinhengError as error:
            raise DocumentationError(f"docs/reports/{path.name}: {error}") from None
        device, kill = made.device, "" if made.kill_rate is None else f"{made.kill_rate:.1%}"
        where = f"{device.name}, {device.driver}" if device.driver else device.name
        passed = f"{made.passed:,} of {made.items:,}, {made.debt:,} known failures"
        plugin, mode = f"{device.plugin} {device.plugin_version}", f"{made.mode.numerics}, {made.mode.capture}"
        day, suite = made.issued.partition("T")[0], f"{made.suite_version}, {kill}" if kill else made.suite_version
        rows.append((f"`{device.spec}`", made.badge, where, plugin, mode, passed, suite, day))
    if not rows:
        return "None yet."
    return table(
        ("Device", "Level", "Where", "Plugin", "Mode", "Items that passed", "Suite, kill rate", "Issued"), rows
    )


def levels_part() -> str:
    """The levels of certificates, each with what it adds."""
    from xinheng.conformance.running.levels import levels

    columns = ("Level", "The device", "Ops added", "In dtypes", "Determinism")
    rows = [(one.name, one.title, str(len(one.ops)), _code(one.dtypes), one.determinism) for one in levels()]
    return "\n\n".join([table(columns, rows), *(f"{one.name} adds {_code(one.ops)}." for one in levels())])


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def programs_part() -> str:
    """The programs a kernel may implement beside the reference of its op; of rounding points, those with one."""
    from xinheng.conformance.programs import PROGRAMS, REFERENCE

    found: dict[tuple[str, str, bool], list[str]] = {}
    for op, programs in PROGRAMS.items():
        for name, program in programs.items():
            if name != REFERENCE and len(program.points) < 2:
                found.setdefault((name, program.text, program.declared), []).append(op)
    rows = [
        (f"`{name}`", prose(text), _code(ops), "if declared" if declared else "always")
        for (name, text, declared), ops in found.items()
    ]
    return table(("Program", "What it does", "Ops", "Admitted"), rows)


def distributions_part() -> str:
    """The distributions that cases draw their numbers from."""
    from xinheng.conformance.draw import DISTRIBUTIONS

    rows = [(f"`{name}`", d.text, "yes" if d.structured else "no") for name, d in DISTRIBUTIONS.items()]
    return table(("Distribution", "Numbers", "Structured"), rows)


def coverage_part() -> str:
    """For each device of this repository that opens anywhere: ops with a kernel, decomposed ops, and the rest."""
    from xinheng.core.ops import OPSET
    from xinheng.core.plugins import PluginManager

    rows = []
    for spec in ("cpu:0", "sim:exact"):
        kernels = set(PluginManager().open(spec).kernels.ops())
        names: dict[str, list[str]] = {"composite": [], "primitive": []}
        for op in OPSET.values():
            if op.name not in kernels:
                names[_kind(op)].append(f"`{op.name}`")
        have = f"{len(kernels & set(OPSET))} of {len(OPSET)}"
        rows.append((f"`{spec}`", have, *(", ".join(names[k]) or "none" for k in ("composite", "primitive"))))
    return table(("Device", "Ops with a kernel", "Decomposed", "Neither"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "architectures": architectures_part,
    "certificates": certificates_part,
    "commands": commands_part,
    "coverage": coverage_part,
    "distributions": distributions_part,
    "dtypes": dtypes_part,
    "levels": levels_part,
    "ops": ops_part,
    "programs": programs_part,
    "sampling": sampling_part,
    "schemes": schemes_part,
    "settings": settings_part,
    "support": support_part,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or with `--check` only compare: 0 is success, 1 stale pages or a part that cannot be made."""
    parser = argparse.ArgumentParser(description="Write the generated parts of README and docs.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for page in pages():
        where = str(page.relative_to(ROOT))
        old = page.read_text(encoding="utf-8")
        try:
            new = refreshed(old, where)
        except DocumentationError as error:
            print(f"generate_docs: {error}", file=sys.stderr)
            return 1
        if new != old:
            stale.append(where)
            if not check:
                page.write_text(new, encoding="utf-8")
    for where in stale:
        print(f"{where}: {'stale' if check else 'written'}")
    if check and stale:
        print("run 'python scripts/generate_docs.py' in the development environment, or 'make fix'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
