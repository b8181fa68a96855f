"""Pictures of ledgers, writers and jobs, for notebooks: ``sbk.pictures.fragments(bk.ledger(7))``.

Each is drawn from a table that its docstring names, and that anyone can read without the picture: a
picture shows nothing that is not in a DataFrame. Pictures are figures of plotly, which PySpark
plots with; the extra ``notebook`` installs it, and nothing else here needs it. A notebook keeps an
SVG next to each, which exports and code hosts show. Each raises ``MissingRequirementError`` if
plotly is not installed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import InvalidArgumentError, MissingRequirementError
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.replication.track import Track
from spark_bookkeeper.runtime.svg import svg

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

HELD: Final = "#2da44e"
LOST: Final = "#cf222e"
SHADES: Final = ("#116329", "#2da44e", "#7fd694")
"""The colours of the first, second and further copies of an entry."""

HEALTH: Final = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("job", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
    ]
)

IMAGES: Final = "svg_of_spark_bookkeeper"
"""Plotly's name of the renderer."""

MOST_ACKS: Final = 2_000
"""The default number of entries whose acknowledgements are drawn: the last ones."""


def fragments(ledger: LedgerInfo, title: str | None = None) -> Figure:
    """Draw which bookie holds how many entries of which fragment (``ledger.placement_df()``).

    Args:
        ledger: as ``bk.ledger(7)`` returns it; metadata and registrations are read now.
        title: over the picture.
    """
    go = _plotly()
    rows = ledger.placement_arrow().to_pylist()
    names = {row["fragment"]: _range(row) for row in rows}
    figure = go.Figure()
    for is_missing, name, colour in ((False, "held", HELD), (True, "lost", LOST)):
        those = [row for row in rows if row["is_missing"] is is_missing]
        figure.add_trace(
            _cells(
                go,
                [names[row["fragment"]] for row in those],
                [row["bookie_id"] for row in those],
                name,
                colour,
                [_entries(row["entries"]) for row in those],
            )
        )
    _label(figure, title or f"Ledger {ledger.ledger_id}: fragments by bookies", "entries", "bookie")
    figure.update_xaxes(type="category", categoryarray=list(names.values()))
    _sort_bookies(figure, rows)
    return figure


def stripes(
    ledger: LedgerInfo, first: int = 0, last: int | None = None, title: str | None = None
) -> Figure:
    """Draw which bookies hold which entry, and as which copy (``ledger.stripes_df(first, last)``).

    Args:
        ledger: as ``bk.ledger(7)`` returns it; metadata and registrations are read now.
        first, last: the entries to draw, both included; ``last=None`` draws 64 of them.
        title: over the picture.
    """
    go = _plotly()
    rows = ledger.stripes_arrow(first, last).to_pylist()
    figure = go.Figure()
    kinds = [(f"copy {n + 1}", n, SHADES[min(n, 2)]) for n in range(ledger.write_quorum_size)]
    for name, copy, colour in (*kinds, ("lost", None, LOST)):
        those = [row for row in rows if (None if row["is_missing"] else row["copy"]) == copy]
        figure.add_trace(
            _cells(
                go,
                [row["entry_id"] for row in those],
                [row["bookie_id"] for row in those],
                name,
                colour,
                [f"position {row['position']}" for row in those],
            )
        )
    _label(figure, title or f"Ledger {ledger.ledger_id}: who holds which entry", "entry", "bookie")
    _sort_bookies(figure, rows)
    return figure


def acks(writer: LedgerWriter, most: int = MOST_ACKS, title: str | None = None) -> Figure:
    """Draw when each bookie stored which entry (``writer.acks()``).

    Args:
        writer: its remembered entries are drawn, also after it was closed.
        most: the number of entries, the last ones.
        title: over the picture.
    """
    go = _plotly()
    rows = writer.acks_arrow().to_pylist()
    least = max((row["entry_id"] for row in rows), default=0) - whole_number("most", most, 1)
    stored = [row for row in rows if row["stored_at"] is not None and row["entry_id"] > least]
    figure = go.Figure()
    for bookie in sorted({row["bookie_id"] for row in stored}):
        those = [row for row in stored if row["bookie_id"] == bookie]
        figure.add_trace(
            go.Scatter(
                x=[row["stored_at"] for row in those],
                y=[row["entry_id"] for row in those],
                mode="markers",
                name=bookie,
                text=[f"after {row['waited_ms']:,.1f} ms" for row in those],
            )
        )
    _label(figure, title or f"Ledger {writer.ledger_id}: when it was stored", "time", "entry")
    return figure


def progress(track: Track, title: str | None = None) -> Figure:
    """Draw the progress of a job, phase by phase (``track.to_df()``).

    Args:
        track: the job's argument ``progress``: ``track = bk.track()``.
        title: over the picture.
    """
    go = _plotly()
    rows = track.to_arrow().to_pylist()
    figure = go.Figure()
    for phase in dict.fromkeys(row["phase"] for row in rows):
        those = [row for row in rows if row["phase"] == phase and row["total"]]
        figure.add_trace(
            go.Scatter(
                x=[row["seconds"] for row in those],
                y=[row["done"] / row["total"] for row in those],
                mode="lines+markers",
                line={"shape": "hv"},
                name=phase,
                text=[f"{row['done']:,} of {row['total']:,}" for row in those],
            )
        )
    _label(figure, title or "How it came forward", "seconds", "done")
    figure.update_yaxes(tickformat=".0%", range=[0, 1.05])
    return figure


