"""Medians, spreads and ratios of the samples that `compare.py` took.

python benchmarks/summary.py results.jsonl [...] [--reference NAME]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BETTER_LOW = ("cold start, s", "peak RSS, MiB")
"""Measures of which less is better."""


@dataclass(frozen=True)
class Measured:
    """All undisturbed samples of one measure of an engine.

    `values` go by (run, round), since ratios are taken between samples of one round; `shares` are those of the memory's
    bandwidth, each against what was measured just before and after the sample; `left_out` were disturbed.
    """

    model: str
    what: str
    peer: str
    values: Mapping[tuple[int, int], float]
    shares: Sequence[float]
    left_out: int

    @property
    def median(self) -> float:
        return statistics.median(self.values.values())

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values.values()), max(self.values.values())

    def ratio(self, other: Measured) -> tuple[float, float, float] | None:
        """How many times better than another engine: the ratio of medians, and the least and most of any round."""
        less = self.what in BETTER_LOW

        def better(a: float, b: float) -> float:
            return b / a if less else a / b

        found = [better(self.values[key], other.values[key]) for key in self.values if key in other.values]
        return (better(self.median, other.median), min(found), max(found)) if found else None


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The lines of result files, each with the number of its run."""
    found: list[dict[str, Any]] = []
    run = 0
    for path in paths:
        for line in path.read_text().splitlines():
            result = json.loads(line)
            run += result["kind"] == "machine"
            found.append({"run": run, **result})
    return found


def measures(results: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """Every measure of every engine, in the order in which they were taken first."""
    values: dict[tuple[str, str, str], dict[tuple[int, int], float]] = {}
    shares: dict[tuple[str, str, str], list[float]] = {}
    left_out: dict[tuple[str, str, str], int] = {}
    for result in results:
        if result["kind"] != "sample" or "error" in result:
            continue
        for what, value in _values(result).items():
            key = result["model"], what, result["peer"]
            if result["disturbed"] and what != "peak RSS, MiB":  # memory does not depend on what else runs
                left_out[key] = left_out.get(key, 0) + 1
                continue
            values.setdefault(key, {})[result.get("run", 0), result["round"]] = value
            if result.get("bandwidth") and what.startswith("decode"):
                shares.setdefault(key, []).append(value * result["weights"] / result["bandwidth"])
    return [Measured(*key, found, shares.get(key, ()), left_out.get(key, 0)) for key, found in values.items()]


def _values(result: Mapping[str, Any]) -> dict[str, float]:
    if result["phase"] == "cold":
        found = {"cold start, s": result["cold_seconds"]}
        return found | ({"peak RSS, MiB": result["peak_rss"] / 2**20} if "peak_rss" in result else {})
    return {result["what"]: result["rate"]} if "rate" in result else {}


def tables(found: Sequence[Measured], reference: str) -> dict[tuple[str, str], list[list[str]]]:
    """Rows per model and measure, the best first: engine, median, spread, samples, ratio to the reference, share."""
    made: dict[tuple[str, str], list[list[str]]] = {}
    for model, what in dict.fromkeys((m.model, m.what) for m in found):
        members = [m for m in found if (m.model, m.what) == (model, what)]
        members.sort(key=lambda m: m.median if what in BETTER_LOW else -m.median)
        base = next((m for m in members if m.peer == reference), None)
        made[model, what] = [_row(member, base) for member in members]
    return made


def _row(member: Measured, base: Measured | None) -> list[str]:
    low, high = member.spread
    count = f"{len(member.values)}" + (f" ({member.left_out} left out)" if member.left_out else "")
    ratio = base.ratio(member) if base is not None else None
    told = f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio and base is not member else ""
    share = f"{100 * statistics.median(member.shares):.0f} %" if member.shares else ""
    return [member.peer, f"{member.median:.4g}", f"{low:.4g} to {high:.4g}", count, told, share]


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def summary(results: Iterable[Mapping[str, Any]], reference: str) -> str:
    """All tables as Markdown. The ratio says how many times better the reference is than each engine."""
    columns = ("engine", "median", "spread", "samples", f"{reference} is better by", "of bandwidth")
    parts = []
    for (model, what), rows in tables(measures(results), reference).items():
        unit = "" if what in BETTER_LOW else ", tokens/s"
        parts.append(f"\n### {model}: {what}{unit}\n\n{markdown(columns, rows)}")
    return "\n".join(parts)


def machine_text(result: Mapping[str, Any]) -> str:
    """The machine of a run in one line."""
    rates = "".join(f", {kind} {rate / 1e9:.0f} Gop/s" for kind, rate in result["limits"].get("rates", {}).items())
    bandwidth = result["limits"].get("bandwidth", 0.0) / 1e9
    cores = f"{result['cores']} cores, {result['threads']} threads used"
    return f"{result['processor']}, {cores}, {result['memory'] / 2**30:.0f} GiB (reads {bandwidth:.0f} GB/s{rates})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--reference", default="xinheng")
    args = parser.parse_args()
    print(summary(read(args.files), args.reference))


if __name__ == "__main__":
    main()
