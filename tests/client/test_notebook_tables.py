"""What people hold shows itself in a notebook as a small table, without I/O, and text is text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.agent.decommission import DecommissionReport
from spark_bookkeeper.autorecovery.control import AutorecoveryStatus
from spark_bookkeeper.autorecovery.losses import AtRisk, Losses
from spark_bookkeeper.autorecovery.publishing import AuditReport
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.deletion import Deletion
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.delta.archive import ArchiveReport
from spark_bookkeeper.doctor.diagnosis import Diagnoses, Diagnosis
from spark_bookkeeper.logs import logs
from spark_bookkeeper.logs.atomic import LogWrite
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.replication.report import Outcome, Report, Row
from spark_bookkeeper.replication.track import Track
from spark_bookkeeper.testing.ground import Ground
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL

NASTY = "<script>alert('&')</script>"

REPORTS: list[type[Report]] = [
    sbk.RecoveryReport,
    sbk.CheckReport,
    AuditReport,
    ArchiveReport,
    DecommissionReport,
]


class Cells(HTMLParser):
    """The texts of a table; every element that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in ("table", "tr", "th", "td", "p", "b"), tag
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def cells(held: object) -> list[str]:
    show: Callable[[], str] = held._repr_html_  # type: ignore[attr-defined]
    found = Cells()
    found.feed(show())
    assert found.open == []
    return found.texts


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_or_plan_shows_its_rows(kind: type[Report]) -> None:
    rows = tuple(Row(n, "copy", Outcome.LEFT, NASTY) for n in range(60))

    shown = cells(kind(NASTY, rows))

    assert "".join(shown).count("alert") == 51  # the title, and the first fifty
    assert "… 10 more" in shown


@pytest.mark.parametrize(
    "held",
    [
        Deletion(LedgerId(7), NASTY, {BookieId("a:1"): NASTY}),
        Losses((BookieId(NASTY),), (AtRisk(LedgerId(7), EntryId(0), None, 2, 2, 1),), ()),
        Diagnoses((Diagnosis(NASTY, "problem", NASTY, NASTY),)),
        LogWrite(NASTY, LedgerId(7), EntryId(9), 100, is_new=True),
        AutorecoveryStatus(True, NASTY, 1, 1, 0, None, NASTY),
    ],
    ids=lambda held: type(held).__name__,
)
def test_what_a_look_found_shows_itself(held: object) -> None:
    assert NASTY in "".join(cells(held))


@pytest.fixture
def handles(ground: Ground) -> Iterator[list[object]]:
    context = ground.context
    with lifecycle.create_ledger(context, USUAL, labels={"name": NASTY.encode()}) as writer:
        writer.append(b"x")
        wait_for_every_copy(writer)
        found = context.store.read_ledger(writer.ledger_id).value
        info = LedgerInfo.of(writer.ledger_id, found, context, lambda table: table)
        reader = lifecycle.open_ledger_no_recovery(context, writer.ledger_id)
        log = logs.create_log(context, "orders", LogOptions(USUAL))
        track = Track(context.runtime, lambda table: table)
        track(NASTY, 1, 2, 3)
        with log.become_writer() as log_writer:
            yield [writer, info, reader, log, log_writer, track]


def test_a_handle_shows_itself_and_asks_nobody(ground: Ground, handles: list[object]) -> None:
    ground.forget()
    shown = [cells(held) for held in handles]

    assert all(shown)
    assert not ground.steps
    assert NASTY in "".join(shown[-1])


def test_a_cluster_shows_itself_also_while_it_does_not_run(tmp_path: Path) -> None:
    shown = cells(sbk.LocalCluster(tmp_path / "<b>"))

    assert str(tmp_path / "<b>") in shown
    assert "not running" in shown
