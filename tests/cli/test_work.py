"""Reports of replication work: where they are kept, and what a person is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest

from spark_bookkeeper.cli.bookie import cluster_view as bookies
from spark_bookkeeper.cli.ledger import work as ledger_work
from spark_bookkeeper.cli.shell.jobs import JOBS, job_command
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.cli.shell.work import show_report
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.replication.report import RecoveryReport, Report

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


def test_a_report_is_kept_as_well_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    table: Any = Table()
    assert show_report(HUMAN, REPORT, table) == 0
    assert table.kept == [REPORT]
    assert "recover_ledgers: nothing to do" in capsys.readouterr().out


def test_work_whose_report_was_not_kept_is_not_all_that_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table: Any = Table("the table took nothing")
    assert show_report(HUMAN, REPORT, table) == 1
    said = capsys.readouterr()
    assert "Error: the table took nothing" in said.err
    assert "recover_ledgers: nothing to do" in said.out


@pytest.mark.parametrize("verb", [ledger_work.recover, ledger_work.check, bookies.recover])
def test_optional_arguments_are_shown_as_such(verb: click.Command) -> None:
    usage: Callable[[click.Context], list[str]] = verb.collect_usage_pieces
    arguments = usage(click.Context(verb))[1:]
    assert arguments
    assert all(text.startswith("[") for text in arguments)
