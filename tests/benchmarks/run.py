"""Measures this library beside the limit of the machine and beside Apache BookKeeper."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from spark_bookkeeper.protocol.quorum import Quorum
from tests.benchmarks import (
    appending,
    auditing,
    buckets,
    compacting,
    feeling,
    frames,
    many,
    profiling,
    recovering,
    sources,
)
from tests.benchmarks import table as tables
from tests.benchmarks.lab import FULL, QUICK, Lab
from tests.benchmarks.measure import Exact, Line, Skipped, measure
from tests.support.costs import append_cost, recovery_cost

Item = Line | Exact | Skipped


def costs(lab: Lab) -> Iterator[Exact]:
    """P10."""
    quorum = Quorum(3, 3, 2)
    nothing = {"syncs": 0, "listings": 0, "metadata_reads": 0, "metadata_writes": 0}
    yield Exact(
        "P10",
        "10 appends to a ledger of 3/3/2",
        append_cost(lab.scratch("append-cost"), quorum, 10).counted(),
        {"puts": 30, **nothing},
    )
    yield Exact(
        "P10",
        "recovery of an empty ledger of 3/3/2",
        recovery_cost(lab.scratch("recovery-cost"), quorum).counted(),
        {"puts": 3, "syncs": 0, "listings": 3, "metadata_reads": 1, "metadata_writes": 2},
    )


WIDTH = 180
"""Of the table in a file or a pipe."""

POINTS: Mapping[str, Callable[[Lab], Iterator[Item]]] = {
    "P1": appending.bulk,
    "P2": frames.writing,
    "P3": appending.small,
    "P4": appending.windowed,
    "P5": lambda lab: chain(frames.scanning(lab), feeling.reading(lab)),
    "P6": recovering.ledgers,
    "P7": recovering.bookie,
    "P8": auditing.ledgers,
    "P9": appending.growth,
    "P10": costs,
    "B1": buckets.recovery,
    "B2": buckets.rereplication,
    "C1": compacting.reading,
    "S1": sources.writing,
    "S2": sources.scanning,
    "S3": sources.batches,
    "S4": sources.first_row,
    "S5": sources.latency,
    "START": feeling.starting,
}

MARKED: Final = "P6 and P7 of many"
"""With ``--many`` alone."""


SOURCES: Final = frozenset(point for point in POINTS if point.startswith("S"))


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _arguments(arguments)
    if asked.table:
        print(tables.markdown(asked.table), end="")
        return 0
    sizes = QUICK if asked.quick else FULL
    if asked.million:
        sizes = replace(sizes, audited=1_000_000)
    if asked.rounds:
        sizes = replace(sizes, rounds=asked.rounds)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="benchmarks-", dir=asked.directory) as directory,
        Lab(
            Path(directory),
            sizes,
            has_peer=not (asked.no_peer or asked.profile),
            has_jobs=not asked.profile,
        ) as lab,
    ):
        where = tables.provenance(Path(directory))
        chosen = asked.profile or asked.only or list(POINTS)
        points = {point: POINTS[point] for point in chosen}
        if asked.many:
            points = {MARKED: many.ledgers}
        if {"P2", "P5", "P6", "P7", "B1", "B2", "C1", "START", *SOURCES, MARKED} & set(points):
            assert lab.spark is not None  # before the clusters, which pass it on
        for point, items in points.items():
            try:
                for item in items(lab):
                    if not asked.profile:
                        rows += _measured(item, console)
                    elif isinstance(item, Line):
                        profiling.profile(item.ours, console, f"{item.point} {item.what}")
            except Exception:  # the other points must not be lost with it
                console.print_exception(max_frames=8)
                failed.append(point)
                rows.append({"point": point, "what": "the rest of it", "reason": "it failed"})
    if asked.profile:
        return 1 if failed else 0
    console.print(table(rows))
    if asked.json is not None:
        said = {"quick": asked.quick, **where, "rows": rows}
        asked.json.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _measured(item: Item, console: Console) -> list[dict[str, Any]]:
    base = {"point": item.point, "what": item.what}
    if isinstance(item, Skipped):
        return [{**base, "reason": item.reason}]
    if isinstance(item, Exact):
        exact = {"counted": dict(item.counted), "expected": dict(item.expected)}
        return [{**base, **exact, "is_met": item.is_met}]
    with console.status(f"{item.point} {item.what}") as status:
        measured = measure(
            item,
            lambda number, name: status.update(
                f"{item.point} {item.what}: round {number + 1} of {item.rounds}, {name}"
            ),
        )
    rows = list(measured.rows())
    for row in rows:  # as they come: a run takes long, and may be ended
        console.print(_sentence(row), highlight=False)
    return rows


def _sentence(row: Mapping[str, Any]) -> str:
    cells = _cells(row)
    return "  ".join(cell for cell in cells if cell)


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Everything that was measured; the ratio is ours / theirs, median (lowest to highest)."""
    shown = Table(title="ours / theirs: median of the rounds (lowest to highest)")
    for heading in ("", "what", "ours", "against", "theirs", "ratio", "target", ""):
        shown.add_column(heading, overflow="fold")
    before = ""
    for row in rows:
        cells = _cells(row)
        if cells[1] == before:  # another comparison of the same
            cells[:3] = ["", "", ""]
        else:
            before = cells[1]
            shown.add_section()
        shown.add_row(*cells)
    return shown


