"""``spark-bookkeeper demo``: a ledger survives the loss of a bookie and of its writer.

ZooKeeper, files and processes are real: the process that appends the rows is killed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa

from spark_bookkeeper.cli.demo import proof
from spark_bookkeeper.cli.demo.process import Event, WriterProcess, writer_process
from spark_bookkeeper.cli.demo.writer import QUORUM
from spark_bookkeeper.cli.ledger.picture import draw_acks, draw_fragments, legend
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, EXIT_LEFT_UNDONE, Settings
from spark_bookkeeper.demo import flights_arrow
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.local_cluster.java import use_java
from spark_bookkeeper.opening import local
from spark_bookkeeper.protocol.ids import BookieId, parse_ledger_id
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.spark.waiting import wait_apart

KILL_AFTER: Final = 200
"""Small appends that are acknowledged when the writer is killed."""


@click.command(name="demo", epilog="Example: spark-bookkeeper demo --keep ./flights-cluster")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Leave the cluster there, to play with.",
)
@click.pass_obj
def demo(settings: Settings, keep: Path | None) -> int:
    """Watch real rows become a replicated ledger that survives what happens to it.

    A cluster is made on this machine: ZooKeeper and six bookies. All 336,776 flights that left
    New York in 2013 go into a ledger, while a bookie is destroyed and the writer is killed. Then
    everything is made whole again, and proved to be. Takes about half a minute on two cores, and
    cleans up.
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise InvalidArgumentError(f"{keep} is not empty; --keep wants a new or an empty directory")
    use_java()  # without Java, fail before anything is created
    story = _Story(settings.output)
    with _workplace() as place, local(keep or place / "cluster", bookies=6) as bk:
        holds = story.run(bk, place)
    story.end(holds, keep)
    settings.output.result(story.result, lambda: None)
    return EXIT_DONE if holds else EXIT_LEFT_UNDONE


