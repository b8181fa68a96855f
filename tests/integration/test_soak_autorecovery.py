"""A cluster that is hurt every minute for half an hour, and is whole at the end.

Six bookies, each on a small disk of its own; three that do autorecovery: one inside the agent of a
bookie, one beside another, one alone; writers and readers. Every minute something is killed,
frozen, wiped or filled, and comes back; each kind of blow comes before any comes again. At the end
everything that was acknowledged is read, every fragment has all its replicas ``WHOLE_SECONDS``
after the last blow, and nothing is left of all those that worked. Nobody helps autorecovery: what
a writer that was killed left open, and lost a bookie, it closes itself.

The slow run takes four kinds of blow, one after the other, and other ones the next day: in four
days all of them. ``SPARK_BOOKKEEPER_SOAK_DAY=2026-11-28`` takes those of that day. All thirteen
take two minutes and as long as it takes to be whole; this is the long form, with a blow each
minute::

    SPARK_BOOKKEEPER_SOAK_SECONDS=1800 python -m pytest -m exhaustive -s \
        tests/integration/test_soak_autorecovery.py

``SPARK_BOOKKEEPER_SOAK_SEED`` draws another order of blows, and
``SPARK_BOOKKEEPER_SOAK_ENGINE=spark`` has the one that is alone work with Spark (2 GiB of memory
more). What happened is in ``soak.log`` of the test's directory, and on the terminal at the end.
Each bookie has a file system of its own, so it takes root and the right to mount: where the soak
was asked for by one of these variables and cannot be, it fails, and else it is skipped.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Final

import psutil
import pytest
from kazoo.client import KazooClient

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.bookie.partition import AGENT_PROBE_PREFIX
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.storage.new_file import is_temporary
from tests.support.actors import Actor
from tests.support.program import Program, until
from tests.support.rows import check_numbered_ledger
from tests.support.sessions import connect_without_spark
from tests.support.small_disk import MountRefusedError, SmallDisk

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

SECONDS: Final = float(os.environ.get("SPARK_BOOKKEEPER_SOAK_SECONDS", "120"))
SEED: Final = int(os.environ.get("SPARK_BOOKKEEPER_SOAK_SEED", "1"))
ENGINE: Final = os.environ.get("SPARK_BOOKKEEPER_SOAK_ENGINE", "local")
DAY: Final = date.fromisoformat(
    os.environ.get("SPARK_BOOKKEEPER_SOAK_DAY", datetime.now(timezone.utc).date().isoformat())
)
IS_ASKED_FOR: Final = any(name.startswith("SPARK_BOOKKEEPER_SOAK_") for name in os.environ)

WHOLE_SECONDS: Final = 300.0
"""After a blow, and so after the last one, every ledger is whole within this."""

BOOKIES: Final = 6
WORKERS: Final = 2
"""Processes of autorecovery, besides the one in the agent of the first bookie."""

AWAY_SECONDS: Final = 15.0
"""Longer than a session: whoever is frozen for so long has lost what it held."""

CONF: Final = """\
metadata_timeout_ms = 6_000

probe_interval_ms = 1_000
readonly_below_free_bytes = 8_388_608
writable_above_free_bytes = 16_777_216
http_host = ""

