"""Reports of replication work: where they are kept, and what a person is told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import click
import pytest

from spark_bookkeeper.agent.collection import GarbageReport
from spark_bookkeeper.agent.decommission import DecommissionReport
from spark_bookkeeper.cli.bookie import cluster_view as bookies
from spark_bookkeeper.cli.bookie import rebalance
from spark_bookkeeper.cli.ledger import work as ledger_work
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell import work as cli_work
from spark_bookkeeper.cli.shell.cluster_options import Access
from spark_bookkeeper.cli.shell.jobs import JOBS, job_command
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.cli.shell.work import Planned, Work, plan_cells, show_report
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.recovery_plan import PLAN_SCHEMA, PlanRow
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Report, Row

HUMAN = Settings(None, Output())
REPORT = RecoveryReport("recover_ledgers", ())


class Table:
    """A table that takes reports, or refuses them."""

    def __init__(self, refusal: str | None = None) -> None:
        self.kept: list[Report] = []
        self._refusal = refusal

    def append(self, report: Report) -> None:
        if self._refusal:
            raise BookKeeperError(self._refusal)
        self.kept.append(report)


def options(command: click.Command) -> set[str]:
    return {text for parameter in command.params for text in parameter.opts}


@pytest.mark.parametrize("name", JOBS)
def test_a_verb_takes_what_its_job_takes(name: str) -> None:
    of_job = options(job_command(name)) - {"metadata_uri", "--json", "--verbose", "--log-format"}
    assert "--report-table" in of_job
    assert of_job <= options(JOBS[name])


def test_copies_are_released_to_a_table_only_after_a_yes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def no(question: str, **_: Any) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(click, "confirm", no)

    # No cluster is there: it is asked first.
    code = run(["--metadata-uri", "zk://none:1/ledgers", "ledger", "archive", "/lake", "--release"])

    assert (code, asked) == (
        1,
        ["Have bookies drop all but 1 copies of what is in the table at /lake afterwards?"],
    )
    assert "Nothing was changed" in capsys.readouterr().err


def test_a_report_is_kept_as_well_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    table: Any = Table()
    assert show_report(HUMAN, REPORT, table) == 0
    assert table.kept == [REPORT]
    assert "recover_ledgers: nothing to do" in capsys.readouterr().out


def test_a_row_about_a_bookie_as_a_whole_names_no_ledger(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = Row(-1, "collect", Outcome.LEFT, "it does not answer", source=BookieId("b:1"))
    assert show_report(HUMAN, GarbageReport("collect_garbage", (row,))) == 1

    (line,) = (line for line in capsys.readouterr().out.splitlines() if "b:1" in line)
    assert "it does not answer" in line
    assert "-1" not in line


def test_work_whose_report_was_not_kept_is_not_all_that_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table: Any = Table("the table took nothing")
    assert show_report(HUMAN, REPORT, table) == 1
    said = capsys.readouterr()
    assert "Error: the table took nothing" in said.err
    assert "recover_ledgers: nothing to do" in said.out


def test_the_table_of_reports_is_opened_once_and_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []
    table: Any = Table()

    def opened(*_: object) -> Any:
        happened.append("open")
        return table

    def job(*_: object) -> RecoveryReport:
        happened.append("work")
        return REPORT

    monkeypatch.setattr(cli_work, "open_table", opened)
    monkeypatch.setattr(cli_work, "connected", lambda *_, **__: nullcontext(SimpleNamespace()))
    work = Work(
        HUMAN, Access(), dry_run=False, yes=True, on_spark=False, report_table="/lake/reports"
    )

    assert work.show(work.run("working", job)) == 0
    assert (happened, table.kept) == (["open", "work"], [REPORT])


@pytest.mark.parametrize("verb", [ledger_work.recover, ledger_work.check, bookies.recover])
def test_optional_arguments_are_shown_as_such(verb: click.Command) -> None:
    usage: Callable[[click.Context], list[str]] = verb.collect_usage_pieces
    arguments = usage(click.Context(verb))[1:]
    assert arguments
    assert all(text.startswith("[") for text in arguments)


def test_a_plan_is_narrow_enough_for_a_terminal_and_says_what_matters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    share = PlanRow(
        7,
        "copy",
        Outcome.PLANNED,
        "2 live copies at the least",
        0,
        99_999,
        "192.168.100.10:3181",
        "192.168.100.12:3181",
        100_000,
        123_456_789,
        ("192.168.100.11:3181", "192.168.100.13:3181"),
        2,
        3,
    )
    recovery = PlanRow(8, "recover", Outcome.PLANNED, "fence, recover and close it first")
    left = PlanRow(9, "copy", Outcome.LEFT, "nobody is left", 0, 4, "192.168.100.10:3181")
    plan = RecoveryReport("recover_bookie", (share, recovery, left), True, columns=PlanRow)

    show_report(HUMAN, plan)

    lines = capsys.readouterr().out.splitlines()
    (shown,) = (line for line in lines if "192.168.100.12" in line)
    assert "2 > 3" in shown
    assert "at the least" not in shown
    assert any("fence, recover and close it first" in line for line in lines)
    assert any("left: nobody is left" in line for line in lines)
    assert set(PLAN_SCHEMA.names) == set(plan.to_dict()["rows"][0])


COPY = PlanRow(7, "copy", Outcome.PLANNED, None, 0, 4, "b:1", "b:2", 5, 1_000)
CLOSING = PlanRow(8, "recover", Outcome.PLANNED, "fence, recover and close it first")
LEFT = PlanRow(9, "copy", Outcome.LEFT, "nobody is left", 0, 4, "b:1")


def told_before_asking(
    rows: tuple[PlanRow, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[str, str]:
    """What a person reads before a bookie is drained, and the question."""
    asked: list[str] = []
    monkeypatch.setattr(rebalance, "confirm", asked.append)
    plan = DecommissionReport("drain_bookie", rows, True, columns=PlanRow)
    rebalance.ask_to_drain(HUMAN, BookieId("b:1"), plan)
    (question,) = asked
    return " ".join(capsys.readouterr().err.split()), question


def test_who_drains_a_bookie_is_told_whose_writers_stop_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told, question = told_before_asking((COPY, CLOSING, LEFT), monkeypatch, capsys)

    assert "1 share to copy, 1,000 bytes" in told
    assert "stops their writers: ledger 8" in told
    assert "not everything can be done (--dry-run shows it all): nobody is left" in told
    assert question == "Make b:1 read-only, and make all that it holds again on others?"


def test_who_drains_an_empty_bookie_is_asked_only_about_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told_before_asking((), monkeypatch, capsys) == ("", "Make b:1 read-only?")


def test_what_is_left_is_no_step() -> None:
    planned = Planned.of(RecoveryReport("recover_bookie", (LEFT,), True, columns=PlanRow))

    assert (planned.steps, planned.copies, planned.left) == (0, 0, LEFT)


def test_the_table_of_a_plan_fits_a_terminal() -> None:
    share = PlanRow(
        *(1_234_567, "copy", Outcome.PLANNED, None, 0, 99_999, "192.168.100.10:3181"),
        *("192.168.100.12:3181", 1, 1_234_567_890, (), 2, 3),
    )
    cells = [str(cell) for cell in plan_cells(share) if cell is not None]

    assert sum(len(cell) + 3 for cell in cells) + 1 <= 110
