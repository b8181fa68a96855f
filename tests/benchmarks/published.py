"""What README.md and FIGURES.md say of the runs that are kept in ``runs/``.

    python -m tests.benchmarks --json tests/benchmarks/runs/2026-11-22-a.json   # a quiet machine
    python -m tests.benchmarks.published                                        # writes both

Runs of older code are taken away when new ones are put there; while there are none, both documents
say since which decisions the code has changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.table import Figure, figures, markdown, read, shown

HERE: Final = Path(__file__).resolve().parent

README: Final = HERE.parents[1] / "README.md"

PAGE: Final = HERE / "FIGURES.md"

MARK: Final = "<!-- made by `python -m tests.benchmarks.published` -->"

END: Final = "<!-- until here -->"


@dataclass(frozen=True)
class Chosen:
    """A line of the short table."""

    point: str
    what: str
    words: str
    """For people who do not know the points."""
    raw: tuple[str, str] | None = None
    """The contender of plain code, and what to say of it."""
    peer: tuple[str, str] | None = None


CHOSEN: Final = (
    Chosen(
        "P3",
        "one small append, synchronous, p50",
        "one append of 1 KB, waited for",
        ("raw: a new file for each", "a new file on each bookie"),
        ("BookKeeper, flushing when idle", "its quickest setting"),
    ),
    Chosen(
        "P4",
        "appends of 100 B, window of 1,000",
        "appends of 100 B, a thousand on their way",
        ("raw", "one write for all"),
        ("BookKeeper", ""),
    ),
    Chosen(
        "P1",
        "bulk append of Arrow data, 1 KB rows, 3/3/2, fsynced",
        "append of Arrow data",
        ("raw", "three files, synced"),
        ("BookKeeper, 1 MB entries", "1 MB entries"),
    ),
    Chosen(
        "P5",
        "scan of 1 KB rows into a Spark job",
        "scan into Spark, every digest verified",
        ("raw", "not verified"),
        ("BookKeeper, 1 MB entries", "1 MB entries"),
    ),
    Chosen(
        "P7",
        "re-replication of a lost bookie, as a Spark job",
        "copies of a lost bookie, large files",
        ("raw, verified as ours", "verified too"),
    ),
    Chosen(
        "P6",
        "recovery of small ledgers: one Spark job, BookKeeper 32 at a time",
        "small ledgers recovered, by one job",
        ("raw: the same, 32 at a time", "the same writes, 32 at a time"),
        ("BookKeeper", "32 at a time"),
    ),
)


def runs() -> list[Path]:
    return sorted((HERE / "runs").glob("*.json"))


def short(files: Sequence[Path]) -> str:
    """The table of the README."""
    found = figures(read(files))
    lines = ["| | here | the same by plain code | Apache BookKeeper |", "|---|---|---|---|"]
    for chosen in CHOSEN:
        figure = found.get((chosen.point, chosen.what))
        if figure is None:  # no run that is kept has it
            continue
        cells = [shown(figure.ours, figure.unit)]
        cells += [_cell(figure, contender) for contender in (chosen.raw, chosen.peer)]
        lines.append(f"| {chosen.words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(figure: Figure, contender: tuple[str, str] | None) -> str:
    if contender is None:
        return ""
    name, words = contender
    said = shown(figure.theirs[name], figure.unit)
    return f"{said}: {words}" if words else said


def missed(files: Sequence[Path]) -> Iterator[str]:
    """What FIGURES.md has to account for, as its headings name it."""
    for figure in figures(read(files)).values():
        if figure.missed():
            yield figure.what


def accounted(text: str) -> set[str]:
    """What its chapter on missed targets tells of."""
    return set(re.findall(r"^### (.+)$", text, re.MULTILINE))


def with_table(text: str, table: str) -> str:
    """A document with this table in the place of the one that it has."""
    before, _, rest = text.partition(MARK)
    _, _, behind = rest.partition(END)
    return f"{before}{MARK}\n\n{table.strip()}\n\n{END}{behind}"


def documents(files: Sequence[Path]) -> dict[Path, str]:
    """Both as they should be."""
    return {
        README: with_table(README.read_text(encoding="utf-8"), short(files)),
        PAGE: with_table(PAGE.read_text(encoding="utf-8"), markdown(files)),
    }


if __name__ == "__main__":
    for path, text in documents(runs()).items():
        path.write_text(text, encoding="utf-8")
