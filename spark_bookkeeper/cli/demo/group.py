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
from spark_bookkeeper.cli.demo.process import Event, WriterProcess
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

BOOKIES: Final = 6

KILL_AFTER: Final = 200
"""The number of small appends that are acknowledged before the writer is killed."""

SHOWN_ENTRIES: Final = 8
"""The number of entries of an append whose acknowledgements are shown."""

LOOK_SECONDS: Final = 0.01
"""The time between two looks at a bookie's files, until the writer has written there."""


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
    story = _Story(settings.output, keep)
    holds = story.tell()
    settings.output.result(story.result, lambda: None)
    return EXIT_DONE if holds else EXIT_LEFT_UNDONE


class _Story:
    """The steps, in order, each shown as it happens."""

    def __init__(self, output: Output, keep: Path | None) -> None:
        self._output = output
        self._keep = keep
        self._began = time.monotonic()
        self._step = 0
        self.result: dict[str, Any] = {}

    def tell(self) -> bool:
        """Run the steps; return whether the proof holds."""
        with _workplace() as place:
            source = self._rows(place)
            self._headline("A cluster from nothing: one ZooKeeper, six bookies")
            directory = self._keep if self._keep is not None else place / "cluster"
            with local(directory, BOOKIES) as bk:
                self._show_cluster(bk)
                try:
                    first, lost = self._write_until_killed(bk, place, source)
                    self._recover_ledger(bk, first, lost)
                    second = self._write_the_rest(bk, first, source, place / "spark.log")
                    self._recover_bookie(bk, first, lost)
                    self._repair(bk, [first, second])
                    holds = self._prove(bk, [first, second], source, lost)
                finally:
                    _stop_spark()
        self._farewell(holds, first)
        return holds

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

    def _show_cluster(self, bk: BookKeeper) -> None:
        assert bk.cluster is not None
        self._say(f"metadata   {bk.metadata_uri}")
        self._say(f"bookies    {', '.join(bk.cluster.bookie_ids)}")
        self._say(f"each one is a directory of Arrow files: {bk.cluster.directory}/bookies/1 ...")

    def _write_until_killed(
        self, bk: BookKeeper, place: Path, source: pa.Table
    ) -> tuple[int, BookieId]:
        self._headline("A writer in a process of its own; entries go in stripes to 3 of 4 bookies")
        with WriterProcess(bk.metadata_uri, place / "rows.arrow", place / "writer") as writer:
            self._say(f"process {writer.pid} starts Spark ...")
            writer.wait_for("ready")
            created = writer.wait_for("created")
            ledger_id = created["ledger_id"]
            self._say(
                f"ledger {ledger_id}: E=4 bookies share the entries, Qw=3 hold each, Qa=2 "
                "acknowledge it"
            )
            done = self._appended(bk, writer, writer.wait_for("appending"))
            self._show_acks(done)

            self._headline("A bookie is destroyed while the second DataFrame is appended")
            begun = writer.wait_for("appending")
            lost = self._destroy_one(bk, writer, created["ensemble"][1])
            done = self._appended(bk, writer, begun)
            self._show_acks(done)
            self._say("the writer replaced it and went on in a new fragment:")
            self._picture(bk, ledger_id, {lost})

            self._headline("The writer is killed in the middle of small appends (SIGKILL)")
            acknowledged = writer.wait_for("acknowledged")
            for _ in range(KILL_AFTER):
                acknowledged = writer.wait_for("acknowledged")
            writer.kill()
            for event in writer.remaining():
                acknowledged = event if event["event"] == "acknowledged" else acknowledged
        self._say(
            f"the last it told us: entry {acknowledged['entry_id']} is acknowledged, which is "
            f"{acknowledged['rows']:,} rows"
        )
        self.result |= {
            "acknowledged_entry_id": acknowledged["entry_id"],
            "acknowledged_rows": acknowledged["rows"],
            "lost_bookie": lost,
        }
        return ledger_id, lost

    def _appended(self, bk: BookKeeper, writer: WriterProcess, begun: Event) -> Event:
        """Wait for the end of an append, and show how many bytes have reached the bookies."""
        what = f"appending a Spark DataFrame of {begun['rows']:,} rows"
        before = _stored_bytes(bk)
        with self._output.progress(what, unit="MB") as progress:
            while True:
                event = writer.poll(0.2)
                progress.set(round(max(0, _stored_bytes(bk) - before) / 1e6))
                if event is not None and event["event"] == "appended":
                    break
        last = event["last_add_confirmed"]
        self._say(
            f"{begun['rows']:,} rows in entries {begun['first_entry_id']}..{last}, acknowledged "
            f"after {event['at'] - begun['at']:.1f} s"
        )
        return event

    def _destroy_one(self, bk: BookKeeper, writer: WriterProcess, victim: str) -> BookieId:
        """Destroy a bookie's storage when rows of the current append begin to arrive there."""
        assert bk.cluster is not None
        root = bk.cluster.root_of(victim)
        before = _bytes_below(root)
        deadline = time.monotonic() + 30.0
        while _bytes_below(root) == before and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        bk.cluster.stop_bookie(victim, destroy=True)
        self._say(f"{victim}: its directory is gone, with everything in it")
        return BookieId(victim)

    def _recover_ledger(self, bk: BookKeeper, ledger_id: int, lost: BookieId) -> None:
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
            with bk.create_ledger(
                ensemble_size=4,
                write_quorum_size=3,
                ack_quorum_size=2,
                schema=source.schema,
                name="flights",
            ) as writer:
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
        acknowledged = self.result["acknowledged_rows"]
        kept = self.result["rows_in_first"]
        answers = [
            proof.Answer(
                "every acknowledged row is in the ledger that was recovered",
                acknowledged <= kept,
                f"{acknowledged:,} rows acknowledged, {kept:,} in the ledger",
            )
        ]
        with self._output.progress("reading and comparing") as progress:
            answers.append(proof.same_rows(bk, ledger_ids, source))
            answers.append(proof.same_counts(bk, ledger_ids, source))
            answers.append(proof.same_replicas(bk, ledger_ids))
            answers.append(proof.nothing_missing(bk, ledger_ids, progress.phase))
            answers.append(proof.names_nobody_lost(bk, ledger_ids, lost))
        for answer in answers:
            mark = "holds " if answer.holds else "BROKEN"
            self._say(f"{mark}  {answer.question}: {answer.evidence}")
        holds = all(answer.holds for answer in answers)
        self.result |= {
            "proved": holds,
            "proof": [
                {"question": a.question, "holds": a.holds, "evidence": a.evidence} for a in answers
            ],
        }
        return holds

    def _farewell(self, holds: bool, ledger_id: int) -> None:
        seconds = time.monotonic() - self._began
        self.result["duration_ms"] = round(seconds * 1000)
        say = self._output.say
        say("")
        if not holds:
            say(f"The proof does NOT hold ({seconds:.0f} s). Please report it, with this output.")
            return
        say(f"Nothing is missing ({seconds:.0f} s).")
        if self._keep is None:
            say("Everything is cleaned up. What to type next:")
            say("  spark-bookkeeper local start              a cluster that stays, to play with")
            say("  spark-bookkeeper demo --keep ./flights    the same again, and the cluster stays")
        else:
            start = f"spark-bookkeeper local start --directory {shlex.quote(str(self._keep))}"
            say("The cluster is kept. What to type next:")
            say(f"  {start}")
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

    def _show_acks(self, event: Event) -> None:
        rows = event["acks"]
        self._say("who acknowledged what, and how long it took:")
        for line in draw_acks(rows, SHOWN_ENTRIES):
            self._say(f"   {line}")
        stored = [row for row in rows if row["status"] == "stored"]
        self._say(
            f"   {len({row['entry_id'] for row in rows})} entries, {len(stored)} copies stored, "
            f"{sum(row['acknowledged'] for row in stored)} of them of acknowledged entries"
        )


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


def _stored_bytes(bk: BookKeeper) -> int:
    assert bk.cluster is not None
    return sum(_bytes_below(bk.cluster.root_of(bookie)) for bookie in bk.cluster.bookie_ids)


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