ledger_check_interval_s = 30
ledger_check_percentage = 100
open_ledger_grace_ms = 5_000
retry_first_ms = 500
retry_most_ms = 5_000
"""


class Bookie:
    """One bookie: a disk, and the process of its agent."""

    def __init__(self, soak: Soak, number: int) -> None:
        self._soak = soak
        self.bookie_id = f"127.0.0.1:{3181 + number}"
        self._with_autorecovery = ("--autorecovery",) if number == 0 else ()
        self.disk = SmallDisk(soak.directory / "bookies" / str(number), "512m")
        self.agent: Program | None = None

    def start(self) -> None:
        options = ("--bookie-id", self.bookie_id, "--root", self.disk.root)
        command = ("bookie", "start", *options, *self._with_autorecovery)
        self.agent = self._soak.program(f"bookie {self.bookie_id}", *command)
        self.agent.wait_for("serves")

    def wipe(self) -> None:
        """As when a disk was replaced; a writer may be adding files at this moment."""
        for _ in range(3):
            for path in self.disk.root.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def kill(self) -> None:
        assert self.agent is not None
        self.agent.kill()

    def begin_anew(self) -> None:
        """Make it a new, empty bookie of the same id."""
        options = ("--bookie-id", self.bookie_id, "--root", self.disk.root, "--yes")
        made = self._soak.program(f"format {self.bookie_id}", "bookie", "format", *options)
        assert made.process.wait(120) == 0, made.said
        self.start()


class Writing:
    """Makes one ledger after the other, each in a process; what was acknowledged is remembered."""

    def __init__(self, soak: Soak, *arguments: object) -> None:
        self._soak = soak
        self._arguments = arguments
        self._is_stopping = threading.Event()
        self.actor: Actor | None = None
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """By ledger: the last entry that was acknowledged, and the rows up to it."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell_to_stop(self) -> None:
        """Begin no further ledger."""
        self._is_stopping.set()

    def stop(self) -> None:
        self.tell_to_stop()
        self._thread.join(300)
        assert not self._thread.is_alive(), "a writer waits for ever"

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            with Actor("write", self._soak.uri, *self._arguments) as actor:
                self.actor = actor
                actor.process.wait(600)
                actor.wait()
                for said in actor.said:
                    if "ledger" in said:
                        self.acknowledged[said["ledger"]] = actor.acknowledged
                    elif "error" in said:
                        self._soak.say(f"a writer: {said['error']['class']}")
            self._is_stopping.wait(5.0)


class Reading:
    """Reads ledgers that are written, and those that are not any more, over and over."""

    def __init__(self, soak: Soak, writers: list[Writing]) -> None:
        self._soak = soak
        self._writers = writers
        self._is_stopping = threading.Event()
        self.count = 0
        self.wrong: list[str] = []
        self.refusals: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(300)
        assert not self._thread.is_alive(), "a reader waits for ever"

    def _run(self) -> None:
        dice = random.Random(f"{SEED}/reading")
        with connect_without_spark(self._soak.uri) as bk:
            while not self._is_stopping.wait(0.5):
                known = [i for each in self._writers for i in list(each.acknowledged)]
                with suppress(BookKeeperError):
                    known += bk.ledgers_arrow().column("ledger_id").to_pylist()[-3:]
                if known:
                    self._read(bk, dice.choice(known))

    def _read(self, bk: BookKeeper, ledger_id: int) -> None:
        try:
            with bk.open_ledger_no_recovery(ledger_id) as reader:
                entries = list(reader.entries())
                numbers = [int(row[:10]) for e in entries for row in e.batch.column(0).to_pylist()]
                if numbers != list(range(len(numbers))):
                    self.wrong.append(f"ledger {ledger_id}: {numbers}")
            self.count += 1
        except BookKeeperError as error:
            self.refusals[type(error).__name__] += 1
            self._soak.say(f"a reader of ledger {ledger_id}: {error.message}")


