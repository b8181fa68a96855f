"""A cluster as one page of HTML: what needs care first, then bookies, ledgers, and their fragments.

The page is complete in itself: no script, no font, no picture comes from elsewhere, and nothing
of it needs a script at all. So it can be mailed, kept, printed, and read by a screen reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from importlib.resources import files
from typing import Any, Final

from spark_bookkeeper.client.presence import age, ledgers_with_writers
from spark_bookkeeper.cluster.diagnosis import Diagnosis
from spark_bookkeeper.cluster.examination import cluster_diagnoses
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.session import BookKeeper

MOST_LEDGERS: Final = 500
"""Ledgers that a page shows one by one: those that need care, then the newest."""

MOST_FRAGMENTS: Final = 60
"""Fragments of a ledger that its map shows, the last ones."""


@dataclass(frozen=True)
class Facts:
    """What a page shows, as it was at one moment."""

    metadata_uri: str
    at_ms: int
    diagnoses: Sequence[Diagnosis]
    bookies: Sequence[Mapping[str, Any]]
    """Rows of ``bk.bookies()``."""

    ledgers: Mapping[LedgerId, LedgerMetadata]
    writers: Mapping[LedgerId, str]
    """Of the ledgers that are not closed: whether their writer lives."""


def look(bk: BookKeeper) -> Facts:
    """The facts of a page, from metadata, registrations, and a probe of every bookie."""
    ledgers: dict[LedgerId, LedgerMetadata] = {}
    writers: dict[LedgerId, str] = {}
    for ledger_id, found, state in ledgers_with_writers(bk.context):
        if isinstance(found, MetadataFormatError):
            continue  # the diagnoses name it
        ledgers[ledger_id] = found
        if state is not None:
            writers[ledger_id] = state
    return Facts(
        bk.metadata_uri,
        bk.context.runtime.wall_ms(),
        list(cluster_diagnoses(bk.context)),
        bk.bookies_arrow().to_pylist(),
        ledgers,
        writers,
    )


def render(facts: Facts, refresh_seconds: int | None = None) -> str:
    """The page.

    Args:
        facts: what it shows.
        refresh_seconds: the browser asks for it again so often; ``None`` for a page that is kept.
    """
    moment = datetime.fromtimestamp(facts.at_ms / 1000, timezone.utc)
    again = ""
    if refresh_seconds is not None:
        again = f'<meta http-equiv="refresh" content="{refresh_seconds}">\n'
    style = files("spark_bookkeeper.cli").joinpath("cluster_page.css").read_text(encoding="utf-8")
    body = "\n".join(
        [
            "<header>",
            "<h1>BookKeeper cluster</h1>",
            f"<p><code>{escape(facts.metadata_uri)}</code>, as of "
            f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M:%S} UTC</time></p>',
            "</header>",
            "<main>",
            *_care(facts.diagnoses),
            *_numbers(facts),
            *_bookies(facts.bookies),
            *_ledgers(facts),
            "</main>",
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{again}<title>BookKeeper cluster</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _care(diagnoses: Sequence[Diagnosis]) -> Iterator[str]:
    yield '<section aria-labelledby="care"><h2 id="care">What needs care</h2>'
    found = sorted(
        (f for f in diagnoses if f.verdict != "ok"), key=lambda f: f.verdict != "problem"
    )
    if not found:
        yield '<p class="well">Everything is well.</p></section>'
        return
    yield '<ul class="care">'
    for diagnosis in found:
        remedy = f"<br>{escape(diagnosis.remedy)}" if diagnosis.remedy else ""
        yield (
            f'<li class="{diagnosis.verdict}"><b>{escape(diagnosis.verdict)}: '
            f"{escape(diagnosis.check)}</b> {escape(diagnosis.detail)}{remedy}</li>"
        )
    yield "</ul></section>"


def _numbers(facts: Facts) -> Iterator[str]:
    states = Counter(row["state"] for row in facts.bookies)
    kinds = Counter(metadata.state.name for metadata in facts.ledgers.values())
    closed = [m for m in facts.ledgers.values() if m.is_closed]
    size = sum(m.length_bytes or 0 for m in closed)
    pairs = [
        ("bookies", ", ".join(f"{n} {state}" for state, n in sorted(states.items())) or "none"),
        ("ledgers", ", ".join(f"{n:,} {kind}" for kind, n in sorted(kinds.items())) or "none"),
        ("entries of closed ledgers", f"{sum((m.last_entry_id or 0) + 1 for m in closed):,}"),
        ("bytes of closed ledgers", f"{_size(size)}, before replication"),
    ]
    yield '<section aria-labelledby="numbers"><h2 id="numbers">In numbers</h2><dl>'
    for name, value in pairs:
        yield f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl></section>"


def _bookies(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield '<section aria-labelledby="bookies"><h2 id="bookies">Bookies</h2>'
    cells = [
        [
            f"<code>{escape(row['bookie_id'])}</code>",
            f'<span class="state {row["state"]}">{row["state"]}</span>',
            f"{row['ledgers']:,}",
            f"{row['fragments']:,}",
            _space(row["free_bytes"], row["total_bytes"]),
            f"<code>{escape(row['root_uri'] or 'unknown')}</code>",
        ]
        for row in rows
    ]
    heads = ["bookie", "state", "ledgers", "fragments", "space", "storage"]
    yield from _table("Bookies by id", heads, cells)
    yield "</section>"


def _space(free: int | None, total: int | None) -> str:
    if free is None or not total:
        return "unknown"
    used = total - free
    return (
        f'<meter min="0" max="{total}" high="{total * 9 // 10}" value="{used}" '
        f'aria-label="{used * 100 // total} % used"></meter> {_size(free)} free'
    )


def _ledgers(facts: Facts) -> Iterator[str]:
    lost = {row["bookie_id"] for row in facts.bookies if row["state"] == "lost"}
    yield '<section aria-labelledby="ledgers"><h2 id="ledgers">Ledgers</h2>'
    if not facts.ledgers:
        yield "<p>There are none.</p></section>"
        return

    def rank(ledger_id: LedgerId) -> tuple[bool, bool, int]:
        metadata = facts.ledgers[ledger_id]
        return not lost & metadata.bookies(), metadata.is_closed, -ledger_id

    order = sorted(facts.ledgers, key=rank)
    if len(order) > MOST_LEDGERS:
        yield (
            f"<p>{MOST_LEDGERS:,} of {len(order):,}: those that name a lost bookie, those that are "
            "not closed, then the newest.</p>"
        )
    yield "<p>Each opens to show which bookie holds which fragment.</p>"
    for ledger_id in order[:MOST_LEDGERS]:
        yield from _ledger(ledger_id, facts, lost)
    yield "</section>"


def _ledger(ledger_id: LedgerId, facts: Facts, lost: set[str]) -> Iterator[str]:
    metadata = facts.ledgers[ledger_id]
    quorum = metadata.quorum
    missing = sorted(lost & metadata.bookies())
    about = [
        f"E {quorum.ensemble_size}, Qw {quorum.write_quorum_size}, Qa {quorum.ack_quorum_size}"
    ]
    name = metadata.custom_metadata.get("name")
    if name:
        about.insert(0, f"“{name.decode(errors='replace')}”")
    if metadata.is_closed:
        about.append(f"{(metadata.last_entry_id or 0) + 1:,} entries")
        about.append(_size(metadata.length_bytes or 0))
    elif ledger_id in facts.writers:
        about.append(f"writer: {facts.writers[ledger_id]}")
    if metadata.ctime_ms is not None:
        about.append(f"created {age(metadata.ctime_ms, facts.at_ms)}")
    if missing:
        about.append(f"names {len(missing)} lost bookie{'s' if len(missing) > 1 else ''}")
    yield (
        f'<details><summary><b>{ledger_id}</b> <span class="state {metadata.state.name}">'
        f"{metadata.state.name}</span> {escape('; '.join(about))}</summary>"
    )
    yield from _map(ledger_id, metadata, lost)
    yield "</details>"


def _map(ledger_id: LedgerId, metadata: LedgerMetadata, lost: set[str]) -> Iterator[str]:
    """Bookies by fragments; a cell holds the bookie's position in that ensemble."""
    fragments = list(metadata.fragment_ranges())
    shown = fragments[-MOST_FRAGMENTS:]
    if len(shown) < len(fragments):
        yield f"<p>The last {len(shown)} of {len(fragments):,} fragments.</p>"
    bookies = list(dict.fromkeys(bookie for fragment in shown for bookie in fragment.ensemble))
    heads = ["bookie", *(_range(f.first_entry_id, f.last_entry_id) for f in shown)]
    cells = []
    for bookie in bookies:
        is_lost = bookie in lost
        row = [f"<code>{escape(bookie)}</code>{' (lost)' if is_lost else ''}"]
        for fragment in shown:
            row.append(_cell(bookie, fragment.ensemble, is_lost))
        cells.append(row)
    yield from _table(f"Fragments of ledger {ledger_id}: positions by bookie", heads, cells, "map")


def _cell(bookie: BookieId, ensemble: Sequence[BookieId], is_lost: bool) -> str:
    if bookie not in ensemble:
        return ""
    kind = "lost" if is_lost else "held"
    word = "lost, position" if is_lost else "position"
    position = ensemble.index(bookie)
    return f'<span class="{kind}" aria-label="{word} {position}">{position}</span>'


def _range(first: int, last: int | None) -> str:
    return f"{first:,} to {'…' if last is None else f'{last:,}'}"


def _table(
    caption: str, heads: Iterable[str], rows: Iterable[Sequence[str]], kind: str = ""
) -> Iterator[str]:
    """A table that scrolls by itself where it is wider than the page; cells are HTML already."""
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
    yield f'<table class="{kind}"><caption>{escape(caption)}</caption><thead><tr>'
    yield "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    yield "</tr></thead><tbody>"
    for first, *others in rows:
        yield f'<tr><th scope="row">{first}</th>{"".join(f"<td>{c}</td>" for c in others)}</tr>'
    yield "</tbody></table></div>"


def _size(size_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size_bytes < 1024 or unit == "TiB":
            return f"{size_bytes:,.0f} {unit}" if unit == "bytes" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError
