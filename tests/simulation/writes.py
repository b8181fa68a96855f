"""Writes to a log in one step, under a seed: streams and batch jobs, beside writers of the log.

A query has a checkpoint, as Spark keeps it: the end of each batch that was planned, and how many
batches it has noted as done. Its drivers may be several at once, those that were believed dead
among them; one may end between the commit of the log and the note, and one may have a checkpoint
as it was earlier. A batch job begins again with its first number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from typing_extensions import override

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.write.bulk import write_task
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError
from spark_bookkeeper.logs import atomic
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import open_log
from spark_bookkeeper.logs.staged_writes import abort
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.transactions import MicroBatch
from tests.simulator.checkers import InvariantError
from tests.simulator.log_lifetime import (
    NAME,
    LogLifetime,
    LogOutcome,
    LogScript,
)
from tests.simulator.scheduler import Actor, SimulationError, World

QUERIES: Final = ("query-a", "query-b")
JOB: Final = "job"


@dataclass(frozen=True, slots=True)
class Drive:
    """What one driver does."""

    begins_at: int
    """The operation of the run at which it begins."""
    app: str
    new_rows: tuple[int, ...]
    """How many rows come to the source before each of its batches."""
    is_put_back: int = 0
    """How many of the batches that were noted its checkpoint lacks; it is a copy then."""
    ends_unnoted: bool = False
    """Whether it ends when the log has its first batch, and the checkpoint not yet."""


@dataclass(slots=True)
class Checkpoint:
    """Of one query."""

    ends: list[int] = field(default_factory=list)
    """Behind which row of the source each batch ends that was planned."""
    noted: int = 0
    """How many batches are done."""

    def put_back(self, batches: int) -> Checkpoint:
        """As it was so many batches ago."""
        noted = max(0, self.noted - batches)
        return Checkpoint(self.ends[:noted], noted)

    def plan(self, available: int) -> tuple[int, range]:
        """The batch that is next, and its rows: the one that is not noted, again, if there is."""
        if len(self.ends) == self.noted:
            self.ends.append(available)
        begin = self.ends[self.noted - 1] if self.noted else 0
        return self.noted, range(begin, self.ends[self.noted])


def drawn(seed: int) -> tuple[LogScript, tuple[Drive, ...]]:
    """The script of a seed: that of a log, without truncations, and the drivers."""
    log = LogScript.drawn(seed)
    terms = tuple(replace(term, truncates=frozenset()) for term in log.terms[:2])
    # A task of a striped write makes entries without rows, too, which have no payload to compare.
    is_striped = log.quorum.ensemble_size > log.quorum.write_quorum_size
    log = replace(log, terms=terms, quorum=Quorum(3, 3, 2) if is_striped else log.quorum)
    dice = random.Random(f"{seed}/writes")
    drives = tuple(
        Drive(
            begins_at=dice.randint(0, 400),
            app=dice.choice((*QUERIES, QUERIES[0], JOB)),
            new_rows=tuple(dice.randint(0, 2) for _ in range(dice.randint(1, 4))),
            is_put_back=dice.choice((0, 0, 0, 1, 2)),
            ends_unnoted=dice.random() < 0.3,
        )
        for _ in range(dice.randint(2, 6))
    )
    return log, drives


def run_writes(seed: int) -> LogOutcome:
    """Run one lifetime to its end.

    Raises:
        SimulationError: an invariant broke, or the code hung or failed in an unforeseen way.
    """
    script, drives = drawn(seed)
    with World(seed, None) as world:
        try:
            return _Writes(world, script, drives).run()
        except SimulationError as error:
            raise type(error)(
                f"{error}\n{drives}\n{script}\nseed {seed}; repeat with `python -m pytest "
                f"tests/simulation/test_writes.py -k lifetimes --seed {seed}`"
            ) from error


class _Writes(LogLifetime):
    def __init__(self, world: World, script: LogScript, drives: tuple[Drive, ...]) -> None:
        super().__init__(world, script)
        self._drives = drives
        self._checkpoints = {query: Checkpoint() for query in QUERIES}
        self._available = Counter[str]()
        """How many rows the source of each query has."""
        self._done = Counter[str]()
        """Behind which row each application was told that all is in the log."""
        self._copied = {drive.app for drive in drives if drive.is_put_back}

    @override
    def run(self) -> LogOutcome:
        for number, drive in enumerate(self._drives):
            act: Callable[[Actor, Drive], None] = self._job if drive.app == JOB else self._stream
            self._enter(
                f"driver-{number}",
                drive.begins_at,
                lambda actor, act=act, drive=drive: self._told_of(actor, act, drive),  # type: ignore[misc]  # bound early
            )
        return super().run()

    def _told_of(self, actor: Actor, act: Callable[[Actor, Drive], None], drive: Drive) -> None:
        try:
            act(actor, drive)
        except BookKeeperError as error:
            self._note(actor, error)

    def _stream(self, actor: Actor, drive: Drive) -> None:
        context, app = self._context(actor), drive.app
        checkpoint = self._checkpoints[app]
        if drive.is_put_back:
            checkpoint = checkpoint.put_back(drive.is_put_back)
        for new_rows in drive.new_rows:
            self._available[app] += new_rows
            number, numbers = checkpoint.plan(self._available[app])
            try:
                self._write_batch(context, MicroBatch(app, number, len(numbers)), numbers)
            except InvalidArgumentError as error:
                if app not in self._copied and number >= self._checkpoints[app].noted:
                    self._fail(f"a batch that is repeated is refused: {error}")
                raise
            self._done[app] = max(self._done[app], numbers.stop)
            if drive.ends_unnoted:
                return
            checkpoint.noted = max(checkpoint.noted, number + 1)

    def _write_batch(self, context: ClientContext, batch: MicroBatch, numbers: range) -> None:
        """As the sink does: a task for each row, and another process that commits."""
        staged = atomic.stage(context, NAME, owner=batch.app_id)
        try:
            results = [
                write_task(
                    staged.plan, self._rows(batch.app_id, number).to_batches(), task, context
                )
                for task, number in enumerate(numbers)
            ]
            done = atomic.commit(context, staged, results, batch)
        except BookKeeperError:
            abort(context, staged)
            raise
        self._world.history.note(batch.app_id, "wrote", batch.version, str(numbers), str(done))

    def _job(self, actor: Actor, drive: Drive) -> None:
        log: Log = open_log(self._context(actor), NAME)
        for number in range(len(drive.new_rows)):
            log.write(self._rows(JOB, number), txn_app_id=JOB, txn_version=number)
            self._done[JOB] = max(self._done[JOB], number + 1)

    def _rows(self, app: str, number: int) -> pa.Table:
        payload = f"{app}.{number}".encode()
        self._told.appended.setdefault(payload, 0)
        return pa.table({"payload": pa.array([payload], pa.binary())})

    @override
    def _finish(self, actor: Actor) -> None:
        """Nothing fails any more: what a checkpoint has not noted is repeated, and all is there."""
        for query in QUERIES:
            if query not in self._copied:
                self._told_of(actor, self._stream, Drive(0, query, (1, 1)))
        super()._finish(actor)
        log = open_log(self._context(actor), NAME)
        found = [entry.payload.decode().rsplit(".", 1) for entry in log.entries()]
        for app in (*QUERIES, JOB):
            numbers = [int(number) for of, *rest in found for number in rest if of == app]
            if numbers != list(range(max(len(numbers), self._done[app]))):
                raise InvariantError(
                    f"acked-entries-are-readable: {app} was told that it has all rows up to "
                    f"{self._done[app]}, and the log has {numbers}"
                )
            if app in QUERIES and app not in self._copied and len(numbers) < self._available[app]:
                self._fail(f"a repeated batch leaves out rows: {numbers}")
