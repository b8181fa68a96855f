"""Runs every suite to its end, and fails unless each of them has passed.

A suite fails if a test of it fails, if it is cut off or never began, if it holds no test, and if it
skips a test for want of something that can be installed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

BUDGET_SECONDS: Final = 80 * 60
"""Ends a run that hangs. A run is expected to take 50 minutes on two cores."""

NOT_INSTALLABLE: Final = (
    "there is but one disk here",
    "mounting a small file system needs root",
    "files without a name are not supported here",
    "no file system that is synced as a whole",
    "belongs to somebody else",
)
"""Reasons to skip a test that name what a machine is, and not what it lacks."""


@dataclass(frozen=True)
class Suite:
    """A command, and the tests that it runs if it is one of pytest."""

    name: str
    command: Sequence[str]
    is_of_tests: bool = True

    def run(self, report: Path, seconds: float) -> str:
        """Run it for at most so many seconds; return its fault, or nothing."""
        if seconds <= 0:
            return "did not begin: no time was left"
        junit = (f"--junitxml={report}",) if self.is_of_tests else ()
        process = subprocess.Popen(
            [*self.command, *junit],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"was cut off after {seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):  # nothing of it is left behind, however it ends
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code != 0:
            return f"ended with exit code {code}"
        return fault_of(report) if self.is_of_tests else ""


def fault_of(report: Path) -> str:
    """Return the fault of a suite in which no test failed, from its JUnit report; or nothing."""
    tests = list(ElementTree.parse(report).iter("testcase"))
    if not tests:
        return "holds no test"
    skipped = [
        f"{test.get('classname')}::{test.get('name')}: {skip.get('message')}"
        for test in tests
        for skip in test.iter("skipped")
        if not any(reason in (skip.get("message") or "") for reason in NOT_INSTALLABLE)
    ]
    return "\n  ".join(["skipped tests:", *skipped]) if skipped else ""


def run_all(suites: Sequence[Suite], reports: Path, budget_seconds: float) -> int:
    """Run the suites one after the other, then list them; the exit code is 1 if one has a fault."""
    began = time.monotonic()
    rows: list[tuple[str, float, str]] = []
    for number, suite in enumerate(suites):
        begins = time.monotonic()
        print(f"\n== {suite.name}, {begins - began:.0f} s after the first", flush=True)
        fault = suite.run(reports / f"{number}.xml", budget_seconds - (begins - began))
        rows.append((suite.name, time.monotonic() - begins, fault))
    print(f"\n== {len(suites)} suites in {time.monotonic() - began:.0f} s", flush=True)
    for name, seconds, fault in rows:
        print(f"{'FAILED' if fault else 'passed'} {seconds:5.0f} s  {name}  {fault}", flush=True)
    return 1 if any(fault for _, _, fault in rows) else 0


def oldest_spark() -> str:
    """The oldest Spark that is promised."""
    found = re.search(r'"pyspark>=([0-9.]+)', Path("pyproject.toml").read_text())
    assert found is not None, "pyproject.toml names an oldest Spark"
    return found[1]


def oldest_python() -> str:
    """The oldest Python that is promised: on the path, or installed beside this one."""
    places = ["python3.10", *Path(sys.base_prefix).parent.glob("3.10*/bin/python3.10")]
    for place in map(str, places):
        try:
            subprocess.run([place, "-c", ""], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return place
    return "python3.10"  # the suite says that it is missing


INSTALL: Final = """
"$1" -m venv "$2" && "$2/bin/python" -m pip install -q -e '.[test]' "pyspark==$3"
"""


WITH_PANDAS_3: Final = """
"$1" -m pip install -q pytest pytest-timeout pytest-xdist hypothesis "pandas>=3" &&
exec "$1" -m pytest -n 0 tests/client/test_pandas_rows.py tests/client/test_pandas_values.py \
  tests/client/test_rows.py tests/source "${@:2}"
"""


def suites(made: Path) -> list[Suite]:
    """All of them. ``made`` is a directory for what they install."""
    oldest = made / "oldest"
    return [
        Suite("python -m pytest", (sys.executable, "-m", "pytest")),
        Suite("the wheel", (".ci/wheel", str(made)), is_of_tests=False),
        Suite(
            "pandas 3, where the wheel is installed",
            ("bash", "-c", WITH_PANDAS_3, "pandas", str(made / "user/bin/python")),
        ),
        Suite(
            "full, slow, peer and delta",
            (
                *(sys.executable, "-m", "pytest", "-m"),
                "(full or slow or peer or delta) and not exhaustive",
                # Java keeps the cores busy. With one process more, a Spark may wait for its Python
                # worker for longer than the ten seconds that it waits at all.
                *("-n", str(len(os.sched_getaffinity(0)) + 1)),
            ),
        ),
        Suite(
            "install the oldest Spark on the oldest Python",
            ("bash", "-c", INSTALL, "install", oldest_python(), str(oldest), oldest_spark()),
            is_of_tests=False,
        ),
        Suite(
            "Spark, and tests without Java, on the oldest Python and Spark",
            (
                *(str(oldest / "bin/python"), "-m", "pytest", "-m"),
                "(spark or not full and not integration)"
                " and not slow and not exhaustive and not peer and not delta",
                # Format, documents and figures do not depend on these versions.
                "--ignore=tests/tidy",
                # Its own way of taking results leaves sockets to the garbage collector.
                *("-W", "ignore::ResourceWarning"),
                *("-W", "ignore::pytest.PytestUnraisableExceptionWarning"),
            ),
        ),
    ]


if __name__ == "__main__":
    made = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_all(suites(made), made, BUDGET_SECONDS))
