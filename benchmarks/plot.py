"""Draw what `compare.py` found: growth with context, batch and model size, as SVG files and one HTML page.

    python benchmarks/plot.py benchmarks/results/*.jsonl --out docs/performance --page docs/performance.md

`--page` also writes the tables, between the comments `results` and `end of results` of a page. `--html` writes a page
with all of it that needs nothing else.
"""

from __future__ import annotations

import argparse
import html
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from summary import Measured, machine_text, measures, read, summary

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 380, 64, 34, 190, 46
COLOURS = ("#2256c7", "#b45309", "#0f7b6c", "#7c3aed", "#b3261e", "#5a6577", "#0891b2", "#a16207")
DARK = ("#8ab1ff", "#f2a65a", "#4fd0bd", "#c4a5ff", "#ff8f85", "#9aa6b8", "#67e8f9", "#facc15")
STYLE = "".join(
    [
        "svg{font:12px system-ui,sans-serif;background:#fff}text{fill:#1b2230}.grid{stroke:#dde2ea}.axis{fill:#5a6577}",
        *(f".s{i}{{stroke:{c};fill:{c}}}" for i, c in enumerate(COLOURS)),
        "polyline{fill:none!important;stroke-width:2}",
        "@media (prefers-color-scheme:dark){svg{background:#181e28}text{fill:#e7ebf2}.grid{stroke:#2c3544}",
        ".axis{fill:#9aa6b8}",
        *(f".s{i}{{stroke:{c};fill:{c}}}" for i, c in enumerate(DARK)),
        "}text{stroke:none!important}",
    ]
)


Scale = Callable[[float], float]
"""From a quantity to pixels."""


@dataclass(frozen=True)
class Line:
    """An engine: its medians with least and most, from left to right."""

    name: str
    points: Sequence[tuple[float, float, float, float]]


@dataclass(frozen=True)
class Figure:
    """Lines over one quantity, both axes logarithmic."""

    file: str
    title: str
    axis: str
    lines: Sequence[Line]


def figures(results: Iterable[Measured], sizes: dict[str, float]) -> list[Figure]:
    """All figures for which there is something to see; `sizes` are bytes of weights per model."""
    found = list(results)
    made = []
    for model in dict.fromkeys(m.model for m in found):
        own = [m for m in found if m.model == model]
        for prefix, name, title, axis in (
            ("decode at ", "context", "decode of one sequence", "tokens in the cache"),
            ("batch ", "batch", "decode steps", "sequences that run together"),
            ("prefill ", "prompt", "prefill", "tokens of the prompt"),
        ):
            lines = _lines(own, prefix)
            if any(len(line.points) > 1 for line in lines):
                made.append(Figure(f"{model}-{name}", f"{model}: {title}, tokens/s", axis, lines))
    lines = _by_size(found, sizes)
    if any(len(line.points) > 1 for line in lines):
        made.append(Figure("model-size", "decode of one sequence, tokens/s", "MB of weights", lines))
    return made


def _lines(found: Sequence[Measured], prefix: str) -> list[Line]:
    members: dict[str, list[tuple[float, float, float, float]]] = {}
    for m in found:
        number = m.what.removeprefix(prefix)
        if m.what.startswith(prefix) and number.isdigit():
            members.setdefault(m.peer, []).append((float(number), m.median, *m.spread))
    return [Line(peer, sorted(points)) for peer, points in members.items()]


def _by_size(found: Sequence[Measured], sizes: dict[str, float]) -> list[Line]:
    members: dict[str, list[tuple[float, float, float, float]]] = {}
    for m in found:
        if m.what == "decode" and m.model in sizes:
            engine = m.peer.partition(" q")[0]  # the same engine has files of several kinds
            members.setdefault(engine, []).append((sizes[m.model] / 1e6, m.median, *m.spread))
    return [Line(peer, sorted(points)) for peer, points in members.items()]


