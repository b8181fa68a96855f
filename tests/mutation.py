"""Makes ``tests/MUTANTS.md``: ``python -m tests.mutation`` takes each rule out and runs the tests.

A mutant is a rule of the library with the function that takes it out; ``tests/simulation`` and
``tests/rules`` define them. The tests run in one process without Spark or ZooKeeper: those of the
plain run once as they are, and then all for each mutant in a child process, up to the first that
fails. Tests of the plain run that name the mutant come first, then quick ones, the others, and
those marked ``full``.
"""

from __future__ import annotations

import os
import pickle
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

from tests.durations import Seconds

PAGE: Final = Path(__file__).with_name("MUTANTS.md")
MARKED: Final = "not slow and not exhaustive and not peer and not delta and not spark and not s3"
QUICK_SECONDS: Final = 0.02
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
        mutants, items = dict(_mutants(session.items)), session.items
        session.items = [item for item in items if item.nodeid not in self.full]
        noted = _child(partial(_run, session)).wait()
        usable = [item for item in items if item.nodeid not in noted.failed]
        usable.sort(key=lambda item: noted.by_test[item.nodeid])
        whole = sum(noted.by_test.values())
        print(f"\n{len(mutants)} mutants, {len(usable)} tests; the plain run took {whole:.0f} s")
        running: dict[str, Child] = {}
        for name, take_out in mutants.items():
            if self.wanted and name not in self.wanted:
                continue
            if len(running) == len(os.sched_getaffinity(0)):
                self._note(running)
            session.items = self._ordered(usable, name, noted.by_test)
            running[name] = _child(partial(_run, session, take_out))
        while running:
            self._note(running)
        return True

    def _note(self, running: dict[str, Child]) -> None:
        """Wait for the mutant that was begun first."""
        name = next(iter(running))
        failed = running.pop(name).wait().failed
        self.killers[name] = failed[0] if failed else ""
        print(f"{name}: {self.killers[name] or 'no test noticed it'}", flush=True)

    def _ordered(
        self, items: list[pytest.Item], name: str, seconds: dict[str, float]
    ) -> list[pytest.Item]:
        """Tests of the plain run that name the mutant, quick ones, the others, those in full."""
        rule = name.removesuffix(" (story)").split("/")[-1]

        def rank(item: pytest.Item) -> int:
            if item.nodeid in self.full:
                return 3
            if rule in item.nodeid.partition("[")[2]:
                return 0
            return 1 if seconds[item.nodeid] <= QUICK_SECONDS else 2

        return sorted(items, key=rank)

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


def _run(session: pytest.Session, take_out: TakeOut | None = None) -> Seconds:
    """Run the tests, with a mutant up to the first failure."""
    noted = Seconds()
    session.config.pluginmanager.register(noted)
    session.config.option.maxfail = 1 if take_out else 0
    with pytest.MonkeyPatch.context() as patch, suppress(session.Failed):
        if take_out:
            take_out(patch)
        run_tests(session)
    return noted


@dataclass
class Child:
    """A process that runs tests."""

    pid: int
    answer: int

    def wait(self) -> Seconds:
        """What it noted. A child that dies has noted nothing, which is an error."""
        with os.fdopen(self.answer, "rb") as answer:
            data = answer.read()
        os.waitpid(self.pid, 0)
        noted: Seconds = pickle.loads(data)
        return noted


def _child(work: Callable[[], Seconds]) -> Child:
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
        data = pickle.dumps(work())
        with os.fdopen(writing, "wb") as answer:
            answer.write(data)
    except BaseException:
        os.write(trouble, traceback.format_exc().encode())
    finally:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
