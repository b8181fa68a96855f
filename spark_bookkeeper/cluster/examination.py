"""Is the cluster set up right, and what to do if not. Looks, and changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.bookie.marker import check_marker
from spark_bookkeeper.bookie.partition import probe
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import in_limbo, registered_incarnations
from spark_bookkeeper.client.presence import (
    GONE,
    WriterState,
    age,
    ledgers_with_writers,
    writer_of,
)
from spark_bookkeeper.client.read.newest import newest_entry
from spark_bookkeeper.cluster.absent import absent_bookie
from spark_bookkeeper.cluster.diagnosis import Diagnosis, Verdict
from spark_bookkeeper.cluster.restored import restore_diagnoses
from spark_bookkeeper.cluster.scrubbing import scrub_problems
from spark_bookkeeper.cluster.sharing import Place, place_of, shared
from spark_bookkeeper.cluster.tables import table_diagnoses
from spark_bookkeeper.config import GIB
from spark_bookkeeper.connection import partition_of
from spark_bookkeeper.errors import (
    BookieFullError,
    BookKeeperError,
    MetadataFormatError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata.store import Cookie, Registration
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.runtime.runtime import ThreadRuntime

LITTLE_SPACE: Final = 2 * GIB
"""With less free space a bookie is about to become read-only."""

CLOCK_SECONDS: Final = 60
"""Two clocks that are apart by no more are the same."""

MOST_NAMED: Final = 10
"""Ledgers that one finding names; it counts them all."""


def cluster_diagnoses(
    context: ClientContext, *, metadata_only: bool = False
) -> Iterator[Diagnosis]:
    """The metadata, every bookie with its storage, ledgers, writers, autorecovery.

    A small file is written to every bookie and removed again.

    Args:
        metadata_only: ask no bookie, and look at nothing that takes long.
    """
    store = context.store
    instance_id: str | None = None
    try:
        instance_id = store.instance_id()
    except MetadataFormatError as junk:
        yield Diagnosis(
            "zookeeper",
            "problem",
            junk.message,
            "give that node the cluster's name again before an agent is started",
        )
    else:
        yield Diagnosis("zookeeper", "ok", f"{context.metadata_uri} answers; cluster {instance_id}")
    if not metadata_only:
        yield from _clock(context)
    alive = context.bookies.registrations()
    cookies = {cookie.value.bookie_id: cookie.value for cookie in store.cookies()}
    ledgers: dict[LedgerId, LedgerMetadata] = {}
    unreadable: list[MetadataFormatError] = []
    states: dict[LedgerId, WriterState] = {}
    for ledger_id, found, state in ledgers_with_writers(context):
        if isinstance(found, MetadataFormatError):
            unreadable.append(found)
            continue
        ledgers[ledger_id] = found
        if state is not None:
            states[ledger_id] = state
    if not alive:
        yield Diagnosis(
            "bookies",
            "problem",
            "none is registered, so nothing can be written",
            "start them: spark-bookkeeper bookie start --bookie-id HOST:3181 --root DIRECTORY",
        )
    named = {bookie for metadata in ledgers.values() for bookie in metadata.bookies()}
    look = _Look(context, instance_id, alive, cookies, named, not unreadable, metadata_only)
    known = sorted(alive.keys() | cookies.keys() | named)
    yield from context.runtime.map(look.at, known)
    if not metadata_only:
        roots = {b: c.root_uri for b, c in cookies.items()}
        yield from _shared(context, {**roots, **_roots(alive)})
    for error in unreadable[:MOST_NAMED]:
        yield Diagnosis(
            "ledger metadata",
            "problem",
            error.message,
            "its data cannot be read, recovered or counted here; the other ledgers can. Do not "
            "remove anything before somebody looked at it",
        )
    if len(unreadable) > MOST_NAMED:
        yield Diagnosis(
            "ledger metadata",
            "problem",
            f"{len(unreadable) - MOST_NAMED:,} more ledgers cannot be decoded",
            "spark-bookkeeper ledger list --state unreadable names them all",
        )
    if not metadata_only:
        yield _writers(context, ledgers, states)
        yield from table_diagnoses(context, ledgers)
    lost = set(known) - alive.keys()
    lacking = sum(1 for metadata in ledgers.values() if lost & metadata.bookies())
    yield _autorecovery(context, lacking)
    yield from restore_diagnoses(context)
    for scrubbed, bad in scrub_problems(context, sorted(set(known) & alive.keys())):
        yield Diagnosis(
            f"bookie {scrubbed}",
            "warning",
            f"scrubbing found {bad}",
            "autorecovery makes them again where it runs; look at the disk. The next round of "
            "scrubbing says whether it is well",
        )
    yield from _ledgers(ledgers, lost, alive)


def _clock(context: ClientContext) -> Iterator[Diagnosis]:
    """Whether this machine's clock is that of ZooKeeper, which all the others can be held to."""
    before = context.runtime.wall_ms()
    try:
        theirs = context.store.clock_ms()
    except MetadataUnavailableError:
        raise
    except BookKeeperError:  # who may only read is told nothing of clocks
        return
    after = context.runtime.wall_ms()
    if theirs is None:
        return
    off = max(before - theirs, theirs - after, 0) / 1000
    if off <= CLOCK_SECONDS:
        return
    way = "ahead of" if before > theirs else "behind"
    yield Diagnosis(
        "clock",
        "warning",
        f"this machine's is {off:,.0f} s {way} ZooKeeper's. Times of appends, how long a bookie "
        "has been lost and ages in reports mislead; nothing else depends on it",
        "set the clocks of both by a time server (NTP), this machine's or ZooKeeper's",
    )


