"""A cluster as one page of HTML: problems first, then bookies, ledgers, and their fragments.

The page loads nothing and has no script. So it can be mailed, printed, and read by a screen reader.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from importlib.resources import files
from typing import Any, Final

from spark_bookkeeper.cli.cluster_facts import Facts, job_name
from spark_bookkeeper.cli.shell.output import plain, text_of
from spark_bookkeeper.client.presence import age
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.report import counted
from spark_bookkeeper.secrecy import without_passwords

MOST_LEDGERS: Final = 500
"""The most ledgers that a page shows one by one: those that need care, then the newest."""

MOST_FRAGMENTS: Final = 60
"""The most fragments in the map of a ledger, which shows the last ones."""

MOST_ALIKE: Final = 5
"""The most ledgers with the same missing copies that are shown one by one; more are folded."""

OF_A_LOSS: Final = frozenset(
    {
        "entries without a live copy",
        "entries below their ack quorum",
        "fragments on lost bookies",
        "open ledgers on lost bookies",
    }
)
"""Names of findings that share a card with the findings about the lost bookies themselves."""

_STEP: Final = re.compile(r"[;.] (?=(?:[^`]*`[^`]*`)*[^`]*$)")
"""Matches the end of a step of a remedy, but not within a command."""

_COMMAND: Final = re.compile(
    r"`([^`]+)`|(spark-bookkeeper (?:doctor|[a-z]+ [a-z-]+)(?:'[^']*'|[^'])*?)"
    r"(?= ?[,;()]|\.? *$|[.:] | (?:and|says|names|shows) )"
)
"""Matches a command in a remedy, in backticks or up to the end of its clause."""


SECTIONS: Final = {
    "care": "What needs care",
    "numbers": "In numbers",
    "jobs": "Recoveries and checks",
    "lacking": "Under-replicated",
    "bookies": "Bookies",
    "ledgers": "Ledgers",
}
"""The titles of the page's parts in their order, by anchor."""


def render(facts: Facts) -> str:
    """Return the page that shows these facts."""
    style = files("spark_bookkeeper.cli").joinpath("cluster_page.css").read_text(encoding="utf-8")
    moment = datetime.fromtimestamp(facts.at_ms / 1000, timezone.utc)
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title in SECTIONS.items())
    body = "\n".join(
        [
            "<header>",
            "<h1>BookKeeper cluster</h1>",
            f"<p><code>{escape(facts.metadata_uri)}</code>, as of "
            f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M:%S} UTC</time></p>',
            f'<nav aria-label="On this page"><ul>{links}</ul></nav>',
            "</header>",
            "<main>",
            *_care(facts),
            *_numbers(facts),
            *_jobs(facts),
            *_underreplicated(facts),
            *_bookies(facts),
            *_ledgers(facts),
            "</main>",
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>BookKeeper cluster</title>\n<style>\n{style}</style>\n"
        f"</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _opened(key: str) -> str:
    return f'<section aria-labelledby="{key}"><h2 id="{key}">{SECTIONS[key]}</h2>'


def _care(facts: Facts) -> Iterator[str]:
    yield _opened("care")
    found = [each for each in facts.diagnoses if each.verdict != "ok"]
    running = [row for row in facts.jobs if row["state"] == "running"]
    for row in running:
        yield f'<p class="busy">Under way: {escape(job_name(row))}, {escape(_how_far(row))}.</p>'
    if not found:
        yield '<p class="well">Everything is well.</p></section>'
        return
    counts = Counter(each.verdict for each in found)
    said = " and ".join(counted(counts[v], v) for v in ("problem", "warning") if counts[v])
    more = ", the most urgent first" if len(found) > 1 else ""
    yield f"<p>{said}{more}.</p>"
    yield '<ol class="care">'
    cards = defaultdict(list)
    loss = f"lost: {', '.join(sorted(facts.lost))}"
    of_loss = {*OF_A_LOSS, *(f"bookie {each}" for each in facts.lost)} if facts.lost else set()
    for each in found:
        cards[loss if each.check in of_loss else each.check].append(each)
    for title, those in cards.items():
        yield f'<li class="{those[0].verdict}"><h3>{those[0].verdict}: {escape(title)}</h3>'
        yield from _card(those, title)
        yield "</li>"
    yield "</ol></section>"


def _card(findings: Sequence[Diagnosis], title: str) -> Iterator[str]:
    """Yield findings, and the steps of their remedies without commands that the card has."""
    by_remedy = defaultdict(list)
    for each in findings:
        by_remedy[_COMMAND.sub(r"`\1\2`", each.remedy or "").replace("`, `", "``")].append(each)
    told: set[str] = set()
    for remedy, alike in by_remedy.items():
        for each in alike:
            name = "" if each.check == title else f"<b>{escape(each.check)}</b> "
            yield f"<p>{name}{_with_commands(each.detail)}</p>"
        steps = []
        for step in _STEP.split(remedy):
            commands = set(step.split("`")[1::2])
            if step and not (commands and commands <= told):
                steps.append(f"<li>{_with_commands(step)}</li>")
            told |= commands
        yield f"<ul>{''.join(steps)}</ul>" if steps else ""


def _with_commands(text: str) -> str:
    """Return a text as HTML. Text in backticks becomes code; whole commands get their own line."""
    kind = {True: "<code class=command>", False: "<code>"}
    return "".join(
        f"{kind[part.startswith('spark-bookkeeper ')]}{escape(part)}</code>"
        if n % 2
        else escape(part)
        for n, part in enumerate(text.split("`"))
    )


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
        ("under-replicated ledgers", f"{len(facts.lacking):,}"),
    ]
    yield _opened("numbers") + "<dl>"
    for name, value in pairs:
        yield f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl></section>"


