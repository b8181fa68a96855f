"""One file of one bookie is damaged anywhere: every job ends, and gives the rows of the others."""

from __future__ import annotations

import random
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import RecoveryUndecidedError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.repair_ledgers import repair_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.snapshots import Snapshot
from tests.support.damage import TYPED, Damage, every_damage, some_damages, typed_rows
from tests.worlds import USUAL, first_of

PASSWORD: Final = b"secret"
COUNT: Final = 30


@dataclass(frozen=True)
class Kind:
    """How a ledger is encoded."""

    is_typed: bool
    digest_type: DigestType
    compression: str | None

    def __str__(self) -> str:
        rows = "typed" if self.is_typed else "bytes"
        return f"{rows} {self.digest_type.name} {self.compression or 'plain'}"


KINDS: Final = [
    Kind(True, DigestType.CRC32C, "lz4"),
    Kind(False, DigestType.MAC, "zstd"),
    Kind(True, DigestType.CRC32, None),
]
"""Without ``DUMMY``, where nobody can know which rows are right: tests/bookie has that."""

ALL_KINDS: Final = pytest.mark.parametrize("kind", first_of(*KINDS), ids=str)
DRAWN: Final = pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.full)])
"""How many damages of each file."""


class Case:
    """A ledger on four bookies, of which three hold it, and what was appended to it."""

    def __init__(self, directory: Path, kind: Kind, *, is_open: bool) -> None:
        self.ground = Ground(directory, runtime=InlineRuntime())
        if kind.is_typed:
            self.rows = pa.Table.from_batches([typed_rows(0, COUNT)])
        else:
            values = [b"payload %d" % n for n in range(COUNT)]
            self.rows = pa.table({"payload": pa.array(values, pa.binary())})
        writer = lifecycle.create_ledger(
            self.ground.context,
            USUAL,
            schema=TYPED if kind.is_typed else None,
            digest_type=kind.digest_type,
            password=PASSWORD,
            compression=kind.compression,
            entry_target_bytes=400,
        )
        self.ledger_id = writer.ledger_id
        for number in (0, 1, 2):  # a slot each, then parts, then a slot again
            self._append(writer, number, number + 1)
        self._append(writer, 3, COUNT - 1)
        self._append(writer, COUNT - 1, COUNT)
        writer._pipeline.drain()
        self.ensemble = writer.metadata.last_fragment.ensemble
        (self.spare,) = set(self.ground.bookie_ids) - set(self.ensemble)
        writer.abandon()
        if not is_open:
            recover_ledger(self.ground.client(), self.ledger_id)

    def on(self, ground: Ground) -> Case:
        """The same ledger on a copy of the ground."""
        made = copy(self)
        made.ground = ground
        return made

    def _append(self, writer: LedgerWriter, start: int, end: int) -> None:
        rows = self.rows.slice(start, end - start)
        if rows.column_names == ["payload"] and len(rows) == 1:
            writer.append(rows.column(0)[0].as_py())
        else:
            writer.append(rows)

    def files(self, bookie: BookieId) -> list[Path]:
        """Every file of a bookie that matters to the ledger: its marker too."""
        return [self.ground.root(bookie) / "BOOKIE", *self.ground.files(bookie)]

    def damage(self, path: Path, damage: Damage) -> None:
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(damage.apply(data))

    def check_reads(self) -> None:
        """Everything that reads gives all rows."""
        reader = lifecycle.open_ledger(self.ground.client(), self.ledger_id, PASSWORD)
        assert reader.read_arrow().to_pylist() == self.rows.to_pylist()
        batches = [entry.batch for entry in reader.entries()]
        assert pa.Table.from_batches(batches).to_pylist() == self.rows.to_pylist()
        tail = lifecycle.open_ledger_no_recovery(self.ground.client(), self.ledger_id, PASSWORD)
        assert sum(entry.batch.num_rows for entry in tail.tail(timeout_ms=0)) == COUNT

    def check_all(self) -> dict[str, str]:
        """Bookies that are not healthy, with what a check says of them."""
        client = self.ground.client()
        report = check_ledgers(client, LocalRunner(client), None, 100)
        return {str(row.source): row.status for row in report.unfinished}


