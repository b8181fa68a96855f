"""Makes ``tests/DURATIONS.md``: ``python -m tests.durations`` runs the tests and notes their times.

A time is that of a test with its set-up and its end, in seconds, in one of the workers: it counts
waiting too. Whoever adds or moves tests compares the new page with the old one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

PAGE: Final = Path(__file__).with_name("DURATIONS.md")
SLOWEST: Final = 100


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        began = time.monotonic()
        run = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *sys.argv[1:]]
        code = subprocess.run(run, check=False).returncode
        PAGE.write_text(page(seconds_of(report), time.monotonic() - began, sys.argv[1:]))
    return code


def seconds_of(report: Path) -> dict[str, float]:
    """The seconds of each test, by file and name, from a JUnit report."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        module, name = case.get("classname", ""), case.get("name", "")
        seconds[f"{module.replace('.', '/')}::{name}"] += float(case.get("time", 0))
    return seconds


def page(seconds: dict[str, float], whole: float, arguments: list[str]) -> str:
    folders: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for test, took in seconds.items():
        folder = test.split("/")[1]
        folders[folder] += took  # type: ignore[assignment]  # seconds are no whole numbers
        tests[folder] += 1
    command = " ".join(["python -m pytest", *arguments])
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST]
    return "\n".join(
        [
            "# How long the tests take",
            "",
            f"`python -m tests.durations` made this page. `{command}` ran {len(seconds)} tests in "
            f"{whole:.0f} s; the tests took {sum(seconds.values()):.0f} s in all workers together.",
            "",
            *table(("folder", "seconds", "tests"), "|---|--:|--:|"),
            *(f"| {name} | {took:.0f} | {tests[name]} |" for name, took in folders.most_common()),
            "",
            *table(("test", "seconds"), "|---|--:|"),
            *(f"| {test.removeprefix('tests/')} | {took:.1f} |" for test, took in slowest),
            "",
        ]
    )


def table(columns: Iterable[str], rule: str) -> list[str]:
    return ["| " + " | ".join(columns) + " |", rule]


if __name__ == "__main__":
    sys.exit(main())
