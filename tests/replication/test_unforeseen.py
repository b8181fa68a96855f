"""An error that is not ours, inside a piece of work, is that piece's row and not the job's end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.lifecycle import create_ledger
from spark_bookkeeper.client.recover import batch_recovery as many
from spark_bookkeeper.client.recover import recovery
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication import batch_rereplicate as rereplicate_many
from spark_bookkeeper.replication import (
    check_ledgers,
    fragments,
    pieces,
    recover_bookie,
    recover_ledgers,
    repair_ledgers,
    rereplicate,
    shares,
)
from spark_bookkeeper.replication.recover_bookie import BookieRecovery
from spark_bookkeeper.replication.report import Report
from spark_bookkeeper.replication.runner import LocalRunner, no_progress
from spark_bookkeeper.testing.ground import Ground
from tests.support.pieces import Done, Piece, step

ERRORS = [
    TypeError("'float' object is not subscriptable"),
    MemoryError(),
    RecursionError("maximum recursion depth exceeded"),
    pa.ArrowNotImplementedError("no kernel for that"),
    pa.ArrowInvalid("not this either"),
    AssertionError("content_fixed"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
]


class Ledgers:
    """Three ledgers on four bookies, one of which is lost; all of it goes wrong for the second."""

    def __init__(self, directory: Path) -> None:
        self.ground = Ground(directory)
        self.context = self.ground.context
        self.runner = LocalRunner(self.context)
        self.ids: list[LedgerId] = []

    def fill(self, *, is_open: bool = False) -> None:
        for ledger_id in (1000, 2000, 3000):  # no entry and no position is called so
            writer = create_ledger(self.context, Quorum(4, 2, 2), ledger_id=ledger_id)
            for number in range(8):
                writer.append(b"%d" % number)
            if is_open:
                writer.abandon()
            else:
                writer.close()
            self.ids.append(writer.ledger_id)

    @property
    def bad(self) -> LedgerId:
        return self.ids[1]

    def lose(self) -> BookieId:
        lost = self.ground.bookie_ids[0]
        self.ground.stop(lost, destroy=True)
        self.ground.add_bookie()
        return lost

    def recover_bookie(self, *, dry_run: bool = False, piece_bytes: int = 1 << 20) -> Report:
        wish = BookieRecovery((self.ground.bookie_ids[0],), piece_bytes=piece_bytes)
        return recover_bookie.recover_bookie(self.context, self.runner, wish, dry_run=dry_run)


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    return Ledgers(tmp_path)


def spoil(
    patch: pytest.MonkeyPatch, module: Any, name: str, error: BaseException, ledger_id: LedgerId
) -> None:
    """Let a function of a module fail when it is about one ledger, whichever argument says so."""
    real = getattr(module, name)

    def spoilt(*arguments: Any, **named: Any) -> Any:
        for each in (*arguments, *named.values()):
            if ledger_id in (each, getattr(each, "ledger_id", None)):
                raise error
        return real(*arguments, **named)

    patch.setattr(module, name, spoilt)


def check(ledgers: Ledgers, report: Report, error: BaseException, log: str, status: str) -> None:
    """The spoilt ledger has its row with class and text, and the others are done."""
    bad = [row for row in report.rows if row.ledger_id == ledgers.bad]
    told = f"{type(error).__name__}: {error}"
    assert [(row.status, row.reason) for row in bad if row.status == status] == [(status, told)]
    others = {row.ledger_id: row.status for row in report.rows if row.ledger_id != ledgers.bad}
    assert set(others) == {ledgers.ids[0], ledgers.ids[2]}
    assert not set(others.values()) & {"left", "unreadable"}
    assert not report.is_complete
    report.to_arrow()
    assert "Traceback" in log
    assert type(error).__name__ in log


PLACES = [
    (check_ledgers, "check_one", "check"),
    (check_ledgers, "_check_share", "check"),
    (check_ledgers, "share_of", "check"),
    (recovery, "LedgerRecovery", "recover"),
    (repair_ledgers, "check_one", "repair"),
    (repair_ledgers, "copy_share", "repair"),
    (rereplicate, "copy_share", "recover bookie"),
    (rereplicate, "update_ledger", "recover bookie"),
    (recover_bookie, "FragmentWork", "recover bookie"),
    (recover_bookie, "_planned", "plan"),
]


def every_error_everywhere() -> Iterator[Any]:
    """In the plain run every place meets one error, and every error is met at one place."""
    for n, place in enumerate(PLACES):
        for k, error in enumerate(ERRORS):
            marks = () if n % len(ERRORS) == k else pytest.mark.full
            yield pytest.param(*place, error, marks=marks, id=f"{place[2]}-{place[1]}-{k}")


@pytest.mark.parametrize(("module", "name", "job", "error"), list(every_error_everywhere()))
def test_an_error_that_is_not_ours_is_the_row_of_its_ledger(
    ledgers: Ledgers,
    module: Any,
    name: str,
    job: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledgers.fill(is_open=job == "recover")
    jobs: dict[str, Callable[[], Report]] = {
        "check": lambda: check_ledgers.check_ledgers(ledgers.context, ledgers.runner, None, 100),
        "recover": lambda: recover_ledgers.recover_ledgers(ledgers.context, ledgers.runner, None),
        "repair": lambda: repair_ledgers.repair_ledgers(ledgers.context, ledgers.runner, None),
        "recover bookie": ledgers.recover_bookie,
        "plan": lambda: ledgers.recover_bookie(dry_run=True),
    }
    if job in ("recover bookie", "plan"):
        ledgers.lose()
    if job == "repair":  # something to copy in every ledger
        for file in ledgers.ground.files(ledgers.ground.bookie_ids[0], "slots"):
            if file.name.endswith("1.arrow"):
                file.write_bytes(b"spoilt")
    spoil(monkeypatch, module, name, error, ledgers.bad)
    if module is recovery:  # it goes wrong together with others, and again by itself
        spoil(monkeypatch, many, name, error, ledgers.bad)
    if module is rereplicate:
        spoil(monkeypatch, rereplicate_many, "FragmentCopy", error, ledgers.bad)

    with caplog.at_level(logging.ERROR, "spark_bookkeeper"):
        report = jobs[job]()

    check(ledgers, report, error, caplog.text, "unreadable" if job == "check" else "left")


@pytest.mark.parametrize(
    ("module", "name", "error", "told"),
    [
        (fragments, "pieces_of", TypeError("no"), "cutting ledger"),
        (pieces, "copy_share", MemoryError("no"), "MemoryError"),
    ],
    ids=["it cannot be cut", "a piece ends with such an error"],
)
def test_what_cannot_be_done_in_pieces_is_done_in_one(
    ledgers: Ledgers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: Any,
    name: str,
    error: Exception,
    told: str,
) -> None:
    ledgers.fill()
    ledgers.lose()
    spoil(monkeypatch, module, name, error, ledgers.bad)

    with caplog.at_level(logging.ERROR, "spark_bookkeeper"):
        report = ledgers.recover_bookie(piece_bytes=1)

    assert {row.status for row in report.rows} == {"replicated"}
    assert {row.ledger_id for row in report.rows} == {*ledgers.ids}
    assert told in caplog.text


def test_a_check_that_cannot_be_cut_is_done_in_one_piece(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers.fill()

    def refused(*_: Any) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(check_ledgers, "share_bytes", refused)
    report = check_ledgers.check_ledgers(ledgers.context, ledgers.runner, None, 100)

    assert {row.status for row in report.rows} == {"healthy"}
    assert shares.share_bytes is not refused


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_a_process_ends_a_job(ledgers: Ledgers, error: BaseException) -> None:
    def work(_: ClientContext, item: Piece) -> list[Done]:
        if item.number == 2:
            raise error
        return [Done(item.number)]

    with pytest.raises(type(error)):
        list(ledgers.runner.run(step(work), [*map(Piece, (1, 2, 3))], no_progress))
