"""One audit and one round of work, as a command: what it reports, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_bookkeeper.autorecovery import daemon, worker
from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.autorecovery.publishing import AuditReport, publish_lost_bookies
from spark_bookkeeper.autorecovery.worker import ReplicationWorker, rereplicate
from spark_bookkeeper.cli.autorecovery.work import run_once
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.cli.shell.settings import Settings, exit_code_of
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row
from spark_bookkeeper.replication.runner import LocalRunner, Runner, no_progress
from spark_bookkeeper.session import replication
from spark_bookkeeper.testing.ground import Ground
from tests.support.autorecovery import CONFIG, written


class Opened:
    """As much of an open cluster as the command needs, with something that happens in between."""

    def __init__(
        self,
        ground: Ground,
        after_audit: Callable[[], object] = lambda: None,
        left: tuple[Row, ...] = (),
    ) -> None:
        self.context = ground.context
        self._after_audit = after_audit
        self._left = left

    def audit(self, *, dry_run: bool, **_: Any) -> AuditReport:
        found = publish_lost_bookies(self.context, dry_run=dry_run)
        self._after_audit()
        return AuditReport("audit", (*found.rows, *self._left))

    def rereplicate(self, *, dry_run: bool, **_: Any) -> RecoveryReport:
        one = ReplicationWorker(self.context, LocalRunner(self.context), CONFIG, "one")
        return rereplicate(self.context, one, dry_run=dry_run)


def once(opened: Any, *, is_json: bool = False, dry_run: bool = False) -> int:
    settings = Settings(None, Output(is_json=is_json))
    return run_once(settings, opened, CONFIG, None, None, dry_run=dry_run)


@pytest.mark.parametrize(("is_lacking", "code"), [(True, 1), (False, 2)])
def test_whoever_disables_it_in_the_middle_is_not_told_that_nothing_was_changed(
    ground: Ground, is_lacking: bool, code: int
) -> None:
    """Unless nothing was: then it is as if it had been disabled before."""
    writer = written(ground)
    if is_lacking:
        ground.stop(writer.metadata.last_fragment.ensemble[0])
    control = AutorecoveryControl(ground.context, lambda _: LocalRunner(ground.context))

    with pytest.raises(BookKeeperError, match="disabled") as caught:
        once(Opened(ground, control.disable))

    assert exit_code_of(caught.value) == code


def test_what_the_audit_could_not_look_at_is_left_also_in_the_report(
    ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = written(ground)
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    left = Row(4242, "mark", Outcome.LEFT, "garbage")

    code = once(Opened(ground, left=(left,)), is_json=True)

    told = json.loads(capsys.readouterr().out)
    assert (code, told["complete"]) == (1, False)
    assert (told["rows"][-1]["ledger_id"], told["rows"][-1]["reason"]) == (4242, "garbage")
    assert once(Opened(ground), is_json=True) == 0
    assert json.loads(capsys.readouterr().out)["complete"] is True


def test_a_dry_run_says_what_would_be_published_and_taken_and_changes_nothing(
    ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    published, noticed = written(ground), written(ground)
    lost = set(published.metadata.bookies()) & set(noticed.metadata.bookies())
    tree = ground.context.store.underreplication
    tree.mark(published.ledger_id, sorted(lost)[:1], 0)
    ground.stop(sorted(lost)[0])

    code = once(Opened(ground), is_json=True, dry_run=True)

    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (code, told["dry_run"], told["complete"]) == (0, True, False)
    assert {(row["ledger_id"], row["action"], row["status"]) for row in told["rows"]} == {
        (published.ledger_id, "mark", "planned"),
        (noticed.ledger_id, "mark", "planned"),
        (published.ledger_id, "task", "planned"),
    }
    assert "would be published: 2 ledgers" in said.err
    assert list(tree.ledger_ids()) == [published.ledger_id]
    assert not list(tree.locks())


@pytest.mark.parametrize(
    "option", [("--dry-run",), ("--report-table", "t"), ("--report-file", "r.jsonl")]
)
def test_what_is_asked_of_one_round_is_refused_where_it_runs_on(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--metadata-uri", "zk://127.0.0.1:1/l", "autorecovery", "start", *option]) == 2

    said = capsys.readouterr().err
    assert (option[0] in said, "--once" in said) == (True, True)


def test_what_serves_what_runs_on_is_refused_of_one_round(
    capsys: pytest.CaptureFixture[str],
) -> None:
    once = ["autorecovery", "start", "--once", "--metrics-port", "9105"]

    assert run(["--metadata-uri", "zk://127.0.0.1:1/l", *once]) == 2
    assert "--metrics-port" in capsys.readouterr().err


def test_one_round_does_as_many_ledgers_at_once_as_a_worker_that_stays(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []

    class Worker(ReplicationWorker):
        def __init__(self, context: ClientContext, runner: Runner, *more: Any) -> None:
            super().__init__(context, runner, *more)
            widths.append(runner.width)

    def reported(job: str, about: str, dry_run: bool, progress: None, run: Any) -> RecoveryReport:
        done: RecoveryReport = run(LocalRunner(ground.context, 16), no_progress)
        return done

    monkeypatch.setattr(worker, "ReplicationWorker", Worker)
    monkeypatch.setattr(daemon, "ReplicationWorker", Worker)
    handle: Any = SimpleNamespace(context=ground.context, reported=reported)
    config = replace(CONFIG, ledgers_at_once=3)

    replication.rereplicate(handle, config=config)
    replication.rereplicate(handle)
    AutorecoveryControl(ground.context, lambda _: LocalRunner(ground.context, 16)).start(
        config=config
    ).stop()

    assert widths == [3, AutorecoveryConfig().ledgers_at_once, 3]
