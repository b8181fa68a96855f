"""The scripts in jobs/, through a real spark-submit: what they print, and how they exit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.cli.shell.jobs import JOBS, job_command, run_job
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from tests.support.rows import wait_for_every_copy
from tests.support.sessions import connect_without_spark

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("SPARK_BOOKKEEPER_KILLS", "3"))
"""Of the job that is killed again and again; each kill costs a start of Spark."""
LEDGERS = 20 * KILLS
"""So many that the killed jobs together do less than there is."""
REPORT_KEYS = [
    *("job", "dry_run", "ledgers", "ledgers_complete", "fragments", "entries", "bytes"),
    *("duration_ms", "complete", "rows"),
]
Submit = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def submit(python_path: str) -> Submit:
    """Start ``spark-submit jobs/<name>.py`` in a process group of its own."""

    def start(name: str, *arguments: object) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": python_path,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        tool = Path(sys.executable).with_name("spark-submit")
        command = [tool, "--master", "local[2]", ROOT / "jobs" / f"{name}.py", *arguments]
        return subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    return start


def finish(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = job.communicate(timeout=500)
    return job.returncode, stdout, stderr


def fill(
    bk: sbk.BookKeeper, ledgers: int, *, is_open: bool = False, counts: Sequence[int] = (2_000,)
) -> list[sbk.LedgerWriter]:
    """So many ledgers, with as many rows as ``counts`` say in turn."""
    writers = []
    for _, count in zip(range(ledgers), cycle(counts), strict=False):
        rows = pa.table({"n": pa.array(range(count)), "s": ["some text"] * count})
        writer = bk.create_ledger(
            ensemble_size=4, schema=rows.schema, entry_target_bytes=4_096, name="jobs"
        )
        writer.append(rows)
        if is_open:
            wait_for_every_copy(writer)
            writer.abandon()  # it would replace a bookie that is lost for longer
        else:
            writer.close()
        writers.append(writer)
    return writers


def destroy(bk: sbk.BookKeeper, bookie: str) -> None:
    assert bk.cluster is not None
    bk.cluster.stop_bookie(bookie, destroy=True)


@pytest.mark.spark
def test_a_lost_bookie_is_planned_recovered_and_checked(
    own_bk: sbk.BookKeeper, submit: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    bk = own_bk
    writers = fill(bk, 6) + fill(bk, 1, is_open=True)
    lost = writers[-1].metadata.last_fragment.ensemble[0]
    destroy(bk, lost)
    before = bk.ledgers_arrow()

    # The plan, the work, and the look at it are three jobs; each says one object and no more.
    assert run_job("recover_bookie", [bk.metadata_uri, lost, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["dry_run"]
    assert {row["status"] for row in plan["rows"]} == {"planned"}
    assert bk.ledgers_arrow().equals(before)

    code, stdout, stderr = finish(submit("recover_bookie", bk.metadata_uri, lost, "--json"))
    report = json.loads(stdout)
    assert code == 0, stderr
    assert "Traceback" not in stderr
    assert list(report) == REPORT_KEYS
    assert report["complete"]
    copied = [row for row in report["rows"] if row["action"] == "copy"]
    assert {row["status"] for row in copied} == {"replicated"}
    planned = {row["ledger_id"] for row in plan["rows"] if row["action"] == "copy"}
    # The recovery of the open ledger may replace the bookie itself, and leave nothing to copy.
    assert planned - {writers[-1].ledger_id} <= {row["ledger_id"] for row in copied}
    assert planned <= {row["ledger_id"] for row in report["rows"]}

    arguments = [bk.metadata_uri, "--percentage", "100", "--json"]
    assert run_job("check_ledgers", arguments) == 0
    checked = json.loads(capsys.readouterr().out)
    assert {row["status"] for row in checked["rows"]} == {"healthy"}
    for writer in writers:
        assert bk.open_ledger(writer.ledger_id).read_arrow().num_rows == 2_000
    writers[-1].abandon()


@pytest.mark.spark
def test_open_ledgers_are_recovered_and_one_that_must_wait_exits_with_1(
    own_bk: sbk.BookKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    bk = own_bk
    good, stuck = fill(bk, 2, is_open=True)
    quorum = stuck.metadata.last_fragment.ensemble
    cluster = bk.cluster
    assert cluster is not None
    for bookie in quorum[:3]:
        cluster.stop_bookie(bookie)
        cluster.root_of(bookie).rename(cluster.root_of(bookie).with_suffix(".away"))

    code = run_job("recover_ledgers", [bk.metadata_uri, str(stuck.ledger_id), "--json"])

    said = capsys.readouterr()
    row = json.loads(said.out)["rows"][0]
    assert code == 1, said.err
    assert row["status"] == "left"
    assert any(bookie in row["reason"] for bookie in quorum[:3])
    for bookie in quorum[:3]:
        cluster.root_of(bookie).with_suffix(".away").rename(cluster.root_of(bookie))
        cluster.start_bookie(bookie)
    assert run_job("recover_ledgers", [bk.metadata_uri]) == 0
    assert "recover_ledgers: closed 2" in capsys.readouterr().out
    assert {state.as_py() for state in bk.ledgers_arrow().column("state")} == {"CLOSED"}
    for writer in (good, stuck):
        writer.abandon()


@pytest.mark.full
@pytest.mark.spark
def test_a_wrong_call_through_spark_submit_says_so_on_stderr_alone(
    bk: sbk.BookKeeper, submit: Submit
) -> None:
    assert bk.cluster is not None
    alive = bk.cluster.bookie_ids[0]

    code, stdout, stderr = finish(submit("recover_bookie", bk.metadata_uri, alive))

    assert code == 2
    assert stdout == ""
    assert "is alive" in stderr
    assert "Traceback" not in stderr


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("recover_bookie", [], "Missing argument 'BOOKIE'"),
        ("recover_bookie", ["10.1.2.3:3181"], "is unknown"),
        ("recover_bookie", ["not-a-bookie"], "not-a-bookie"),
        ("check_ledgers", ["4711"], "4711"),
        ("check_ledgers", ["--percentage", "101"], "101"),
        pytest.param(
            *("check_ledgers", ["--report-table", "/tmp/no-delta"], "has no Delta Lake"),
            marks=pytest.mark.full,
        ),
        ("archive_to_delta", ["/tmp/no-delta"], "has no Delta Lake. Start it with its jars"),
        ("recover_ledgers", ["--conf", "/no/such.toml"], "/no/such.toml"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_call_exits_with_2_and_prints_no_result(
    bk: sbk.BookKeeper,
    capsys: pytest.CaptureFixture[str],
    name: str,
    arguments: list[str],
    said: str,
) -> None:
    assert run_job(name, [bk.metadata_uri, *arguments]) == 2

    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert "Traceback" not in output.err


def test_no_zookeeper_there_exits_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    conf = tmp_path / "client.toml"
    conf.write_text("metadata_timeout_ms = 500\n", encoding="utf-8")

    code = run_job(
        "recover_bookie", ["127.0.0.1:1", "10.1.2.3:3181", "--dry-run", "--conf", str(conf)]
    )

    assert code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "127.0.0.1:1" in said.err


@pytest.mark.parametrize("name", JOBS)
def test_the_help_of_a_job_has_its_script_and_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job(name, ["--help"]) == 0

    said = capsys.readouterr().out
    assert f"Usage: jobs/{name}.py [OPTIONS] METADATA_URI" in said
    assert "spark-submit" in said
    for option in ("--json", "--conf", "--report-table", "--verbose"):
        assert option in said
    assert (ROOT / "jobs" / f"{name}.py").is_file()


def test_a_job_never_asks_and_leaves_the_verb_of_the_command_line_as_it_is() -> None:
    names = {parameter.name for parameter in job_command("recover_bookie").params}

    assert not names & {"yes", "on_spark"}
    assert {"yes", "on_spark"} <= {parameter.name for parameter in JOBS["recover_bookie"].params}


def affected(bk: sbk.BookKeeper, lost: str) -> int:
    """How many ledgers name the lost bookie."""
    return sum(lost in bookies.as_py() for bookies in bk.ledgers_arrow().column("bookies"))


@pytest.mark.full
@pytest.mark.spark
def test_what_is_published_is_repaired_by_a_job_and_shown_as_a_frame(
    own_bk: sbk.BookKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    bk = own_bk
    writers = fill(bk, 2, counts=(20,))
    lost = writers[0].metadata.last_fragment.ensemble[0]
    published = sorted(w.ledger_id for w in writers if lost in w.metadata.bookies())
    destroy(bk, lost)

    assert run_job("audit", [bk.metadata_uri, "--json"]) == 0
    assert [row["ledger_id"] for row in json.loads(capsys.readouterr().out)["rows"]] == published
    frame = bk.underreplicated()
    assert frame.columns == [
        *("ledger_id", "missing_replicas", "marked_at", "locked_by", "live_copies"),
        *("attempts", "last_error", "blocker", "next_try_at"),
    ]
    assert sorted(row.ledger_id for row in frame.collect()) == published
    assert run_job("autorecovery", [bk.metadata_uri, "--once", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert (report["job"], report["complete"]) == ("rereplicate", True)
    told = {row["ledger_id"]: row["reason"] for row in report["rows"] if row["action"] == "task"}
    assert sorted(told) == published
    assert all("fully replicated" in reason for reason in told.values())
    assert bk.underreplicated_arrow().num_rows == 0
    local = LocalRunner(bk.context)
    assert check_ledgers(bk.context, local, None, 100).is_complete


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_it_loses_nothing_and_finishes_when_it_is_let(
    submit: Submit,
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with sbk.local(bookies=6) as bk:
        # Of many sizes, so that they are not all done at the same moment.
        counts = [dice.randrange(200, 4_000) for _ in range(LEDGERS)]
        writers = fill(bk, LEDGERS, counts=counts) + fill(bk, 10, is_open=True)
        rows = dict(zip((w.ledger_id for w in writers), counts + [2_000] * 10, strict=True))
        lost = writers[0].metadata.last_fragment.ensemble[0]
        destroy(bk, lost)
        at_first = affected(bk, lost)

        for kill in range(KILLS):
            # All jobs together do less than there is, however fast this machine is; so every kill
            # meets a job at work.
            before = affected(bk, lost)
            enough = dice.randint(1, max(1, at_first // (2 * KILLS)))
            job = submit("recover_bookie", bk.metadata_uri, lost, "--bytes-per-second", 250_000)
            if kill % 2:  # once it has begun to change metadata
                while job.poll() is None and affected(bk, lost) == before:
                    time.sleep(0.02)
                moment = dice.uniform(0, 1.5)
            else:  # from before there is a session until it is at work
                moment = dice.uniform(2, 12)
            deadline = time.monotonic() + moment
            while time.monotonic() < deadline and before - affected(bk, lost) < enough:
                time.sleep(0.02)
            assert job.poll() is None, (kill, before, affected(bk, lost), finish(job))
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
            for writer in dice.sample(writers[:LEDGERS], 5):
                read = bk.open_ledger(writer.ledger_id).read_arrow()
                assert read.num_rows == rows[writer.ledger_id]
        assert 0 < affected(bk, lost) < at_first, "some of the work was done by killed jobs"

        code, stdout, stderr = finish(submit("recover_bookie", bk.metadata_uri, lost, "--json"))
        assert code == 0, stderr
        assert json.loads(stdout)["complete"]
        code, stdout, stderr = finish(submit("recover_bookie", bk.metadata_uri, lost, "--json"))
        assert code == 0, stderr
        assert json.loads(stdout)["rows"] == [], "there is nothing left to do"

        for writer in writers:
            reader = bk.open_ledger(writer.ledger_id)
            assert reader.read_arrow().num_rows == rows[writer.ledger_id]
            assert lost not in reader.metadata.bookies()
            writer.abandon()
        report = check_ledgers(bk.context, LocalRunner(bk.context), None, 100)
        assert set(report.counts) == {"healthy"}, report.unfinished


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
