"""Makes ``tests/DURATIONS.md``: ``python -m tests.durations`` runs the tests and notes their times.

A time is that of a test with its set-up and its end, in seconds, in one of the workers: it counts
waiting too. Whoever adds or moves tests compares the new page with the old one.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

PAGE: Final = Path(__file__).with_name("DURATIONS.md")
SLOWEST: Final = 100


class Seconds:
    """A plugin of pytest that notes how long each test takes, and which fail."""

    def __init__(self) -> None:
        self.by_test: dict[str, float] = defaultdict(float)
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_test[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)


def main() -> int:
    """Run the plain run; write the page if it passes."""
    noted = Seconds()
    began = time.monotonic()
    code = pytest.main(["-q"], plugins=[noted])
    if code == 0:
        PAGE.write_text(page(noted.by_test, time.monotonic() - began))
    return int(code)


def page(seconds: dict[str, float], whole: float) -> str:
    folders: dict[str, list[float]] = defaultdict(list)
    for test, took in seconds.items():
        folders[test.split("/")[1]].append(took)
    by_folder = sorted(folders.items(), key=lambda item: -sum(item[1]))
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST]
    rows = [f"| {name} | {sum(took):.0f} | {len(took)} |" for name, took in by_folder]
    tests = [f"| {test.removeprefix('tests/')} | {took:.1f} |" for test, took in slowest]
    return "\n".join(
        [
            "# How long the tests take",
            "",
            f"`python -m tests.durations` made this page. The plain run has {len(seconds)} tests. "
            f"It took {whole:.0f} s; in all workers together they took "
            f"{sum(seconds.values()):.0f} s.",
            "",
            *("| folder | seconds | tests |", "|---|--:|--:|", *rows),
            "",
            *("| test | seconds |", "|---|--:|", *tests),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