class _Story:
    """The steps, in order, each shown as it happens."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._began = time.monotonic()
        self._step = 0
        self.result: dict[str, Any] = {}

    def run(self, bk: BookKeeper, place: Path) -> bool:
        """Run all steps; return whether the proof holds."""
        assert bk.cluster is not None
        self._headline("A cluster from nothing: one ZooKeeper, six bookies")
        self._say(f"metadata   {bk.metadata_uri}")
        self._say(f"bookies    {', '.join(bk.cluster.bookie_ids)}")
        self._say(f"each one is a directory of Arrow files: {bk.cluster.directory}/bookies/1 ...")
        source = self._rows(place)
        try:
            with writer_process(bk.metadata_uri, place) as writer:
                first, lost = self._write_until_killed(bk, writer)
            self._recover_ledger(bk, first)
            second = self._write_the_rest(bk, first, source, place / "spark.log")
            self._recover_bookie(bk, first, lost)
            self._repair(bk, [first, second])
            return self._prove(bk, [first, second], source, lost)
        finally:
            _stop_spark()

    # The steps

    def _rows(self, place: Path) -> pa.Table:
        self._headline("Real rows: every flight that left New York in 2013")
        source = flights_arrow()
        with pa.OSFile(str(place / "rows.arrow"), "wb") as sink:
            with pa.ipc.new_file(sink, source.schema) as file:
                file.write_table(source)
        self._say(
            f"{source.num_rows:,} rows, {source.num_columns} columns, "
            f"{sum(column.null_count for column in source.columns):,} nulls, "
            f"{source.nbytes / 1e6:.0f} MB in Arrow"
        )
        self.result["rows"] = source.num_rows
        return source

    def _write_until_killed(self, bk: BookKeeper, writer: WriterProcess) -> tuple[int, BookieId]:
        assert bk.cluster is not None
        self._headline("A writer in a process of its own; entries go in stripes to 3 of 4 bookies")
        created = writer.next("created")
        ledger_id, lost = created["ledger_id"], BookieId(created["ensemble"][1])
        self._say(
            f"ledger {ledger_id}: E=4 bookies share the entries, Qw=3 hold each, Qa=2 "
            "acknowledge it"
        )
        self._show_append(writer, writer.next("appending"))

        self._headline("A bookie is destroyed while the second DataFrame is appended")
        begun, root = writer.next("appending"), bk.cluster.root_of(lost)
        before, deadline = _bytes_below(root), time.monotonic() + 30.0
        while _bytes_below(root) == before and time.monotonic() < deadline:
            time.sleep(0.01)  # until rows of this append arrive on the bookie
        bk.cluster.stop_bookie(lost, destroy=True)
        self._say(f"{lost}: its directory is gone, with everything in it")
        self._show_append(writer, begun)
        self._say("the writer replaced it and went on in a new fragment:")
        self._picture(bk, ledger_id, {lost})

        self._headline("The writer is killed in the middle of small appends (SIGKILL)")
        acknowledged = [writer.next("acknowledged") for _ in range(KILL_AFTER)]
        last = (acknowledged + writer.kill())[-1]
        self._say(
            f"its last report: entry {last['entry_id']} is acknowledged, which is "
            f"{last['rows']:,} rows"
        )
        self.result |= {
            "acknowledged_entry_id": last["entry_id"],
            "acknowledged_rows": last["rows"],
            "lost_bookie": lost,
        }
        return ledger_id, lost

    def _show_append(self, writer: WriterProcess, begun: Event) -> None:
        """Wait for the end of an append, and show who acknowledged what."""
        rows = begun["rows"]
        with self._output.progress(f"appending a Spark DataFrame of {rows:,} rows"):
            done = writer.next("appended")
        acks = done["acks"]
        self._say(
            f"{rows:,} rows in entries {done['first']}..{done['last']}, acknowledged after "
            f"{done['seconds']:.1f} s; which bookie acknowledged what, and how long it took:"
        )
        for line in draw_acks(acks, 8):
            self._say(f"   {line}")
        stored = [row for row in acks if row["status"] == "stored"]
        self._say(
            f"   {len({row['entry_id'] for row in acks})} entries, {len(stored)} copies stored, "
            f"{sum(row['acknowledged'] for row in stored)} of them of acknowledged entries"
        )

    def _recover_ledger(self, bk: BookKeeper, ledger_id: int) -> None:
        info = bk.ledger(ledger_id)
        confirmed = bk.open_ledger_no_recovery(ledger_id).last_add_confirmed
        stored = [s["last_entry_id"] for s in info.slots_arrow().to_pylist() if s["parts"] == 0]
        highest = max((entry for entry in stored if entry is not None), default=-1)
        self._say(
            f"nobody closed ledger {ledger_id}: it is {info.state}. Its bookies know of an "
            f"acknowledged entry {confirmed}, and hold entries up to {highest}"
        )
        self.result["state_after_kill"] = info.state

        self._headline("Another client opens the ledger: fence, recover, close")
        started = time.monotonic()
        reader = bk.open_ledger(ledger_id)
        took_ms = (time.monotonic() - started) * 1000
        fences = [s for s in info.slots_arrow().to_pylist() if s["kind"] == "FENCE"]
        for slot in fences:
            self._say(f"{slot['bookie_id']}: FENCE in slot {slot['slot']}")
        last = reader.last_add_confirmed
        self._say(
            f"closed at entry {last} within {took_ms:.0f} ms. Acknowledged was entry "
            f"{self.result['acknowledged_entry_id']}: nothing acknowledged is lost"
        )
        if highest > last:
            self._say(
                f"entries {last + 1}..{highest} had not reached two bookies, nobody was told that "
                "they are written, and they are not in the ledger"
            )
        self.result |= {"last_entry_id": last, "fences": len(fences)}

    def _write_the_rest(self, bk: BookKeeper, ledger_id: int, source: pa.Table, log: Path) -> int:
        self._headline("The rest of the rows: a second writer goes on in a ledger of its own")
        start = bk.open_ledger(ledger_id).read_arrow().num_rows
        count = source.num_rows - start
        self._say(f"the first ledger ends after row {start:,}; {count:,} rows are left")
        self._say("this process starts Spark as well ...")
        with _stderr_to(log):
            spark = bk.spark
            rest = wait_apart(lambda: spark.createDataFrame(source.slice(start)))
        with self._output.progress(f"appending a Spark DataFrame of {count:,} rows"):
            with bk.create_ledger(**QUORUM, schema=source.schema, name="flights") as writer:
                last = writer.append(rest)
        self._say(f"ledger {writer.ledger_id}: entries 0..{last}, CLOSED")
        self.result |= {"ledgers": [ledger_id, writer.ledger_id], "rows_in_first": start}
        return writer.ledger_id

    def _recover_bookie(self, bk: BookKeeper, ledger_id: int, lost: BookieId) -> None:
        self._headline(f"What {lost} held is copied again, as a Spark job")
        self._say("before:")
        self._picture(bk, ledger_id, {lost})
        with self._output.progress("reading ledger metadata", unit="fragments") as progress:
            report = bk.recover_bookie(lost, progress=progress.phase)
        for row in report.rows:
            self._say(
                f"ledger {row.ledger_id}, entries {row.first_entry_id}..{row.last_entry_id}: "
                f"{row.entries:,} of them from {row.source} to {row.target}, {row.bytes:,} bytes, "
                f"{row.status}" + (f" ({row.reason})" if row.reason else "")
            )
        self._say("after:")
        self._picture(bk, ledger_id, {lost})
        self.result["recover_bookie"] = report.to_dict()

    def _repair(self, bk: BookKeeper, ledger_ids: list[int]) -> None:
        self._headline("What the killed writer left behind: copies that were still on their way")
        self._say("two of three copies acknowledge an entry; is the third there as well?")
        with self._output.progress("repairing ledgers", unit="ledgers") as progress:
            report = bk.repair_ledgers(ledger_ids, progress=progress.phase)
        for row in report.rows:
            self._say(
                f"ledger {row.ledger_id}, {row.source}: {row.bytes:,} bytes made again there, "
                f"{row.status}" + (f" ({row.reason})" if row.reason else "")
            )
        if not report.rows:
            self._say("it is, on every bookie: nothing to repair")
        self.result["repair_ledgers"] = report.to_dict()

    def _prove(
        self, bk: BookKeeper, ledger_ids: list[int], source: pa.Table, lost: BookieId
    ) -> bool:
        self._headline("The proof: everything is read again from the bookies' files")
        with self._output.progress("reading and comparing") as progress:
            answers = [
                proof.acknowledged_rows(self.result),
                proof.same_rows(bk, ledger_ids, source),
                proof.same_counts(bk, ledger_ids, source),
                proof.same_replicas(bk, ledger_ids),
                proof.nothing_missing(bk, ledger_ids, progress.phase),
                proof.names_nobody_lost(bk, ledger_ids, lost),
            ]
        for answer in answers:
            mark = "holds " if answer.holds else "BROKEN"
            self._say(f"{mark}  {answer.question}: {answer.evidence}")
        holds = all(answer.holds for answer in answers)
        self.result |= {"proved": holds, "proof": [answer._asdict() for answer in answers]}
        return holds

    def end(self, holds: bool, keep: Path | None) -> None:
        """Say how it ended, and what to type next."""
        seconds, say = time.monotonic() - self._began, self._output.say
        self.result["duration_ms"] = round(seconds * 1000)
        say("")
        if not holds:
            say(f"The proof does NOT hold ({seconds:.0f} s). Please report it, with this output.")
            return
        say(f"Nothing is missing ({seconds:.0f} s).")
        if keep is None:
            say("Everything is cleaned up. What to type next:")
            say("  spark-bookkeeper local start              a cluster that stays, to play with")
            say("  spark-bookkeeper demo --keep ./flights    the same again, and the cluster stays")
            return
        ledger_id = self.result["ledgers"][0]
        say("The cluster is kept. What to type next:")
        say(f"  spark-bookkeeper local start --directory {shlex.quote(str(keep))}")
        say("  export SPARK_BOOKKEEPER_METADATA_URI=...  as the command above says")
        say(f"  spark-bookkeeper ledger show {ledger_id}")
        say(f"  spark-bookkeeper ledger read {ledger_id} --limit 5")
        say("  spark-bookkeeper doctor")

    # Showing

    def _headline(self, text: str) -> None:
        self._step += 1
        seconds = time.monotonic() - self._began
        self._output.say(f"\n{self._step}. {text}   [{seconds:.0f} s]")

    def _say(self, text: str) -> None:
        self._output.say(f"   {text}")

    def _picture(self, bk: BookKeeper, ledger_id: int, lost: set[BookieId]) -> None:
        metadata = bk.context.store.read_ledger(parse_ledger_id(ledger_id)).value
        width = min(120, shutil.get_terminal_size((100, 24)).columns) - 6
        for line in draw_fragments(
            metadata.quorum, list(metadata.fragment_ranges()), lost & metadata.bookies(), width
        ):
            self._say(f"   {line}")
        self._say(f"   {legend(metadata.quorum)}")


@contextmanager
def _workplace() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="spark-bookkeeper-demo-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send this process's stderr to a file during the block: no option silences Java's launcher."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _stop_spark() -> None:
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()


def _bytes_below(directory: Path) -> int:
    """Return the bytes of all files. Files and directories may come and go meanwhile."""
    total = 0
    try:
        for path in directory.rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
    except FileNotFoundError:
        pass
    return total