def _autorecovery(context: ClientContext, lacking: int) -> Diagnosis:
    """Whether anybody notices a lost bookie; a cluster to play with may do without.

    Args:
        lacking: ledgers that name a lost bookie.
    """
    found = AutorecoveryControl(context, lambda _: LocalRunner(context)).status()
    counts = f"{found.underreplicated:,} ledgers published as under-replicated"
    if not found.is_enabled:
        return Diagnosis(
            "autorecovery",
            "warning",
            f"disabled for the cluster; {counts}, {lacking:,} name a lost bookie, and nobody "
            "publishes or repairs one",
            "spark-bookkeeper autorecovery enable, when maintenance is over",
        )
    if found.auditor is None and (lacking or found.underreplicated):
        return Diagnosis(
            "autorecovery",
            "warning",
            f"none runs, so nobody repairs anything: {counts}, {lacking:,} name a lost bookie",
            "have it done now and from now on: spark-bookkeeper autorecovery start; or once: "
            "spark-bookkeeper autorecovery start --once",
        )
    if found.auditor is None:
        return Diagnosis(
            "autorecovery", "ok", f"none runs: a lost bookie is noticed by you; {counts}"
        )
    if found.warning is not None:
        return Diagnosis("autorecovery", "warning", f"{counts}; {found.warning}", "see there")
    return Diagnosis("autorecovery", "ok", f"the auditor is {found.auditor}; {counts}")


def _roots(alive: Mapping[BookieId, Registration]) -> dict[BookieId, str]:
    return {bookie: live.root_uri for bookie, live in alive.items() if live.incarnation}


def _shared(context: ClientContext, roots: Mapping[BookieId, str]) -> Iterator[Diagnosis]:
    """What would be lost together."""

    def look(bookie: BookieId) -> tuple[BookieId, Place]:
        try:
            return bookie, place_of(partition_of(context, bookie), bookie)
        except BookKeeperError:  # said of the bookie itself
            return bookie, Place(roots[bookie])

    for found in shared(dict(context.runtime.map(look, sorted(roots)))):
        check = f"bookies on one {found.what}"
        if found.is_for_trying:
            yield Diagnosis(
                check, "ok", f"{found}: good for trying things out, not for keeping them"
            )
        else:
            yield Diagnosis(
                check,
                "warning",
                f"{found}: what loses one loses the others, and perhaps every copy of an entry",
                f"give each of them its own {found.what}: format a new bookie there, and then "
                f"spark-bookkeeper bookie recover {found.bookies[-1]} --even-if-alive",
            )


def _writers(
    context: ClientContext,
    ledgers: Mapping[LedgerId, LedgerMetadata],
    states: Mapping[LedgerId, WriterState],
) -> Diagnosis:
    """Ledgers that nobody closed and nobody writes; their bookies say for how long."""
    check = "writers of open ledgers"
    gone = [ledger_id for ledger_id, state in states.items() if state == "gone"]
    unknown = sum(state == "unknown" for state in states.values())
    living = len(states) - len(gone) - unknown
    counts = (
        f"{living:,} whose writer lives, {len(gone):,} whose writer is gone, {unknown:,} whose "
        "writer left no note"
    )
    if not gone:
        return Diagnosis(check, "ok", counts if states else "every ledger is closed")

    def name(ledger_id: LedgerId) -> str:
        metadata = ledgers[ledger_id]
        newest = newest_entry(context, ledger_id, metadata)
        now_ms = context.runtime.wall_ms()
        facts = [str(writer_of(metadata) or "unknown")]
        if newest.last_add_confirmed is not None:
            facts.append(f"confirmed up to {newest.last_add_confirmed}")
        if newest.stored_at_ms is not None:
            facts.append(f"newest entry {age(newest.stored_at_ms, now_ms)}")
        elif metadata.ctime_ms is not None:
            facts.append(f"created {age(metadata.ctime_ms, now_ms)}")
        return f"{ledger_id} ({', '.join(facts)})"

    named = context.runtime.map(name, gone[:MOST_NAMED])
    more = "; ..." if len(gone) > MOST_NAMED else ""
    return Diagnosis(
        check,
        "warning",
        f"{counts}: {'; '.join(named)}{more}. Gone: {GONE}",
        f"nobody closes these any more: {_recover_ledgers(gone)}",
    )