def health(reports: Any, title: str | None = None) -> Figure:
    """Draw what jobs found and did, over time (``health_table(reports)``).

    Args:
        reports: see ``health_table``.
        title: over the picture.
    """
    go = _plotly()
    rows = health_table(reports).to_pylist()
    figure = go.Figure()
    for status in sorted({row["status"] for row in rows}):
        those = [row for row in rows if row["status"] == status]
        figure.add_trace(
            go.Bar(
                x=[f"{row['at']:%Y-%m-%d %H:%M:%S}<br>{row['job']}" for row in those],
                y=[row["rows"] for row in those],
                name=status,
            )
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(type="category", categoryorder="category ascending")
    _label(figure, title or "What jobs found and did", "job", "rows of its report")
    return figure


def health_table(reports: Any) -> pa.Table:
    """Count the rows of each outcome in each report, in order of time (``docs/tables.md``).

    Args:
        reports: ``bk.jobs()``, or a table in which jobs kept their reports (``--report-table``), as
            a Spark DataFrame or an Arrow table.

    Raises:
        InvalidArgumentError: it has the columns of neither.
    """
    table = reports if isinstance(reports, pa.Table) else None
    names = reports.column_names if table is not None else list(reports.columns)
    counts: Counter[tuple[Any, str, str]] = Counter()
    if {"outcomes", "ended_at", "job"} <= set(names):
        for row in _rows(reports, ["ended_at", "job", "outcomes"]):
            if row["ended_at"] is not None:
                for status, n in dict(row["outcomes"]).items():
                    counts[row["ended_at"], row["job"], status] += n
    elif {"reported_at", "job", "status"} <= set(names):
        grouped = reports
        if table is None:
            grouped = reports.groupBy("reported_at", "job", "status").count()
        for row in _rows(grouped, ["reported_at", "job", "status"]):
            counts[row["reported_at"], row["job"], row["status"]] += row.get("count", 1)
    else:
        raise InvalidArgumentError(
            f"the columns {', '.join(names)} are neither those of bk.jobs() nor of a table of "
            "reports (reported_at, job, status); give one of these"
        )
    found = [
        {"at": at, "job": job, "status": status, "rows": n}
        for (at, job, status), n in sorted(counts.items())
    ]
    return pa.Table.from_pylist(found, schema=HEALTH)


def _rows(data: Any, names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the rows of an Arrow table or a DataFrame; times have their zone."""
    if isinstance(data, pa.Table):
        return list(data.select(names).to_pylist())
    return list(data.toArrow().to_pylist())


def keep_images() -> None:
    """Make this notebook keep an SVG next to every figure of plotly, as for PySpark's plots.

    The first picture of this module does so, too. Points, lines and upright bars are drawn.
    """
    _plotly(is_asked=True)


def _plotly(is_asked: bool = False) -> Any:
    try:
        from plotly import graph_objects, io
        from plotly.io.base_renderers import HtmlRenderer, MimetypeRenderer, PlotlyRenderer
    except ImportError as error:
        raise MissingRequirementError(
            f"pictures are drawn with plotly, which is not here ({error}); "
            "pip install 'spark-bookkeeper[notebook]' brings it. The tables they are drawn from "
            "need nothing: placement_df(), stripes_df(), acks(), bk.jobs()"
        ) from error

    class Images(MimetypeRenderer):  # type: ignore[misc]  # plotly has no types
        def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
            image = svg(fig_dict)
            return {"image/svg+xml": image} if image else {}

    # Only once, unless requested: the user may have changed it since. Image renderers need none.
    shown = [io.renderers[name] for name in io.renderers.default.split("+") if name]
    fits = shown and all(isinstance(each, HtmlRenderer | PlotlyRenderer) for each in shown)
    if fits and (is_asked or IMAGES not in io.renderers):
        io.renderers[IMAGES] = Images()
        io.renderers.default += f"+{IMAGES}"
    return graph_objects


def _cells(
    go: Any, x: Sequence[Any], y: Sequence[str], name: str, colour: str, said: Sequence[str]
) -> Any:
    """Draw squares at these places; the text of each shows under the pointer."""
    return go.Scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"symbol": "square", "size": 16, "color": colour},
        name=name,
        text=said,
        showlegend=True,
    )


def _label(figure: Any, title: str, x: str, y: str) -> None:
    figure.update_layout(
        title=title, template="plotly_white", height=380, margin={"t": 60, "b": 50}
    )
    figure.update_xaxes(title_text=x)
    figure.update_yaxes(title_text=y)


def _sort_bookies(figure: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Sort bookies from the top down, also those that the first trace lacks."""
    bookies = sorted({row["bookie_id"] for row in rows}, reverse=True)
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=bookies)


def _range(row: Mapping[str, Any]) -> str:
    last = "…" if row["last_entry_id"] is None else f"{row['last_entry_id']:,}"
    return f"{row['first_entry_id']:,} to {last}"


def _entries(count: int | None) -> str:
    return "not known how many entries" if count is None else f"{count:,} entries"
