"""jobs/backup.py and jobs/restore.py: what a scheduler runs, on Spark and a real ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.cli.shell.jobs import run_job
from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.testing.sessions import connect_without_spark
from tests.spark.test_jobs import Submit, fill, finish, submit

__all__ = ["submit"]  # a fixture


@pytest.mark.spark
@pytest.mark.full
def test_a_log_is_saved_and_restored_by_jobs_on_spark(
    bk: sbk.BookKeeper, guests: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = bk.create_log("saved-by-jobs")
    with log.become_writer() as writer:
        positions = [writer.append(b"%d" % number) for number in range(3)]
    folder = str(tmp_path / "backup")

    def done(job: str, uri: str, *options: str) -> dict[str, object]:
        assert run_job(job, [uri, folder, *options, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert isinstance(report, dict)
        assert report["complete"] != ("--dry-run" in options)
        return report

    done("backup", bk.metadata_uri, "--log", log.name, "--dry-run")
    assert not Path(folder).exists()
    done("backup", bk.metadata_uri, "--log", log.name)
    with LocalCluster(tmp_path / "new", bookies=3) as empty:
        done("restore", empty.metadata_uri, "--dry-run")
        done("restore", empty.metadata_uri)
        assert run_job("restore", [empty.metadata_uri, str(tmp_path), "--json"]) == 2
        assert "is no backup" in capsys.readouterr().err
        assert run_job("restore", [empty.metadata_uri, "--forget", "--json"]) == 0
        with connect_without_spark(empty.metadata_uri) as other:
            found = other.open_log(log.name).entries()
            assert [(e.ledger_id, e.entry_id) for e in found] == [
                (position.ledger_id, position.entry_id) for position in positions
            ]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_scripts_that_are_killed_and_submitted_again_restore_everything(
    submit: Submit, guests: None, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    with sbk.local(bookies=4) as old, LocalCluster(tmp_path / "new", bookies=5) as empty:
        ids = [writer.ledger_id for writer in fill(old, 20)]
        before = [old.open_ledger(ledger_id).read_arrow() for ledger_id in ids]

        first = submit("backup", old.metadata_uri, folder)
        while first.poll() is None and not list(folder.glob("ledgers/*/copies/*")):
            time.sleep(0.02)
        os.killpg(first.pid, signal.SIGKILL)
        finish(first)
        code, stdout, stderr = finish(submit("backup", old.metadata_uri, folder, "--json"))
        assert (code, json.loads(stdout)["ledgers"]) == (0, len(ids)), stderr

        with connect_without_spark(empty.metadata_uri) as new:
            second = submit("restore", empty.metadata_uri, folder)
            while second.poll() is None and not restores.begun(new.context.store.registers):
                time.sleep(0.02)
            os.killpg(second.pid, signal.SIGKILL)
            finish(second)
            code, stdout, stderr = finish(submit("restore", empty.metadata_uri, folder, "--json"))
            assert (code, json.loads(stdout)["complete"]) == (0, True), stderr
            assert [new.open_ledger(ledger_id).read_arrow() for ledger_id in ids] == before
            assert new.check_ledgers(percentage=100).is_complete
            assert not restores.begun(new.context.store.registers)