def _cells(row: Mapping[str, Any]) -> list[str]:
    sizes = f"\n[dim]{row['sizes']}[/dim]" if "sizes" in row else ""
    cells = [row["point"], row["what"] + sizes]
    if "counted" in row:
        counts = [f"{n} {name}" for name, n in row["counted"].items() if n]
        none = [name for name, n in row["counted"].items() if not n]
        said = ", ".join(counts) + (f", no {', no '.join(none)}" if none else "")
        cells += [said, "", "", "", "exactly", _verdict(row)]
    elif "ours" not in row:
        cells += ["", "", "", "", "", f"not measured: {row['reason']}"]
    else:
        unit = row["unit"]
        ours = f"{_number(row['ours']['median'])} {unit}"
        theirs = ratio = ""
        if "ratio" in row:
            spread = row["ratio"]
            theirs = f"{_number(row['theirs']['median'])} {unit}"
            ratio = f"{spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})"
        elif row.get("against") is None and "target" in row:
            spread = row["ours"]
            ratio = f"({_number(spread['low'])} to {_number(spread['high'])})"
        cells += [ours, row.get("against") or "", theirs, ratio, row.get("target", "")]
        cells.append(f"not measured: {row['reason']}" if "reason" in row else _verdict(row))
    return cells


def _verdict(row: Mapping[str, Any]) -> str:
    if "is_met" not in row:
        return ""
    return "[green]met[/green]" if row["is_met"] else "[red]missed[/red]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything run?")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"of each line; default: {FULL.rounds}"
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--only", type=_points, help="some of them: --only P1,P3")
    chosen.add_argument(
        "--many",
        action="store_true",
        help="P6 and P7 alone, once, with 100,000 small ledgers; takes minutes and 6 GB",
    )
    chosen.add_argument(
        "--profile", type=_points, help="measure nothing; show where our time goes: --profile P3"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument(
        "--table",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing; print what --json wrote, of one or several runs, as Markdown",
    )
    parser.add_argument(
        "--million", action="store_true", help="P8 with 1,000,000 ledgers; takes minutes to make"
    )
    parser.add_argument("--no-peer", action="store_true", help="without Apache BookKeeper")
    parser.add_argument(
        "--directory", type=Path, help="where to write: the disk that is measured; default: TMPDIR"
    )
    return parser.parse_args(arguments)


def _points(text: str) -> list[str]:
    points = [word.strip().upper() for word in text.split(",") if word.strip()]
    unknown = [point for point in points if point not in POINTS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)} is not measured here; there are {', '.join(POINTS)}"
        )
    return points


if __name__ == "__main__":
    sys.exit(main())
