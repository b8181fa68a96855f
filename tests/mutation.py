"""Makes ``tests/MUTANTS.md``: ``python -m tests.mutation`` takes each rule out and runs the tests.

A mutant is a rule of the library with the function that takes it out; ``tests/simulation`` and
``tests/rules`` define them. The tests run in one process without Spark or ZooKeeper: once as they
are, and then for each mutant in a child process, up to the first that fails. Quick tests of the
plain run come first, then those that name the mutant, the others, and those marked ``full``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from _pytest.main import pytest_runtestloop as run_tests

PAGE: Final = Path(__file__).with_name("MUTANTS.md")
MARKED: Final = "not slow and not exhaustive and not peer and not delta and not spark and not s3"
QUICK_SECONDS: Final = 0.25
TIMEOUT_SECONDS: Final = 60
"""A test that a mutant makes hang has failed after so long."""

TakeOut = Callable[[pytest.MonkeyPatch], None]


def main() -> int:
    """Run all mutants, or those whose names are given; a page is made of all."""
    found = Mutation(sys.argv[1:])
    options = ["-n", "0", "-q", f"--timeout={TIMEOUT_SECONDS}"]
    pytest.main([*options, "-m", f"{MARKED} and not integration"], plugins=[found])
    if found.killers and not sys.argv[1:]:
        PAGE.write_text(found.page())
    return 0


class Mutation:
    """Runs the collected tests for each mutant, instead of once."""

    def __init__(self, wanted: list[str]) -> None:
        self.wanted = wanted
        self.killers: dict[str, str] = {}
        """The first test that failed, by mutant; empty for a mutant that no test noticed."""
        self.full: set[str] = set()
        """The tests that the plain run leaves out."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.full = {item.nodeid for item in session.items if item.get_closest_marker("full")}
        mutants = dict(_mutants(session.items))
        seconds = dict(_timed(line) for line in _child(partial(_run, session)).wait())
        usable = [item for item in session.items if seconds.get(item.nodeid, -1) >= 0]
        usable.sort(key=lambda item: (item.nodeid in self.full, seconds[item.nodeid]))
        print(f"\n{len(mutants)} mutants, {len(usable)} tests, {sum(seconds.values()):.0f} s")
        running: dict[str, Child] = {}
        for name, take_out in mutants.items():
            if self.wanted and name not in self.wanted:
                continue
            if len(running) == len(os.sched_getaffinity(0)):
                self._note(running)
            session.items = _ordered(usable, name, seconds)
            running[name] = _child(partial(_run, session, take_out))
        while running:
            self._note(running)
        return True

    def _note(self, running: dict[str, Child]) -> None:
        """Wait for the mutant that was begun first."""
        name = next(iter(running))
        failed = [test for test, took in map(_timed, running.pop(name).wait()) if took < 0]
        self.killers[name] = failed[0] if failed else ""
        print(f"{name}: {self.killers[name] or 'no test noticed it'}", flush=True)

    def page(self) -> str:
        """The table of mutants and the counts by folder."""
        late = [name for name, test in self.killers.items() if test in self.full]
        missed = [name for name, test in self.killers.items() if not test]
        folders = Counter(
            test.split("/")[1] for test in self.killers.values() if test not in {"", *self.full}
        )
        return f"""# Which rules the tests notice

`python -m tests.mutation` made this page. It took {len(self.killers)} rules out, one at a time.

* The plain run noticed {folders.total()}.
* Only tests marked `full` noticed {len(late)}{_listed(late)}.
* Tests that are slow or need Spark or ZooKeeper were not run; the others missed {len(missed)}\
{_listed(missed)}.

| folder of the first test that failed | rules |
|---|--:|
{_rows(folders.most_common())}

| rule taken out | first test that failed |
|---|---|
{_rows((name, test.removeprefix("tests/")) for name, test in self.killers.items())}
"""


def _listed(names: list[str]) -> str:
    return ": " + ", ".join(f"`{name}`" for name in names) if names else ""


def _rows(rows: Iterable[tuple[object, object]]) -> str:
    return "\n".join(f"| {first} | {second} |" for first, second in rows)


def _mutants(items: list[pytest.Item]) -> Iterator[tuple[str, TakeOut]]:
    """The mutants of the modules that the tests come from, by name."""
    modules = {getattr(item, "module", None): None for item in items}
    for module in modules:
        for table in (module, getattr(module, "mutants", None)):
            for name, entry in getattr(table, "MUTANTS", {}).items():
                yield name, entry[0] if isinstance(entry, tuple) else entry
        for rule in getattr(module, "RULES", ()):
            yield f"{rule.name} (story)", rule.take_out


def _ordered(items: list[pytest.Item], name: str, seconds: dict[str, float]) -> list[pytest.Item]:
    """Quick tests, those that name the mutant, and the others."""
    rule = name.removesuffix(" (story)").split("/")[-1]
    named = [item for item in items if rule in item.nodeid.partition("[")[2]]
    others = [item for item in items if item not in named]
    quick = next((n for n, i in enumerate(others) if seconds[i.nodeid] > QUICK_SECONDS), 0)
    return [*others[:quick], *named, *others[quick:]]


def _run(session: pytest.Session, take_out: TakeOut | None = None) -> Iterator[str]:
    """Run the tests, with a mutant up to the first failure; give each with its seconds.

    A test that failed has -1 seconds.
    """
    noted = _Seconds()
    session.config.pluginmanager.register(noted)
    session.config.option.maxfail = 1 if take_out else 0
    with pytest.MonkeyPatch.context() as patch, suppress(session.Failed):
        if take_out:
            take_out(patch)
        run_tests(session)
    for test, took in noted.by_test.items():
        yield f"{took}\t{test}"


def _timed(line: str) -> tuple[str, float]:
    took, test = line.split("\t")
    return test, float(took)


class _Seconds:
    """The seconds of each test; -1 if it failed."""

    def __init__(self) -> None:
        self.by_test: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took = self.by_test.get(report.nodeid, 0.0)
        self.by_test[report.nodeid] = -1.0 if report.failed or took < 0 else took + report.duration


@dataclass
class Child:
    """A process that does some work and writes lines."""

    pid: int
    lines: int

    def wait(self) -> list[str]:
        with os.fdopen(self.lines) as said:
            lines = said.read().splitlines()
        os.waitpid(self.pid, 0)
        return lines


def _child(work: Callable[[], Iterator[str]]) -> Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    trouble = os.dup(2)
    try:
        os.close(reading)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        text = "\n".join(work())
        with os.fdopen(writing, "w") as out:
            out.write(text)
    except BaseException:
        os.write(trouble, traceback.format_exc().encode())
    finally:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
