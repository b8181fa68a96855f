"""Pictures hold what their tables hold, and say what is missing where they cannot be drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper import pictures
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import InvalidArgumentError, MissingRequirementError
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recent_jobs import jobs_table, noted
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row
from spark_bookkeeper.replication.runner import no_progress
from spark_bookkeeper.replication.track import Track
from spark_bookkeeper.testing.ground import Ground
from tests.worlds import written


@pytest.fixture
def ground(ground: Ground) -> Ground:
    ground.add_bookie()
    return ground


def info(ground: Ground, writer: LedgerWriter) -> LedgerInfo:
    found = ground.context.store.read_ledger(writer.ledger_id).value
    return LedgerInfo.of(writer.ledger_id, found, ground.context, lambda table: table)


def points(figure: Any) -> dict[str, set[tuple[Any, Any]]]:
    """What is drawn, by the name in the legend."""
    return {t.name: set(zip(t.x or (), t.y or (), strict=True)) for t in figure.data}


def test_fragments_show_each_bookie_of_each_of_them_before_and_after_a_loss(
    ground: Ground,
) -> None:
    writer = written(ground, 8, Quorum(4, 3, 2))
    ensemble = writer.metadata.last_fragment.ensemble
    before = points(pictures.fragments(info(ground, writer)))
    ground.stop(ensemble[1], destroy=True)
    figure = pictures.fragments(info(ground, writer), title="after")
    after = points(figure)

    assert before == {"held": {("0 to 7", b) for b in ensemble}, "lost": set()}
    assert after["lost"] == {("0 to 7", ensemble[1])}
    assert after["held"] == before["held"] - after["lost"]
    assert figure.layout.title.text == "after"
    assert list(figure.layout.yaxis.categoryarray) == sorted(ensemble, reverse=True)
    assert set(figure.data[0].text) == {"6 entries"}


def test_stripes_show_every_copy_of_every_entry(ground: Ground) -> None:
    writer = written(ground, 8, Quorum(4, 3, 2))
    ground.stop(writer.metadata.last_fragment.ensemble[1], destroy=True)
    ledger = info(ground, writer)

    drawn = points(pictures.stripes(ledger, 2, 5))

    rows = ledger.stripes_arrow(2, 5).to_pylist()
    assert set().union(*drawn.values()) == {(r["entry_id"], r["bookie_id"]) for r in rows}
    assert drawn["lost"] == {(r["entry_id"], r["bookie_id"]) for r in rows if r["is_missing"]}
    assert drawn["copy 1"] == {
        (r["entry_id"], r["bookie_id"]) for r in rows if r["copy"] == 0 and not r["is_missing"]
    }


def test_a_notebook_keeps_an_image_beside_each_figure_and_a_browser_is_sent_none(
    ground: Ground,
) -> None:
    from plotly import graph_objects, io

    before, kept = io.renderers.default, f"plotly_mimetype+{pictures.IMAGES}"
    try:
        left = ("", "browser", "browser+plotly_mimetype", "svg", "plotly_mimetype+svg")
        for asked in (*left, "plotly_mimetype", kept, "plotly_mimetype"):
            io.renderers.default = asked
            pictures.keep_images()
            assert io.renderers.default == (asked if asked in left else kept)
        io.renderers.default = "plotly_mimetype"
        pictures.fragments(info(ground, written(ground, 1, Quorum(4, 3, 2))))
        assert io.renderers.default == "plotly_mimetype", "somebody asked for this one"
        pictures.keep_images()
        figures = (
            graph_objects.Figure(graph_objects.Bar(x=[1], y=[1])),
            graph_objects.Figure(graph_objects.Bar(x=[1], y=[10**400])),
        )
        shown = [list(figure._repr_mimebundle_()) for figure in figures]
    finally:
        io.renderers.default = before
        del io.renderers._renderers[pictures.IMAGES]
    interactive = "application/vnd.plotly.v1+json"
    assert shown == [[interactive, "image/svg+xml"], [interactive]]


def test_acks_show_when_each_bookie_stored_what(ground: Ground) -> None:
    writer = written(ground, 8, Quorum(4, 3, 2))

    drawn = points(pictures.acks(writer))

    rows = [row for row in writer.acks_arrow().to_pylist() if row["status"] == "stored"]
    assert drawn.keys() == {row["bookie_id"] for row in rows}
    assert sum(map(len, drawn.values())) == len(rows)
    last_two = points(pictures.acks(writer, most=2))
    assert {entry for shown in last_two.values() for _, entry in shown} == {6, 7}


def test_progress_shows_each_phase_as_a_share_of_its_whole(ground: Ground) -> None:
    track = Track(ground.runtime, lambda table: table)
    track("listing", 0, 0, 0)
    for done in range(5):
        track("copying", done, 4, done * 10)

    drawn = points(pictures.progress(track))

    assert [share for _, share in sorted(drawn["copying"])] == [0, 0.25, 0.5, 0.75, 1]
    assert drawn["listing"] == set()


def test_health_is_counted_from_the_notes_of_jobs(ground: Ground) -> None:
    left = RecoveryReport("check", (Row(1, "check", Outcome.MISSING), Row(2, "x", Outcome.MISSING)))
    noted(ground.context, "check", None, no_progress, lambda _: left)
    noted(ground.context, "check", None, no_progress, lambda _: RecoveryReport("check", ()))

    table = pictures.health_table(jobs_table(ground.context))
    figure = pictures.health(jobs_table(ground.context))

    assert table.schema == pictures.HEALTH
    assert [(r["job"], r["status"], r["rows"]) for r in table.to_pylist()] == [
        ("check", "missing", 2)
    ]
    assert [(trace.name, list(trace.y)) for trace in figure.data] == [("missing", [2])]


def test_health_is_counted_from_a_table_of_reports() -> None:
    first = datetime(2026, 1, 1, tzinfo=timezone.utc)
    later = first + timedelta(hours=1)
    rows = [(later, "healthy"), (first, "damaged"), (first, "healthy"), (first, "healthy")]
    table = pa.table(
        {
            "reported_at": pa.array([at for at, _ in rows], pa.timestamp("us", tz="UTC")),
            "job": ["check_ledgers"] * 4,
            "status": [status for _, status in rows],
        }
    )

    found = pictures.health_table(table).to_pylist()

    assert [(r["at"], r["status"], r["rows"]) for r in found] == [
        (first, "damaged", 1),
        (first, "healthy", 2),
        (later, "healthy", 1),
    ]


def test_other_columns_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="colour"):
        pictures.health_table(pa.table({"colour": ["red"]}))


def test_without_plotly_it_says_what_brings_it_and_the_tables_are_there(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    writer = written(ground, 8, Quorum(4, 3, 2))
    ledger = info(ground, writer)

    draws: list[Callable[[], object]] = [
        pictures.keep_images,
        lambda: pictures.fragments(ledger),
        lambda: pictures.stripes(ledger),
        lambda: pictures.acks(writer),
        lambda: pictures.progress(Track(ground.runtime, lambda table: table)),
        lambda: pictures.health(jobs_table(ground.context)),
    ]
    for draw in draws:
        with pytest.raises(MissingRequirementError, match=r"spark-bookkeeper\[notebook\]"):
            draw()
    assert ledger.placement_arrow().num_rows
    assert pictures.health_table(jobs_table(ground.context)).num_rows == 0
