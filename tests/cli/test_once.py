"""One audit and one round of work, as a command: what it reports, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_bookkeeper.autorecovery import daemon, worker
from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.autorecovery.publishing import AuditReport, audit_bookies
from spark_bookkeeper.autorecovery.worker import ReplicationWorker, rereplicate
from spark_bookkeeper.cli.autorecovery.work import run_once
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.cli.shell.settings import Settings, exit_code_of
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row
from spark_bookkeeper.replication.runner import LocalRunner, Runner, no_progress
from spark_bookkeeper.session import replication
from spark_bookkeeper.testing.autorecovery import CONFIG, written
from spark_bookkeeper.testing.ground import Ground


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

    def audit(self, **_: Any) -> AuditReport:
        found = audit_bookies(self.context)
        self._after_audit()
        return AuditReport("audit", (*found.rows, *self._left))

    def rereplicate(self, **_: Any) -> RecoveryReport:
        one = ReplicationWorker(self.context, LocalRunner(self.context), CONFIG, "one")
        return rereplicate(self.context, one)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """A cluster that lacks nothing."""
    return Ground(tmp_path)


def once(opened: Any, *, is_json: bool = False) -> int:
    return run_once(Settings(None, Output(is_json=is_json)), opened, CONFIG, None, None)


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
