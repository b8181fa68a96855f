"""Figures of one or several runs as Markdown, for people who read rather than run.

    python -m tests.benchmarks --json run-1.json      # on any machine, on any day
    python -m tests.benchmarks --table run-1.json run-2.json

Of one run a figure is the median of its rounds, with the lowest and highest. Of several it is the
median of their medians, with the lowest and highest of these.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.measure import PEER, RAW, Target

Row = Mapping[str, Any]

_HEADINGS = ("", "here", "the same by plain code", "Apache BookKeeper", "ratios")


def provenance(directory: Path) -> dict[str, Any]:
    """When and where a run was made."""
    model = platform.processor() or platform.machine()
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        named = [line for line in cpu.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else model
    return {
        "date": datetime.now(tz=timezone.utc).date().isoformat(),
        "machine": {
            "cpu": model,
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / (1 << 30)),
            "file_system": _file_system(directory),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "load_before": round(os.getloadavg()[0], 1),
        },
    }


def _file_system(directory: Path) -> str:
    found = max(
        (
            part
            for part in psutil.disk_partitions(all=True)
            if _is_below(directory, part.mountpoint)
        ),
        key=lambda part: len(part.mountpoint),
        default=None,
    )
    return found.fstype if found is not None else "?"


def _is_below(path: Path, top: str) -> bool:
    return path.resolve().is_relative_to(top)


def markdown(files: Sequence[Path]) -> str:
    """The table of these runs, and under it where its figures come from."""
    runs = read(files)
    lines = [
        "| " + " | ".join(_HEADINGS) + " |",
        "|" + "---|" * len(_HEADINGS),
        *(figure.line() for figure in figures(runs).values()),
        "",
    ]
    several = "medians of the runs (lowest to highest median)"
    one = "medians of the rounds (lowest to highest)"
    lines.append(f"Ratios are here / there, within the rounds; {several if runs[1:] else one}.")
    lines += told(runs)
    return "\n".join(lines) + "\n"


def read(files: Iterable[Path]) -> list[Mapping[str, Any]]:
    """What ``--json`` wrote."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def told(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """When and where runs were made, as a list: those of one day on one machine are one line."""
    loads: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        machine = run["machine"]
        words = [
            f"{machine['cores']} cores ({machine['cpu']})",
            f"{machine['memory_gib']} GiB",
            machine["file_system"],
            machine["system"],
            f"Python {machine['python']}",
        ]
        size = "small sizes, which measure little" if run.get("quick") else "full sizes"
        where = f"{', '.join(words)}; {size}"
        loads.setdefault((run["date"], where), []).append(machine["load_before"])
    return [
        f"* {date}, {_runs(len(some))} that began at a load of {_between(some)}: {where}."
        for (date, where), some in loads.items()
    ]


def _runs(count: int) -> str:
    return "a run" if count == 1 else f"{count} runs"


def _between(numbers: Sequence[float]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


@dataclass
class Figure:
    """One thing that was measured, over all runs."""

    what: str
    unit: str
    ours: list[Mapping[str, float]] = field(default_factory=list)
    theirs: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    """By the name of the contender."""
    ratios: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    """The same of ours / theirs."""
    targets: dict[str | None, Target] = field(default_factory=dict)
    """Of the ratio to a contender; of the figure itself, where there is no name."""

    def line(self) -> str:
        ratios = [
            f"{name}: {shown(spreads)}{self._verdict(name)}"
            for name, spreads in self.ratios.items()
        ]
        cells = [
            self.what,
            shown(self.ours, self.unit) + self._verdict(None),
            *(shown(self.theirs.get(self._first(kind), ()), self.unit) for kind in (RAW, PEER)),
            "; ".join(ratios),
        ]
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    def missed(self) -> list[str | None]:
        """Whose target is not met by the median over all runs; without a name: its own."""
        return [
            name
            for name, target in self.targets.items()
            if not target.is_met(_middle(self.ours if name is None else self.ratios[name]))
        ]

    def _verdict(self, name: str | None) -> str:
        if name not in self.targets:
            return ""
        return f", {self.targets[name]} {'**missed**' if name in self.missed() else 'met'}"

    def _first(self, kind: str) -> str:
        """Of several contenders of a kind, the first is shown."""
        return next((name for name in self.theirs if name.startswith(kind)), "")


def figures(runs: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Figure]:
    """By point and what was measured, in the order in which they are met first."""
    found: dict[tuple[str, str], Figure] = {}
    for run in runs:
        seen: set[tuple[str, str]] = set()
        for row in run["rows"]:
            if "ours" not in row:
                continue
            key = row["point"], row["what"]
            figure = found.setdefault(key, Figure(f"{row['what']} ({row['point']})", row["unit"]))
            if key not in seen:
                seen.add(key)
                figure.ours.append(row["ours"])
            _take(figure, row)
    return found


def _take(figure: Figure, row: Row) -> None:
    name = row.get("against")
    if "ratio" in row:
        figure.theirs.setdefault(str(name), []).append(row["theirs"])
        figure.ratios.setdefault(str(name), []).append(row["ratio"])
    if "is_met" in row:
        figure.targets[name] = Target.of(row["target"])


def _middle(spreads: Sequence[Mapping[str, float]]) -> float:
    return statistics.median(spread["median"] for spread in spreads)


def shown(spreads: Sequence[Mapping[str, float]], unit: str = "") -> str:
    """The median with the lowest and highest; nothing of nothing."""
    if not spreads:
        return ""
    if len(spreads) == 1:
        low, high = spreads[0]["low"], spreads[0]["high"]
    else:
        medians = [spread["median"] for spread in spreads]
        low, high = min(medians), max(medians)
    return f"{_number(_middle(spreads))} {unit}".strip() + f" ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    """With three digits: the rounds differ in the second."""
    return f"{float(f'{value:.3g}'):,.10g}"