def _jobs(facts: Facts) -> Iterator[str]:
    yield _opened("jobs")
    if not facts.jobs:
        yield "<p>None was noted: no job has run since this cluster keeps notes of them.</p>"
        yield "</section>"
        return
    cells = []
    for row in facts.jobs:
        kind = row["state"].split()[0]
        moment = row["started_at"]
        ended = row["ended_at"] or row["seen_at"]
        cells.append(
            [
                _wrapped(job_name(row)),
                f'<span class="state {kind}">{escape(row["state"])}</span>',
                f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M:%S}</time>',
                _duration((ended - moment).total_seconds()),
                _progress(row) if row["ended_at"] is None else _wrapped(_outcomes(row)),
                _wrapped(row["by"]),
            ]
        )
    heads = ["job", "state", "began (UTC)", "took", "outcome", "by"]
    yield from _table("Those that run, and the last ones", heads, cells, "jobs")
    yield "</section>"


def _progress(row: Mapping[str, Any]) -> str:
    said = escape(_how_far(row))
    if not row["total"]:
        return said
    bar = f'<progress max="{row["total"]}" value="{row["done"]}" aria-label="{said}"></progress>'
    return f'{bar} <span class="why">{said}</span>'


def _how_far(row: Mapping[str, Any]) -> str:
    """Return the progress of a job that has not ended, even one without a sign of life."""
    if not row["total"]:
        return str(row["phase"] or "it begins")
    return f"{row['phase']}: {row['done']:,} of {row['total']:,}, {_size(row['bytes'])}"


def _outcomes(row: Mapping[str, Any]) -> str:
    if row["error"]:
        return str(row["error"])
    said = ", ".join(f"{n:,} {status}" for status, n in row["outcomes"])
    return f"{said}; {_size(row['bytes'])}" if said else "nothing to report"


def _wrapped(text: str) -> str:
    """Return the text of a cell that may have several lines."""
    return f'<span class="why">{escape(text)}</span>'


def _underreplicated(facts: Facts) -> Iterator[str]:
    yield _opened("lacking")
    if not facts.lacking:
        yield "<p>No ledger: each has the copies that it should have.</p></section>"
        return
    shown = facts.lacking[:MOST_LEDGERS]
    if len(shown) < len(facts.lacking):
        yield f"<p>{len(shown):,} of {len(facts.lacking):,}, with the fewest live copies.</p>"
    below = set(_in_order(facts)[:MOST_LEDGERS])
    alike = defaultdict(list)
    for each in shown:
        copies = "unknown" if each.live_copies is None else str(each.live_copies)
        since = "not published" if each.since_ms is None else age(each.since_ms, facts.at_ms)
        published = since if each.since_ms is None else "published"
        alike[f"{', '.join(each.missing)}; live copies: {copies}; {published}"].append(
            [
                _link(each.ledger_id) if each.ledger_id in below else str(each.ledger_id),
                copies,
                "<br>".join(f"<code>{escape(bookie)}</code>" for bookie in each.missing),
                since,
                _wrapped(each.reason),
            ]
        )
    heads = ["ledger", "live copies", "lacks those of", "published", "why it is so"]
    few = [row for rows in alike.values() if len(rows) <= MOST_ALIKE for row in rows]
    if few:
        yield from _table("Ledgers with too few copies", heads, few, "lacking")
    for lack, rows in alike.items():
        if len(rows) > MOST_ALIKE:
            said = f"{len(rows):,} ledgers lack {lack}"
            name = escape(lack.replace(" ", "-"))
            yield f'<details id="{name}"><summary>{escape(said)}</summary>'
            yield from _table(said, heads, rows, "lacking")
            yield "</details>"
    yield "</section>"