class Soak:
    """The cluster, all who work in it, and what is done to them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.token = f"soak-{os.getpid()}-{time.monotonic_ns()}"
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        (directory / "soak.toml").write_text(CONF)
        self._began = time.monotonic()
        self._dice = random.Random(SEED)
        self._programs: list[Program] = []
        self.bookies: list[Bookie] = []
        self.workers: list[Program] = []
        self.writers: list[Writing] = []
        self.zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        self._bk: BookKeeper | None = None

    # The cluster

    @property
    def uri(self) -> str:
        return f"zk://{self.zookeeper.address}/ledgers"

    @property
    def bk(self) -> BookKeeper:
        assert self._bk is not None
        return self._bk

    def start(self) -> None:
        self.zookeeper.start()
        made = self.program("cluster", "cluster", "init")
        assert made.process.wait(120) == 0, made.said
        for number in range(BOOKIES):
            self.bookies.append(Bookie(self, number))
        for bookie in self.bookies:
            bookie.start()
        self._bk = connect_without_spark(self.uri)
        for number in range(WORKERS):
            self._start_worker(number)

    def program(self, log: str, *arguments: object) -> Program:
        """A command of ours on this cluster."""
        environment = {
            "SPARK_BOOKKEEPER_METADATA_URI": self.uri,
            "SPARK_BOOKKEEPER_CONF": str(self.directory / "soak.toml"),
        }
        path = self.directory / f"{log}.log"
        made = Program(path, *arguments, environment=environment)
        self._programs.append(made)
        return made

    def _start_worker(self, number: int) -> None:
        """The first one runs beside a bookie and copies only to it; the other spreads."""
        how = ["--engine", ENGINE]
        if number == 0:
            how = ["--engine", "local", "--beside", self.bookies[1].bookie_id]
        command = ("autorecovery", "start", *how)
        worker = self.program(f"worker {number}", *command)
        worker.wait_for("autorecovery runs")
        self.workers[number : number + 1] = [worker]

    def say(self, text: str) -> None:
        with open(self.directory / "soak.log", "a", encoding="utf-8") as log:
            log.write(f"{time.monotonic() - self._began:8.1f} {text}\n")

    def is_whole(self) -> bool:
        """No ledger counts on a bookie that is not there as it was, and nothing is published."""
        try:
            return not self.bk.audit(dry_run=True).rows and not any(
                self.bk.context.store.underreplication.ledger_ids()
            )
        except BookKeeperError:
            return False

    def until_whole(self) -> None:
        seconds = until(self.is_whole, f"whole (seed {SEED})", 1.0, WHOLE_SECONDS)
        self.say(f"whole after {seconds:.1f} s")

    # The blows

    def blows(self, kinds: Sequence[Callable[[], None]]) -> Iterator[Callable[[], None]]:
        """Each kind once, in any order, and then again."""
        while True:
            yield from self._dice.sample(kinds, len(kinds))

    @property
    def some_kinds(self) -> Sequence[Callable[[], None]]:
        """Those of the day: four, each the third one after the other; in four days all thirteen."""
        first, kinds = DAY.toordinal(), self.kinds
        return [kinds[(first + third) % len(kinds)] for third in (0, 3, 6, 9)]

    @property
    def kinds(self) -> Sequence[Callable[[], None]]:
        """Every kind of blow."""
        return (
            self.kill_bookie,
            self.freeze_bookie,
            self.wipe_stopped_bookie,
            self.wipe_living_bookie,
            self.fill_bookie,
            self.kill_worker,
            self.freeze_worker,
            self.kill_writer,
            self.freeze_writer,
            self.kill_zookeeper,
            self.freeze_zookeeper,
            self.lose_bookie_while_zookeeper_restarts,
            self.switch,
        )

    def kill_bookie(self) -> None:
        bookie = self._dice.choice(self.bookies)
        bookie.kill()
        time.sleep(self._dice.choice((0.0, AWAY_SECONDS)))
        bookie.start()

    def freeze_bookie(self) -> None:
        agent = self._dice.choice(self.bookies).agent
        assert agent is not None
        self._frozen(agent.freeze, agent.thaw)

    def wipe_stopped_bookie(self) -> None:
        self.until_whole()
        bookie = self._dice.choice(self.bookies)
        bookie.kill()
        bookie.wipe()
        self._come_back(bookie)

    def wipe_living_bookie(self) -> None:
        self.until_whole()
        bookie = self._dice.choice(self.bookies)
        bookie.wipe()
        self._wait_until_away(bookie)
        bookie.kill()
        self._come_back(bookie)

    def _wait_until_away(self, bookie: Bookie) -> None:
        until(lambda: bookie.bookie_id not in self._registered(), "its registration goes")

    def _come_back(self, bookie: Bookie) -> None:
        self._wait_until_away(bookie)
        self.until_whole()
        bookie.wipe()  # what writers may have added to it since
        bookie.begin_anew()

    def fill_bookie(self) -> None:
        bookie = self._dice.choice(self.bookies)
        bookie.disk.fill()
        until(lambda: self._registered().get(bookie.bookie_id) is True, "read-only")
        time.sleep(AWAY_SECONDS)
        bookie.disk.clear()
        until(lambda: self._registered().get(bookie.bookie_id) is False, "writable again")

    def kill_worker(self) -> None:
        number = self._dice.randrange(WORKERS)
        with self._bookie_away():
            self.workers[number].kill()
        self._start_worker(number)

    def freeze_worker(self) -> None:
        worker = self._dice.choice(self.workers)
        with self._bookie_away():
            self._frozen(worker.freeze, worker.thaw)

    @contextmanager
    def _bookie_away(self) -> Iterator[None]:
        """Workers have something to do: a bookie was lost this moment."""
        bookie = self._dice.choice(self.bookies)
        bookie.kill()
        self._wait_until_away(bookie)
        try:
            yield
        finally:
            bookie.start()

    def kill_writer(self) -> None:
        actor = self._dice.choice(self.writers).actor
        if actor is not None:
            actor.process.kill()

    def freeze_writer(self) -> None:
        """Its ledger may be fenced meanwhile, and then it must be told."""
        actor = self._dice.choice(self.writers).actor
        if actor is not None:
            process = actor.process
            self._frozen(
                lambda: process.send_signal(signal.SIGSTOP),
                lambda: process.send_signal(signal.SIGCONT),
            )

    def kill_zookeeper(self) -> None:
        os.kill(self.zookeeper.pid or 0, signal.SIGKILL)
        until(lambda: not self.zookeeper.is_running, "gone")
        self.zookeeper.start()

    def freeze_zookeeper(self) -> None:
        pid = self.zookeeper.pid or 0
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._dice.uniform(1, 10))
        os.kill(pid, signal.SIGCONT)

    def lose_bookie_while_zookeeper_restarts(self) -> None:
        """Nobody hears of it when it happens: the session of its agent ends with no one there."""
        self.until_whole()
        bookie = self._dice.choice(self.bookies)
        os.kill(self.zookeeper.pid or 0, signal.SIGKILL)
        bookie.kill()
        bookie.wipe()
        until(lambda: not self.zookeeper.is_running, "gone")
        self.zookeeper.start()
        self._come_back(bookie)

    def switch(self) -> None:
        """What is lost while it is off is made good when it is on again."""
        self.bk.autorecovery.disable()
        bookie = self._dice.choice(self.bookies)
        bookie.kill()
        time.sleep(AWAY_SECONDS)
        bookie.start()
        self.bk.autorecovery.enable()

    def _frozen(self, freeze: Callable[[], None], thaw: Callable[[], None]) -> None:
        freeze()
        time.sleep(AWAY_SECONDS)
        thaw()

    def _registered(self) -> dict[str, bool]:
        """Those that are there, and whether they are read-only."""
        try:
            there = self.bk.context.store.registrations()
        except BookKeeperError:
            return {}
        return {each.bookie_id: each.is_readonly for each in there}

    # The end

    def stop(self) -> None:
        """Ask everybody to end, and see that all did."""
        for program in [*self.workers, *(b.agent for b in self.bookies if b.agent is not None)]:
            assert program.stop() == 0, program.said[-2000:]
        assert self._bk is not None
        self._bk.close()
        self._bk = None

    def close(self) -> None:
        """Whatever happened, nobody stays."""
        for program in self._programs:
            if program.is_running:
                program.kill()
        for writer in self.writers:
            if writer.actor is not None:
                writer.actor.process.kill()
        if self._bk is not None:
            self._bk.close()
        self.zookeeper.stop()
        for bookie in self.bookies:
            bookie.disk.unmount()


@pytest.fixture
def soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Soak]:
    made = Soak(tmp_path)
    monkeypatch.setenv("TMPDIR", str(made.temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("SPARK_BOOKKEEPER_SOAK", made.token)
    try:
        made.start()
        yield made
    except MountRefusedError as refused:
        if IS_ASKED_FOR:
            raise
        pytest.skip(str(refused))
    finally:
        made.close()


@pytest.mark.parametrize(
    ("which", "seconds"),
    [
        pytest.param("some_kinds", 0.0, marks=pytest.mark.slow),
        pytest.param("kinds", SECONDS, marks=pytest.mark.exhaustive),
    ],
    ids=["a few blows", "every kind"],
)
def test_hurt_every_minute_for_long_it_is_whole_at_the_end(
    soak: Soak, which: str, seconds: float
) -> None:
    soak.writers += [
        Writing(soak, "--rows", 480, "--pause-seconds", 0.5),
        Writing(soak, "--rows", 800, "--pause-seconds", 0.2, "--quorum", "4/3/2"),
        Writing(soak, "--rows", 2200, "--kind", "both"),
    ]
    readers = [Reading(soak, soak.writers)]
    began = last_blow = time.monotonic()
    kinds: Sequence[Callable[[], None]] = getattr(soak, which)
    print(f"The day is {DAY}, the seed {SEED}: {', '.join(kind.__name__ for kind in kinds)}")
    blows = soak.blows(kinds)
    count = 0
    while time.monotonic() - began < seconds or count < len(kinds):
        minute = time.monotonic() + min(60.0, seconds / len(kinds))
        blow = next(blows)
        soak.say(blow.__name__)
        try:
            blow()
        except BaseException:
            soak.say(traceback.format_exc())
            raise
        count += 1
        last_blow = time.monotonic()  # what was hurt has come back by now
        time.sleep(max(0.0, minute - time.monotonic()))

    # Whole again, within the time that is stated; those who write and read go on meanwhile.
    notes = Notes(soak.bk.context.store.registers)

    def has_every_replica() -> bool:
        """Of all that is closed; what is open grows."""
        ledgers = soak.bk.ledgers_arrow().to_pylist()
        closed = [row["ledger_id"] for row in ledgers if row["state"] == "CLOSED"]
        is_checked = soak.bk.check_ledgers(closed, percentage=100).is_complete
        return is_checked and soak.is_whole() and not list(notes.ledger_ids())

    left = WHOLE_SECONDS - (time.monotonic() - last_blow)
    until(has_every_replica, f"every replica (seed {SEED})", 1.0, left)
    took = time.monotonic() - last_blow
    soak.say(f"every fragment is fully replicated {took:.1f} s after the last blow")

    # What killed writers left open and lost no bookie is nobody's before it is opened.
    for writer in soak.writers:
        writer.tell_to_stop()
    for writer in soak.writers:
        writer.stop()
    until(lambda: readers[0].count > 10 or bool(readers[0].wrong), "ten reads")
    readers[0].stop()
    soak.say(f"{count} blows; readers: {readers[0].count} reads, {readers[0].refusals}")
    soak.bk.recover_ledgers()
    until(has_every_replica, f"every replica of all (seed {SEED})", 1.0, WHOLE_SECONDS)

    # Everything that was acknowledged is readable, and on all its bookies.
    assert not readers[0].wrong
    entries = 0
    for writer in soak.writers:
        for ledger_id, (last, rows) in writer.acknowledged.items():
            entries += check_numbered_ledger(soak.bk, ledger_id, last, rows, copies=3)
    assert entries > 100
    soak.say(f"{entries} rows of {soak.bk.ledgers_arrow().num_rows} ledgers were read")
    print((soak.directory / "soak.log").read_text())

    # And nobody has left anything.
    tree = soak.bk.context.store.underreplication
    assert list(tree.ledger_ids()) == []
    assert dict(tree.locks()) == {}
    soak.stop()
    until(lambda: ephemeral_nodes(soak.zookeeper.address) == [], "no lock, vote or registration")
    soak.zookeeper.stop()
    assert [p for p in psutil.process_iter() if soak.token in environment_of(p)] == []
    assert left_files(soak) == []


def ephemeral_nodes(address: str) -> list[str]:
    """Locks, votes, registrations and the like of those who are still there, or were just now."""
    client = KazooClient(address)
    client.start()
    found: list[str] = []

    def look(path: str) -> None:
        stat = client.exists(path)
        if stat is not None and stat.ephemeralOwner:
            found.append(path)
        for name in client.get_children(path):
            look(f"{path.rstrip('/')}/{name}")

    try:
        look("/ledgers")
    finally:
        client.stop()
        client.close()
    return found


def environment_of(process: psutil.Process) -> str:
    if process.pid == os.getpid():
        return ""
    with suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.environ().get("SPARK_BOOKKEEPER_SOAK", "")
    return ""


def left_files(soak: Soak) -> list[Path]:
    """Files and directories that were only to be there for a moment."""
    left = list(soak.temporary.iterdir())
    for bookie in soak.bookies:
        left += [
            path
            for path in bookie.disk.root.rglob("*")
            if is_temporary(path.name) or path.name.startswith(AGENT_PROBE_PREFIX)
        ]
    return left
