"""Progress without a callback: a bar where a person looks, nothing anywhere else."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from spark_bookkeeper.replication.bar import seen, shows_progress
from spark_bookkeeper.replication.runner import Progress, no_progress, shown


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=120)


def drawn(console: Console) -> str:
    file: Any = console.file
    return str(file.getvalue())


def test_on_a_terminal_a_bar_has_the_phase_the_count_the_rate_and_the_time_left(
    terminal: Console,
) -> None:
    with seen(shown, terminal) as tell:
        tell("copying fragments, waiting for b:1 for 3 s", 3, 10, 2_000_000)

    assert "copying fragments, waiting for b:1 for 3 s" in drawn(terminal)
    assert " 3/10 " in drawn(terminal)
    assert "/s, " in drawn(terminal)
    assert "MB/s" in drawn(terminal)
    assert ":--" in drawn(terminal) or "0:00" in drawn(terminal), "time left"


def test_another_phase_begins_anew(terminal: Console) -> None:
    with seen(shown, terminal) as tell:
        tell("reading ledger metadata", 7, 7, 0)
        tell("copying [fragments]", 0, 2, 0)

    last = drawn(terminal).rpartition("copying")[2]
    assert last.startswith(" [fragments]")
    assert "0/2" in last


def test_where_nobody_looks_nothing_is_said_and_a_callback_stays_what_it_is(
    terminal: Console,
) -> None:
    def mine(phase: str, done: int, total: int, size_bytes: int) -> None: ...

    with seen(shown, Console(file=io.StringIO())) as tell:
        assert tell is no_progress
    for progress in (mine, no_progress):
        with seen(progress, terminal) as tell:
            assert tell is progress
    assert drawn(terminal) == ""


def test_a_call_without_a_callback_shows_the_bar_of_its_own_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = io.StringIO()
    monkeypatch.setattr(error, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setenv("TERM", "xterm")
    given = []

    @shows_progress
    def work(*, progress: Progress = shown) -> int:
        given.append(progress)
        progress("working hard", 1, 2, 0)
        return 7

    assert work() == work(progress=no_progress) == 7
    assert "working hard" in error.getvalue()
    assert given[0] not in {shown, no_progress}
    assert given[1] is no_progress
