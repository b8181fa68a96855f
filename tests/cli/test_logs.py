"""The log as JSON carries what a line is about, and says it for people as before."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.logs import start_logging
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.check_ledgers import CheckWork
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.runner import LocalRunner, Step, carry_out
from spark_bookkeeper.replication.stragglers import RunningItems
from spark_bookkeeper.runtime.log_facts import JsonFormatter, about, during
from spark_bookkeeper.testing.ground import Ground
from tests.client.benches import Bench, in_a_world
from tests.support.pieces import Done, Piece, step

log = logging.getLogger("spark_bookkeeper.tests")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter(bookie_id="a:1"))
    ours = logging.getLogger("spark_bookkeeper")
    ours.addHandler(handler)
    try:
        yield written
    finally:
        ours.removeHandler(handler)


def parsed(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_a_line_has_its_words_and_what_it_is_about(lines: io.StringIO) -> None:
    log.warning("ledger %d of %s", 7, "<me>", extra=about(ledger_id=7, log="orders"))

    (line,) = parsed(lines)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "WARNING",
        "logger": "spark_bookkeeper.tests",
        "message": "ledger 7 of <me>",
        "ledger_id": 7,
        "log": "orders",
        "bookie_id": "a:1",
    }


def test_a_line_says_more_than_what_holds_meanwhile(lines: io.StringIO) -> None:
    with during(job="recover_bookie", ledger_id=1):
        log.warning("one", extra=about(ledger_id=2))
        with during(bookie_id="b:1"):
            log.warning("two")
    log.warning("three")

    one, two, three = parsed(lines)
    assert (one["job"], one["ledger_id"], one["bookie_id"]) == ("recover_bookie", 2, "a:1")
    assert (two["job"], two["ledger_id"], two["bookie_id"]) == ("recover_bookie", 1, "b:1")
    assert "job" not in three


def test_the_trace_of_an_error_stays_on_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("a mistake")

    (line,) = parsed(lines)
    assert "ValueError: two\nlines" in line["error"]


def test_what_is_said_in_the_work_of_a_job_names_the_job(
    lines: io.StringIO, tmp_path: Path
) -> None:
    ground = Ground(tmp_path)

    def work(_: ClientContext, piece: Piece) -> Sequence[Done]:
        log.warning("at piece %d", piece.number)
        if piece.number == 1:
            raise ZeroDivisionError
        return [Done(piece.number)]

    job = Job("count_pieces", ground.context, LocalRunner(ground.context))
    list(job.run(step(work), [Piece(0), Piece(1)]))

    said = parsed(lines)
    assert len(said) == 3
    assert {line["job"] for line in said} == {"count_pieces"}


def test_what_a_job_hears_of_a_bookie_names_job_ledger_and_bookie(lines: io.StringIO) -> None:
    """Said by the library itself, of a bookie that gives no answer."""

    def read(bench: Bench) -> None:
        def do(_: ClientContext, item: CheckWork) -> Sequence[Done]:
            bench.storage.read("f")
            raise AssertionError("it hangs")

        work = Step(
            "reading", do, lambda item, failure: Done(-1, reason=failure.reason), job="a_job"
        )
        context: Any = bench  # nobody asks for it
        (done,) = carry_out(work, context, CheckWork(LedgerId(7), 100), RunningItems(bench.runtime))
        assert "b:1" in str(done.reason)

    in_a_world(read)

    (line,) = parsed(lines)
    assert line["message"].startswith("bookie b:1: no answer for 10.0 s")
    assert (line["job"], line["ledger_id"], line["bookie_id"]) == ("a_job", 7, "b:1")


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_process_says_what_all_its_lines_are_about(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    start_logging("text")
    start_logging("json", bookie_id="c:1")
    log.info("here")

    assert json.loads(capsys.readouterr().err)["bookie_id"] == "c:1"


def test_every_command_takes_the_format_and_text_is_for_people(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ledger", "list", "--log-format", "yaml"]) == 2
    assert "'json'" in capsys.readouterr().err

    run(["--log-format", "json", "ledger", "list"])  # without a cluster
    capsys.readouterr()
    log.warning("seen")
    assert json.loads(capsys.readouterr().err)["message"] == "seen"

    start_logging("text")
    log.warning("seen")
    assert capsys.readouterr().err.endswith(" seen\n")