def svg(figure: Figure) -> str:
    """A figure as a document of its own."""
    points = [p for line in figure.lines for p in line.points]
    xs, ys = [p[0] for p in points], [y for p in points for y in p[1:]]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys) * 0.9, max(ys) * 1.1

    def at_x(x: float) -> float:
        share = math.log(x / low_x) / math.log(high_x / low_x)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def at_y(y: float) -> float:
        share = math.log(y / low_y) / math.log(high_y / low_y)
        return round(TOP + (1 - share) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [f'<text x="{LEFT}" y="18" font-weight="600">{html.escape(figure.title)}</text>']
    for x in sorted(set(xs)):
        parts.append(f'<line class="grid" x1="{at_x(x)}" x2="{at_x(x)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        label = f'<text class="axis" x="{at_x(x)}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{x:g}</text>'
        parts.append(label)
    for y in _ticks(low_y, high_y):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y(y)}" y2="{at_y(y)}"/>')
        parts.append(f'<text class="axis" x="{LEFT - 8}" y="{at_y(y) + 4}" text-anchor="end">{y:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{figure.axis}</text>')
    for i, line in enumerate(figure.lines):
        parts += _drawn(line, f"s{i % len(COLOURS)}", at_x, at_y)
        y = TOP + 14 + 20 * i
        parts.append(f'<g class="s{i % len(COLOURS)}"><circle cx="{WIDTH - RIGHT + 18}" cy="{y - 4}" r="4"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 28}" y="{y}">{html.escape(line.name)}</text></g>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f'{head} role="img"><style>{STYLE}</style>{"".join(parts)}</svg>\n'


def _drawn(line: Line, kind: str, at_x: Scale, at_y: Scale) -> list[str]:
    places = " ".join(f"{at_x(x)},{at_y(y)}" for x, y, *_ in line.points)
    made = [f'<g class="{kind}"><polyline points="{places}"/>']
    for x, y, low, high in line.points:
        made.append(f'<line x1="{at_x(x)}" x2="{at_x(x)}" y1="{at_y(low)}" y2="{at_y(high)}"/>')
        told = f"{html.escape(line.name)}: {y:.4g}, from {low:.4g} to {high:.4g}"
        made.append(f'<circle cx="{at_x(x)}" cy="{at_y(y)}" r="3.5"><title>{told}</title></circle>')
    return [*made, "</g>"]


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, ... within the ends."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [digit * 10.0**power for power in powers for digit in (1, 2, 5) if low <= digit * 10.0**power <= high]


def section(results: list[dict[str, Any]], files: Iterable[str], reference: str) -> str:
    """Machines, tables and figures as Markdown; `files` are the figures relative to the page."""
    if not results:
        return "No results are committed."
    machines = dict.fromkeys(machine_text(result) for result in results if result["kind"] == "machine")
    images = "\n".join(f"![{Path(file).stem}]({file})" for file in files)
    return f"Measured on {'; and on '.join(machines)}.\n{summary(results, reference)}\n\n{images}".strip()


def with_results(page: str, text: str) -> str:
    """A page with `text` as its results.

    Raises:
        ValueError: it has no place for them.
    """
    head, start, rest = page.partition("<!-- results -->\n")
    _, end, tail = rest.partition("<!-- end of results -->")
    if not end:
        raise ValueError("the page has no comments <!-- results --> and <!-- end of results -->")
    return f"{head}{start}\n{text}\n\n{end}{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the SVG files")
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    parser.add_argument("--html", type=Path, help="also write a page with all figures and tables")
    parser.add_argument("--reference", default="xinheng")
    args = parser.parse_args()
    results = read(args.files)
    sizes = {r["model"]: float(r["weights"]) for r in results if r.get("peer") == args.reference and r.get("weights")}
    drawn = [(figure, svg(figure)) for figure in figures(measures(results), sizes)]
    args.out.mkdir(parents=True, exist_ok=True)
    for figure, text in drawn:
        (args.out / f"{figure.file}.svg").write_text(text, encoding="utf-8")
    if args.page is not None:
        files = [os.path.relpath(args.out / f"{figure.file}.svg", args.page.parent) for figure, _ in drawn]
        text = with_results(args.page.read_text(encoding="utf-8"), section(results, files, args.reference))
        args.page.write_text(text, encoding="utf-8")
    if args.html is not None:
        tables = html.escape(summary(results, args.reference))
        body = "".join(text for _, text in drawn) + f"<pre>{tables}</pre>"
        head = (
            '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>xinheng</title>'
        )
        args.html.write_text(head + body, encoding="utf-8")


if __name__ == "__main__":
    main()
