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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

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
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    lines = [
        "| " + " | ".join(_HEADINGS) + " |",
        "|" + "---|" * len(_HEADINGS),
        *(figure.line() for figure in _figures(runs)),
        "",
    ]
    several = "medians of the runs (lowest to highest median)"
    one = "medians of the rounds (lowest to highest)"
    lines.append(f"Ratios are here / there, within the rounds; {several if runs[1:] else one}.")
    lines += [_told(run) for run in runs]
    return "\n".join(lines) + "\n"


def _told(run: Mapping[str, Any]) -> str:
    machine = run.get("machine", {})
    words = [
        f"{machine.get('cores', '?')} cores ({machine.get('cpu', '?')})",
        f"{machine.get('memory_gib', '?')} GiB",
        str(machine.get("file_system", "?")),
        str(machine.get("system", "?")),
        f"Python {machine.get('python', '?')}",
        f"load {machine.get('load_before', '?')} when it began",
    ]
    size = "small sizes, which measure little" if run.get("quick") else "full sizes"
    return f"* {run.get('date', 'no date')}: {', '.join(words)}; {size}."


@dataclass
class _Figure:
    """One thing that was measured, over all runs."""

    what: str
    unit: str
    ours: list[Mapping[str, float]] = field(default_factory=list)
    raw: list[Mapping[str, float]] = field(default_factory=list)
    peer: list[Mapping[str, float]] = field(default_factory=list)
    others: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    """Ratios by the name of the contender."""

    def line(self) -> str:
        cells = [
            self.what,
            *(_shown(spreads, self.unit) for spreads in (self.ours, self.raw, self.peer)),
            "; ".join(f"{name}: {_shown(spreads, '')}" for name, spreads in self.others.items()),
        ]
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _figures(runs: Iterable[Mapping[str, Any]]) -> Iterator[_Figure]:
    """In the order in which they are met first."""
    figures: dict[tuple[str, str], _Figure] = {}
    for run in runs:
        seen: set[tuple[str, str]] = set()
        for row in run["rows"]:
            if "ours" not in row:
                continue
            key = row["point"], row["what"]
            figure = figures.setdefault(
                key, _Figure(f"{row['what']} ({row['point']})", row["unit"])
            )
            if key not in seen:
                seen.add(key)
                figure.ours.append(row["ours"])
            _take(figure, row)
    yield from figures.values()


def _take(figure: _Figure, row: Row) -> None:
    if "ratio" not in row:
        return
    name = str(row["against"])
    figure.others.setdefault(name, []).append(row["ratio"])
    first = next(n for n in figure.others if _kind(n) == _kind(name))
    if name == first and _kind(name) is not None:  # beside others of its kind, the first is shown
        (figure.raw if _kind(name) == "raw" else figure.peer).append(row["theirs"])


def _kind(name: str) -> str | None:
    return next((kind for kind in ("raw", "BookKeeper") if name.startswith(kind)), None)


def _shown(spreads: Sequence[Mapping[str, float]], unit: str) -> str:
    if not spreads:
        return ""
    if len(spreads) == 1:
        middle, low, high = (spreads[0][name] for name in ("median", "low", "high"))
    else:
        medians = [spread["median"] for spread in spreads]
        middle, low, high = statistics.median(medians), min(medians), max(medians)
    return f"{_number(middle)} {unit}".strip() + f" ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