def _recover_ledgers(ledger_ids: Sequence[LedgerId]) -> str:
    """A command that can be typed as it stands; of many ledgers it has the first ones."""
    shown = " ".join(map(str, ledger_ids[:MOST_NAMED]))
    more = len(ledger_ids) - MOST_NAMED
    others = f" and then the other {more:,}, which the next look names" if more > 0 else ""
    return f"spark-bookkeeper ledger recover {shown}{others}"


def _by_registration(check: str, live: Registration) -> Diagnosis:
    """A bookie that is alive, by what its agent says of it."""
    if not live.is_readonly:
        return Diagnosis(check, "ok", "registered, writable")
    return Diagnosis(check, "warning", _state(live), _make_writable(live))


def _state(live: Registration) -> str:
    why = f" ({live.readonly_reason})" if live.readonly_reason else ""
    return f"read-only{why}" if live.is_readonly else "writable"


def _make_writable(live: Registration) -> str:
    return (
        "make room if it is full: delete ledgers and collect what is left of them "
        f"(spark-bookkeeper bookie gc {live.bookie_id}), or add a disk or a bookie; if it was set "
        f"by hand: spark-bookkeeper bookie set-writable {live.bookie_id}"
    )


@dataclass(frozen=True)
class _Look:
    """Looks at one bookie."""

    context: ClientContext
    instance_id: str | None
    """``None`` when nobody can tell."""
    alive: Mapping[BookieId, Registration]
    cookies: Mapping[BookieId, Cookie]
    named: Set[BookieId]
    """Bookies that some ledger counts on."""
    is_certain: bool
    """Whether every ledger's metadata could be read."""
    metadata_only: bool

    def at(self, bookie: BookieId) -> Diagnosis:
        check = f"bookie {bookie}"
        live, cookie = self.alive.get(bookie), self.cookies.get(bookie)
        if live is None:
            return absent_bookie(
                self.context,
                bookie,
                cookie,
                is_named=bookie in self.named,
                is_certain=self.is_certain,
                metadata_only=self.metadata_only,
            )
        if not live.incarnation:
            return Diagnosis(
                check,
                "warning",
                "names no storage: it serves BookKeeper's own protocol, or its registration is "
                "broken; no ledgers of ours go there",
            )
        if cookie is None:
            return Diagnosis(
                check,
                "problem",
                "its cookie is gone: it takes no new data, and once stopped it will not start",
                "if it is to stay, write the cookie again: spark-bookkeeper bookie cookie create "
                f"--bookie-id {bookie} --root {shlex.quote(live.root_uri)}",
            )
        if self.instance_id and cookie.instance_id not in (None, self.instance_id):
            return Diagnosis(
                check,
                "problem",
                f"left over from cluster {cookie.instance_id}, which was here before",
                "stop its agent; what its storage holds belongs to ledgers that are gone. Empty it "
                "by hand, and start it as a new bookie",
            )
        if cookie.incarnation != live.incarnation:
            return Diagnosis(
                check,
                "problem",
                f"its cookie has incarnation {cookie.incarnation}, its registration "
                f"{live.incarnation}",
                "stop its agent and start it again; what it then says is the cause",
            )
        if self.metadata_only:
            return _by_registration(check, live)
        return self._storage(check, bookie, live)

    def _storage(self, check: str, bookie: BookieId, live: Registration) -> Diagnosis:
        try:
            storage = partition_of(self.context, bookie)
            marker = check_marker(storage, live.incarnation, bookie)
            if self.instance_id is not None and marker.instance_id != self.instance_id:
                return Diagnosis(
                    check,
                    "problem",
                    f"its storage belongs to cluster {marker.instance_id}",
                    "the agent was started on the partition of another cluster: stop it",
                )
            probe(storage, ThreadRuntime().token)
            space = storage.space()
        except BookieFullError as error:
            return Diagnosis(
                check,
                "problem",
                f"{_state(live)}, and so full that not even a probe can be written: fences and "
                f"recovery find no space either. {error.message}",
                _make_writable(live),
            )
        except BookKeeperError as error:
            return Diagnosis(
                check,
                "problem",
                f"registered, but from here: {error.message}",
                f"can this machine reach {live.root_uri} (mount, credentials, --storage-option)?",
            )
        facts = f"{_state(live)}, {live.root_uri}, cookie = marker, conditional create works"
        if space is None:
            return Diagnosis(check, "ok", facts)
        facts += f", {space[0] / GIB:,.1f} of {space[1] / GIB:,.1f} GiB free"
        if live.is_readonly or space[0] < LITTLE_SPACE:
            return Diagnosis(check, "warning", facts, _make_writable(live))
        return Diagnosis(check, "ok", facts)


