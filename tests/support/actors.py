"""Processes that write and recover ledgers, to be frozen, interrupted and killed by tests.

``python -m tests.support.actors write URI ...`` appends numbered rows as fast as it
may, and says on standard output, one JSON object a line, what it was told: nothing that it did
not say counts as acknowledged. ``Actor`` starts such a process and listens to it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import psutil
from typing_extensions import Self

from spark_bookkeeper.client.read.reader import Entry
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookKeeperError, LogOwnershipLostError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.log import Position
from tests.support.interrupts import Noise, interrupt_until_it_ends
from tests.support.rows import numbered, numbered_table
from tests.support.sessions import connect_without_spark, give_up_after

_MODULE = "tests.support.actors"
_PATIENCE_SECONDS = 120.0


class Actor:
    """One such process. A context manager: at its end the process is gone, whatever happened.

    Args:
        arguments: see ``main``.
        prefix: a program that starts it, with its arguments (``setpriv ...``).
    """

    def __init__(self, *arguments: object, prefix: Sequence[str] = ()) -> None:
        self.said: list[dict[str, Any]] = []
        self._heard = threading.Condition()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", _MODULE, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.noise = Noise(self.process.stderr)
        self._listener = threading.Thread(
            target=self._listen, args=[self.process.stdout], daemon=True
        )
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def wait_for(self, key: str, at_least: int | None = None) -> Any:
        """The first thing said under a key, or the first number of at least ``at_least``."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        with self._heard:
            while True:
                for message in self.said:
                    if key in message and (at_least is None or message[key] >= at_least):
                        return message[key]
                alive = self.process.poll() is None or self._listener.is_alive()
                assert alive, f"it ended without saying {key}: {self.said[-2:]} {self.noise.text}"
                assert time.monotonic() < deadline, f"it did not say {key}: {self.said[-2:]}"
                self._heard.wait(0.2)

    @property
    def ledger_id(self) -> int:
        """The ledger it writes; waits until it says so."""
        return int(self.wait_for("ledger"))

    @property
    def acknowledged(self) -> tuple[int, int]:
        """The last entry that it said is acknowledged, and the rows up to it."""
        with self._heard:
            told = [m for m in self.said if "acknowledged" in m]
        return max(((m["acknowledged"], m["rows"]) for m in told), default=(-1, 0))

    def error(self) -> tuple[str, str]:
        """Class and text of the error that ended it."""
        told = self.wait_for("error")
        return told["class"], told["text"]

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def freeze(self) -> None:
        """It stops in the middle of whatever it does; returns when it has."""
        self.process.send_signal(signal.SIGSTOP)
        process = psutil.Process(self.process.pid)
        while (status := process.status()) != psutil.STATUS_STOPPED:
            assert status != psutil.STATUS_ZOMBIE, f"it ended before: {self.said[-2:]}"
            time.sleep(0.001)

    def thaw(self) -> None:
        """It goes on as if nothing had happened."""
        self.process.send_signal(signal.SIGCONT)

    def interrupt(self) -> None:
        """Ctrl-C in its terminal: for its whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def interrupt_until_it_ends(self, seconds: float = _PATIENCE_SECONDS) -> int:
        """Ctrl-C, again after each one that Python dropped; returns how often."""
        return interrupt_until_it_ends(self.process, self.interrupt, self.noise, seconds)

    def wait(self) -> tuple[int, str]:
        """Wait for its end; returns its exit code and what it wrote to standard error."""
        code = self.process.wait(_PATIENCE_SECONDS)
        self._listener.join(_PATIENCE_SECONDS)
        return code, self.noise.whole()

    def kill(self) -> None:
        """SIGKILL; returns when it is gone and everything it said was heard. Idempotent."""
        self.process.kill()
        self.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _listen(self, pipe: IO[str]) -> None:
        for line in pipe:
            if not line.endswith("\n"):
                return  # it was killed in the middle of a word
            with self._heard:
                self.said.append(json.loads(line))
                self._heard.notify_all()


def say(**message: Any) -> None:
    """One line on standard output, in one piece."""
    os.write(1, json.dumps(message).encode() + b"\n")


def write(options: argparse.Namespace) -> None:
    """Append numbered rows until told to close, or until an error."""
    config = ClientConfig(metadata_timeout_ms=options.patience_ms)
    with connect_without_spark(options.uri, config=config) as bk:
        sizes = [int(size) for size in options.quorum.split("/")]
        writer = bk.create_ledger(
            ensemble_size=sizes[0],
            write_quorum_size=sizes[1],
            ack_quorum_size=sizes[2],
            entry_target_bytes=options.entry_bytes,
        )
        say(ledger=writer.ledger_id)
        try:
            with writer:
                {"small": _append_small, "bulk": _append_bulk, "both": _append_both}[options.kind](
                    writer, options
                )
                say(closing=True)
        except BookKeeperError as error:
            told = {"class": type(error).__name__, "text": error.message}
            say(error=told, confirmed=writer.last_add_confirmed)
        else:
            say(closed=writer.last_add_confirmed)


def _append_small(writer: LedgerWriter, options: argparse.Namespace) -> None:
    """One row an entry, many on their way at once."""
    failures: list[BaseException] = []
    all_told = threading.Event()
    for number in range(options.rows):
        future = writer.append_async(numbered(number, options.row_bytes))

        def told(done: Future[int], rows: int = number + 1) -> None:
            error = done.exception()
            if error is not None:
                failures.append(error)
            else:
                say(acknowledged=done.result(), rows=rows)
            if rows == options.rows:
                all_told.set()

        future.add_done_callback(told)
        if number % 16 == 15:
            time.sleep(options.pause_seconds)
        if failures:
            raise failures[0]
    writer.flush()
    all_told.wait(_PATIENCE_SECONDS)  # that all is acknowledged is certain before it is told
    _await_word(options)


def _append_bulk(writer: LedgerWriter, options: argparse.Namespace) -> None:
    """Tables of many entries, one after the other."""
    for first in range(0, options.rows, 100):
        last = writer.append(numbered_table(first, 100, options.row_bytes))
        say(acknowledged=last, rows=first + 100)
    _await_word(options)


def _append_both(writer: LedgerWriter, options: argparse.Namespace) -> None:
    """Small appends on their way while the tables are written."""
    for first in range(0, options.rows, 110):
        for number in range(first, first + 10):
            writer.append_async(numbered(number, options.row_bytes))
        last = writer.append(numbered_table(first + 10, 100, options.row_bytes))
        say(acknowledged=last, rows=first + 110)
    _await_word(options)


def _await_word(options: argparse.Namespace) -> None:
    say(written=True)
    if options.wait:
        sys.stdin.readline()


def recover(options: argparse.Namespace) -> None:
    """Open a ledger, which recovers it."""
    config = ClientConfig(metadata_timeout_ms=options.patience_ms)
    with connect_without_spark(options.uri, config=config) as bk:
        if options.give_up_after:
            give_up_after(bk, options.give_up_after)
        say(connected=True)
        try:
            say(closed=bk.open_ledger(options.ledger).last_add_confirmed)
        except BookKeeperError as error:
            say(error={"class": type(error).__name__, "text": error.message})


def stand_by(options: argparse.Namespace) -> None:
    """Lead a log or stand by, for ever, and say each entry: ``led`` and ``followed`` count them."""
    config = ClientConfig(metadata_timeout_ms=options.patience_ms, explicit_lac_ms=200)
    counts = {"led": 0, "followed": 0}
    following: Position | None = None

    def seen(place: Position, payload: str, role: str) -> None:
        nonlocal following
        counts[role] += 1
        following = Position(place.ledger_id, EntryId(place.entry_id + 1))
        say(**{role: counts[role]}, place=str(place), payload=payload)

    def follow(entry: Entry) -> None:
        place = Position(entry.ledger_id, EntryId(entry.entry_id))
        seen(place, entry.payload.decode(), "followed")

    with connect_without_spark(options.uri, config=config) as bk:
        log = bk.open_log(options.log)
        with log.elect() as vote:
            while True:
                try:
                    with log.stand_by(vote, follow, following) as writer:
                        while True:
                            payload = f"{os.getpid()}, {counts['led']}"
                            seen(writer.append(payload.encode()), payload, "led")
                            time.sleep(0.05)
                except LogOwnershipLostError:
                    say(deposed=counts["led"])


def local(options: argparse.Namespace) -> None:
    """A whole cluster, as ``spark_bookkeeper.local`` runs it, until standard input ends."""
    import spark_bookkeeper as sbk

    say(starting=True)
    with sbk.local(options.directory, bookies=options.bookies) as bk:
        assert bk.cluster is not None
        say(uri=bk.metadata_uri, zookeeper=bk.cluster.zookeeper.pid)
        sys.stdin.read()


def main(arguments: Sequence[str] | None = None) -> None:
    """``write URI``, ``recover URI LEDGER``, ``stand-by URI LOG`` or ``local DIRECTORY``."""
    parser = argparse.ArgumentParser(prog="tests.support.actors")
    commands = parser.add_subparsers(required=True)
    writing = commands.add_parser("write")
    writing.add_argument("uri")
    writing.add_argument("--kind", choices=["small", "bulk", "both"], default="small")
    writing.add_argument("--quorum", default="3/3/2")
    writing.add_argument("--rows", type=int, default=1_000_000)
    writing.add_argument("--row-bytes", type=int, default=24)
    writing.add_argument("--entry-bytes", type=int, default=256)
    writing.add_argument("--pause-seconds", type=float, default=0.001)
    writing.add_argument("--wait", action="store_true", help="for a line, before the close")
    writing.set_defaults(run=write)
    recovering = commands.add_parser("recover")
    recovering.add_argument("uri")
    recovering.add_argument("ledger", type=int)
    recovering.add_argument("--give-up-after", type=float, help="seconds, once it is connected")
    recovering.set_defaults(run=recover)
    standing = commands.add_parser("stand-by")
    standing.add_argument("uri")
    standing.add_argument("log")
    standing.set_defaults(run=stand_by)
    running = commands.add_parser("local")
    running.add_argument("directory", type=Path)
    running.add_argument("--bookies", type=int, default=3)
    running.set_defaults(run=local)
    for command in (writing, recovering, standing):
        command.add_argument("--patience-ms", type=int, default=60_000)
    options = parser.parse_args(arguments)
    # Whoever started the tests in the background may ignore Ctrl-C, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options.run(options)


if __name__ == "__main__":
    main()