def drawn(kind: Kind, case: Case, bookie: BookieId, count: int) -> list[tuple[Path, Damage]]:
    """So many damages of every file of a bookie."""
    dice = random.Random(f"{kind}")
    return [
        (path, damage)
        for path in case.files(bookie)
        for damage in dice.sample(some_damages(dice, path.stat().st_size, 2), count)
    ]


def check_whole_story(case: Case, bookie: BookieId, path: Path, damage: Damage) -> None:
    """Read, check and repair with a damaged file; and put everything back as it was."""
    before = {p: p.read_bytes() for p in case.files(bookie)}
    case.damage(path, damage)
    case.check_reads()
    found = case.check_all()
    assert found.keys() <= {bookie}
    if path.name != "BOOKIE" and b'"kind":"FENCE"' not in before[path]:
        assert found, "named"
    client = case.ground.client()
    repaired = repair_ledgers(client, LocalRunner(client), None)
    if path.name != "BOOKIE":
        assert repaired.is_complete
        assert case.check_all() == {}
    case.check_reads()
    for added in set(case.files(bookie)) - before.keys():
        added.unlink()
    path.unlink(missing_ok=True)
    path.write_bytes(before[path])


@ALL_KINDS
@DRAWN
def test_reads_checks_and_repairs_go_on_and_name_it(tmp_path: Path, kind: Kind, count: int) -> None:
    case = Case(tmp_path, kind, is_open=False)
    bookie = case.ensemble[0]
    for path, damage in drawn(kind, case, bookie, count):
        check_whole_story(case, bookie, path, damage)


@ALL_KINDS
@DRAWN
def test_copies_that_are_damaged_are_named_and_made_again(
    tmp_path: Path, kind: Kind, count: int
) -> None:
    case = Case(tmp_path, kind, is_open=False)
    rereplicate(case, case.ensemble[0])
    assert case.ground.files(case.spare, "copies")
    for path, damage in drawn(kind, case, case.spare, count):
        check_whole_story(case, case.spare, path, damage)


def rereplicate(case: Case, lost: BookieId) -> None:
    case.ground.stop(lost)
    client = case.ground.client()
    report = recover_bookie(client, LocalRunner(client), BookieRecovery((lost,)))
    assert {row.status for row in report.rows} == {"replicated"}


@ALL_KINDS
def test_another_bookie_is_made_again_from_what_is_good(tmp_path: Path, kind: Kind) -> None:
    """Every file of a source, in turn: each time another bookie is lost."""
    whole = Case(tmp_path / "whole", kind, is_open=False)
    before = Snapshot(whole.ground)
    dice = random.Random(f"{kind}")
    for number in range(len(whole.files(whole.ensemble[0]))):
        case = whole.on(before.copy(tmp_path / str(number)))
        path = case.files(case.ensemble[0])[number]
        case.damage(path, dice.choice(some_damages(dice, path.stat().st_size, 4)))

        rereplicate(case, case.ensemble[1])

        case.check_reads()


@ALL_KINDS
def test_a_ledger_is_recovered_whole_or_waits_for_the_bookie_that_is_away(
    tmp_path: Path, kind: Kind
) -> None:
    """One damaged file, and another bookie away for a moment: a ledger never closes short."""
    whole = Case(tmp_path / "whole", kind, is_open=True)
    before = Snapshot(whole.ground)
    dice = random.Random(f"{kind}")
    for number in range(len(whole.files(whole.ensemble[0]))):
        case = whole.on(before.copy(tmp_path / str(number)))
        bookie, away, _ = case.ensemble
        path = case.files(bookie)[number]
        case.damage(path, dice.choice(some_damages(dice, path.stat().st_size, 4)))
        case.ground.stop(away)
        with suppress(RecoveryUndecidedError):
            recover_ledger(case.ground.client(), case.ledger_id)
        case.ground.start(away)

        recover_ledger(case.ground.client(), case.ledger_id)

        case.check_reads()


@pytest.mark.slow
@ALL_KINDS
def test_whole_stories_with_many_damages_of_each_file(tmp_path: Path, kind: Kind) -> None:
    case = Case(tmp_path, kind, is_open=False)
    dice = random.Random(f"{kind}/many")
    bookie = case.ensemble[0]
    for path in case.files(bookie):
        for damage in dice.sample(list(every_damage(path.stat().st_size)), 20):
            check_whole_story(case, bookie, path, damage)