def _ledgers(
    ledgers: Mapping[LedgerId, LedgerMetadata],
    lost: set[BookieId],
    alive: Mapping[BookieId, Registration],
) -> Iterator[Diagnosis]:
    total = f"{len(ledgers):,} ledgers"
    stuck = [i for i, m in ledgers.items() if m.state.name == "IN_RECOVERY"]
    exposed = [
        i for i, m in ledgers.items() if not m.is_closed and lost & set(m.last_fragment.ensemble)
    ]
    lacking = [i for i, m in ledgers.items() if lost & m.bookies()]
    named = sorted(lost & {bookie for i in lacking for bookie in ledgers[i].bookies()})
    registered = registered_incarnations(alive)
    limbo = {i: found for i, m in ledgers.items() if (found := in_limbo(m, registered))}
    empty = sorted({bookie for bookies in limbo.values() for bookie in bookies})
    away = {i: lost | limbo.get(i, frozenset()) for i in ledgers}
    thin = {i: lacked for i, m in ledgers.items() if (lacked := _lacked(m, away[i]))}
    lacked_most = frozenset().union(*thin.values())
    yield _on_ledgers(
        "ledgers in recovery",
        total,
        stuck,
        "in recovery: a client is at it, or died, or needs a bookie to come back",
        f"this goes on, or says what is missing: {_recover_ledgers(stuck)}",
        "warning",
    )
    yield _on_ledgers(
        "open ledgers on lost bookies",
        total,
        exposed,
        "open, and their last fragment names a lost bookie",
        "their writers replace it with the next append; if they are dead: "
        f"{_recover_ledgers(exposed)}",
        "warning",
    )
    yield _on_ledgers(
        "fragments on lost bookies",
        total,
        lacking,
        "name a lost bookie: they have fewer copies than they should",
        _recover(named),
        "problem",
    )
    yield _on_ledgers(
        "fragments on replaced disks",
        total,
        list(limbo),
        f"count on {', '.join(empty)}, formatted again since and not filled again",
        _refill(empty),
        "problem",
    )
    yield _on_ledgers(
        "entries below their ack quorum",
        total,
        list(thin),
        "have entries with fewer live copies than their ack quorum; the next loss may be final",
        _before_all(sorted(lacked_most & lost), sorted(lacked_most - lost)),
        "problem",
    )


def _recover(bookies: Sequence[BookieId]) -> str:
    return f"spark-bookkeeper bookie recover {' --bookie '.join(bookies)}"


def _refill(bookies: Sequence[BookieId]) -> str:
    return ", then ".join(f"spark-bookkeeper bookie refill {bookie}" for bookie in bookies)


def _before_all(lost: Sequence[BookieId], empty: Sequence[BookieId]) -> str:
    """What helps entries that the next loss may end: each kind of bookie has its own remedy."""
    remedies = [f"bring {', '.join(lost)} back, or {_recover(lost)}"] if lost else []
    remedies += [_refill(empty)] if empty else []
    return f"before anything else: {'; and '.join(remedies)}"


def _lacked(metadata: LedgerMetadata, away: Set[BookieId]) -> frozenset[BookieId]:
    """Those of the bookies that are away for whose sake entries are below their ack quorum."""
    quorum = metadata.quorum
    lacked: set[BookieId] = set()
    for fragment in metadata.fragments:
        for write_set in quorum.write_sets():
            absent = {fragment.ensemble[position] for position in write_set} & away
            if len(write_set) - len(absent) < quorum.ack_quorum_size:
                lacked |= absent
    return frozenset(lacked)


def _on_ledgers(
    check: str,
    total: str,
    found: Sequence[LedgerId],
    what: str,
    remedy: str,
    verdict: Verdict,
) -> Diagnosis:
    if not found:
        return Diagnosis(check, "ok", f"none of {total}")
    shown = " ".join(map(str, found[:MOST_NAMED])) + (" ..." if len(found) > MOST_NAMED else "")
    return Diagnosis(check, verdict, f"{len(found):,} of {total} {what}: {shown}", remedy)