def _link(ledger_id: LedgerId) -> str:
    """Return a link to a ledger's map. The map is folded, but browsers open it for a link."""
    return f'<a href="#map-{ledger_id}">{ledger_id}</a>'


def _bookies(facts: Facts) -> Iterator[str]:
    garbage = defaultdict(list)
    for row in facts.garbage:
        garbage[row["bookie_id"]].append(row)
    yield _opened("bookies")
    cells = [
        [
            f"<code>{escape(row['bookie_id'])}</code>",
            f'<span class="state {row["state"]}">{row["state"]}</span>',
            f"{row['ledgers']:,}",
            f"{row['fragments']:,}",
            _space(row["free_bytes"], row["total_bytes"], row["free_inodes"]),
            _garbage(garbage[row["bookie_id"]]),
            f"<code>{escape(without_passwords(row['root_uri'] or 'unknown'))}</code>",
        ]
        for row in facts.bookies
    ]
    heads = ["bookie", "state", "ledgers", "fragments", "space", "garbage", "storage"]
    yield from _table("Bookies by id", heads, cells, "bookies")
    yield "</section>"


def _garbage(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows or any(row["ledger_id"] is None for row in rows):
        return "unknown" if rows else "none"
    sizes = [row["garbage_bytes"] for row in rows]
    least = "at least " if None in sizes else ""
    return _wrapped(f"{least}{_size(sum(filter(None, sizes)))}, {counted(len(rows), 'ledger')}")


def _space(free: int | None, total: int | None, inodes: int | None) -> str:
    if free is None or not total:
        return "unknown"
    used = total - free
    return (
        f'<meter min="0" max="{total}" high="{total * 9 // 10}" value="{used}" '
        f'aria-label="{used * 100 // total} % used"></meter> {_size(free)} free'
        + ("" if inodes is None else f", {inodes:,} inodes")
    )


def _ledgers(facts: Facts) -> Iterator[str]:
    yield _opened("ledgers")
    if not facts.ledgers:
        yield "<p>There are none.</p></section>"
        return

    order = _in_order(facts)
    if len(order) > MOST_LEDGERS:
        yield (
            f"<p>{MOST_LEDGERS:,} of {len(order):,}: those that lack copies, those that are "
            "not closed, then the newest.</p>"
        )
    yield from _by_state(facts)
    yield "<p>Each opens to show which bookie holds which fragment.</p>"
    for ledger_id in order[:MOST_LEDGERS]:
        yield from _ledger(ledger_id, facts)
    yield "</section>"


def _in_order(facts: Facts) -> Sequence[LedgerId]:
    """Sort ledgers: those with lost or not refilled bookies, unclosed ones, then the newest."""
    lost = facts.lost

    def rank(ledger_id: LedgerId) -> tuple[bool, bool, int]:
        metadata = facts.ledgers[ledger_id]
        is_lacking = bool(lost & metadata.bookies()) or ledger_id in facts.limbo
        return not is_lacking, metadata.is_closed, -ledger_id

    return sorted(facts.ledgers, key=rank)


def _by_state(facts: Facts) -> Iterator[str]:
    """Yield a table of the ledgers by state; the sizes of those that are not closed are unknown."""
    cells = []
    for state in ("OPEN", "IN_RECOVERY", "CLOSED"):
        those = [m for m in facts.ledgers.values() if m.state.name == state]
        known = [m for m in those if m.is_closed]
        if not those:
            continue
        cells.append(
            [
                f'<span class="state {state}">{state}</span>',
                f"{len(those):,}",
                f"{sum((m.last_entry_id or 0) + 1 for m in known):,}" if known else "not known yet",
                _size(sum(m.length_bytes or 0 for m in known)) if known else "not known yet",
            ]
        )
    yield from _table("Ledgers by state", ["state", "ledgers", "entries", "bytes"], cells, "states")


def _ledger(ledger_id: LedgerId, facts: Facts) -> Iterator[str]:
    metadata = facts.ledgers[ledger_id]
    quorum = metadata.quorum
    missing = facts.lost & metadata.bookies()
    limbo = facts.limbo.get(ledger_id, frozenset())
    away: dict[str, str] = {**dict.fromkeys(missing, "lost"), **dict.fromkeys(limbo, "in limbo")}
    about = [
        f"E {quorum.ensemble_size}, Qw {quorum.write_quorum_size}, Qa {quorum.ack_quorum_size}"
    ]
    name = text_of(metadata.custom_metadata.get("name"))
    if name:
        about.insert(0, f"“{plain(name)}”")
    if metadata.is_closed:
        about.append(f"{(metadata.last_entry_id or 0) + 1:,} entries")
        about.append(_size(metadata.length_bytes or 0))
    elif ledger_id in facts.writers:
        about.append(f"writer: {facts.writers[ledger_id]}")
    if metadata.ctime_ms is not None:
        about.append(f"created {age(metadata.ctime_ms, facts.at_ms)}")
    if missing:
        about.append(f"names {counted(len(missing), 'lost bookie')}")
    if limbo:
        about.append(f"names {counted(len(limbo), 'bookie')} in limbo")
    state = metadata.state.name
    yield (
        f'<details id="ledger-{ledger_id}"><summary><b>{ledger_id}</b> '
        f'<span class="state {state}">{state}</span> {escape("; ".join(about))}</summary>'
    )
    yield f'<div id="map-{ledger_id}">'
    yield from _map(ledger_id, metadata, away)
    yield "</div>"
    yield "</details>"


def _map(ledger_id: LedgerId, metadata: LedgerMetadata, away: Mapping[str, str]) -> Iterator[str]:
    """Yield a table of bookies by fragments; a cell has the bookie's position in that ensemble.

    Args:
        away: the bookies that have no copies of the ledger now, with the reason.
    """
    fragments = list(metadata.fragment_ranges())
    shown = fragments[-MOST_FRAGMENTS:]
    if len(shown) < len(fragments):
        yield f"<p>The last {len(shown)} of {len(fragments):,} fragments.</p>"
    bookies = list(dict.fromkeys(bookie for fragment in shown for bookie in fragment.ensemble))
    heads = ["bookie", *(_range(f.first_entry_id, f.last_entry_id) for f in shown)]
    cells = []
    for bookie in bookies:
        why = away.get(bookie)
        row = [f"<code>{escape(bookie)}</code>{f' ({why})' if why else ''}"]
        for fragment in shown:
            row.append(_cell(bookie, fragment, metadata.quorum, why))
        cells.append(row)
    yield from _table(f"Fragments of ledger {ledger_id}: positions by bookie", heads, cells, "map")


def _cell(bookie: BookieId, fragment: FragmentRange, quorum: Quorum, why: str | None) -> str:
    if bookie not in fragment.ensemble:
        return ""
    position = fragment.ensemble.index(bookie)
    kind = "lost" if why else "held"
    said = f"{f'{why}, ' if why else ''}position {position}"
    if fragment.last_entry_id is not None:
        held = quorum.entries_held(position, fragment.first_entry_id, fragment.last_entry_id)
        said += f", {held:,} {'entry' if held == 1 else 'entries'}"
    return f'<span class="{kind}" role="img" title="{said}" aria-label="{said}">{position}</span>'


def _range(first: int, last: int | None) -> str:
    return f"{first:,} to {'…' if last is None else f'{last:,}'}"


def _table(
    caption: str, heads: Iterable[str], rows: Iterable[Sequence[str]], kind: str = ""
) -> Iterator[str]:
    """Yield a table that scrolls if it is wider than the page; the cells are HTML."""
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
    yield f'<table class="{kind}"><caption>{escape(caption)}</caption><thead><tr>'
    yield "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    yield "</tr></thead><tbody>"
    for first, *others in rows:
        yield f'<tr><th scope="row">{first}</th>{"".join(f"<td>{c}</td>" for c in others)}</tr>'
    yield "</tbody></table></div>"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0.0, seconds), 60)
    return f"{minutes:,.0f} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def _size(size_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size_bytes < 1024 or unit == "TiB":
            return f"{size_bytes:,.0f} {unit}" if unit == "bytes" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError
