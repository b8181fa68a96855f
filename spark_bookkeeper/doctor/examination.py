"""Examination of a cluster: whether it is set up right, and remedies. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

from spark_bookkeeper.agent.scrubbing import scrub_problems
from spark_bookkeeper.autorecovery.checks import (
    BELOW_ACK_QUORUM,
    BELOW_WRITE_QUORUM,
    NO_REPLICA,
    read_results,
)
from spark_bookkeeper.autorecovery.delay import read_delay
from spark_bookkeeper.client.cluster_clock import SAME_CLOCK_SECONDS
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.presence import age
from spark_bookkeeper.connection import partition_of
from spark_bookkeeper.doctor.autorecovery import AutorecoverySeen
from spark_bookkeeper.doctor.dead_bookie import absent_bookie
from spark_bookkeeper.doctor.diagnosis import Diagnosis, Verdict
from spark_bookkeeper.doctor.failure_domains import Place, are_for_trying, place_of, shared
from spark_bookkeeper.doctor.ledgers import (
    LedgersSeen,
    endangered_ledgers,
    open_ledgers,
    unreadable,
)
from spark_bookkeeper.doctor.live_bookie import present_bookie
from spark_bookkeeper.doctor.restores import restore_diagnoses
from spark_bookkeeper.doctor.small_slots import crowded_ledgers
from spark_bookkeeper.doctor.tables import table_diagnoses
from spark_bookkeeper.errors import (
    BookKeeperError,
    MetadataFormatError,
)
from spark_bookkeeper.metadata.store import CLOCK_AHEAD, Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.report import Outcome, counted, some_of

_SERIOUS: Final[Mapping[str, tuple[Verdict, str]]] = {
    NO_REPLICA: ("problem", "had an entry without any replica"),
    BELOW_ACK_QUORUM: ("problem", "had an entry with fewer than Qa replicas"),
    BELOW_WRITE_QUORUM: ("warning", "had an entry with fewer than Qw replicas"),
    Outcome.UNREADABLE.value: ("warning", "had replicas that could not be read"),
}
"""Findings of the auditor's checks that autorecovery does not repair by itself."""


def cluster_diagnoses(
    context: ClientContext, *, metadata_only: bool = False
) -> Iterator[Diagnosis]:
    """Examine the metadata, every bookie with its storage, ledgers, writers, autorecovery.

    A small file is written to every bookie and removed again.

    Args:
        metadata_only: call no bookie, and skip everything that takes long.
    """
    store_diagnosis, instance_id = _metadata_store(context)
    yield store_diagnosis
    if not metadata_only:
        yield from _clock(context)
    alive = context.bookies.registrations()
    cookies = {cookie.value.bookie_id: cookie.value for cookie in context.store.cookies()}
    ledgers = LedgersSeen.of(context)
    if not alive:
        yield Diagnosis(
            "bookies",
            "problem",
            "none is registered, so nothing can be written",
            "start them: spark-bookkeeper bookie start --bookie-id HOST:3181 --root DIRECTORY",
        )
    named = {bookie for metadata in ledgers.readable.values() for bookie in metadata.bookies()}
    known = sorted(alive.keys() | cookies.keys() | named)
    autorecovery = AutorecoverySeen.of(context)

    def bookie(name: BookieId) -> Diagnosis:
        live, cookie = alive.get(name), cookies.get(name)
        if live is None:
            return absent_bookie(
                context,
                name,
                cookie,
                is_named=name in named,
                is_certain=not ledgers.unreadable,
                metadata_only=metadata_only,
                attended=autorecovery.instead_of_recover(ledgers.that_name(name)),
            )
        return present_bookie(context, live, cookie, instance_id, metadata_only=metadata_only)

    yield from context.runtime.map(bookie, known)
    yield from _clocks(alive)
    if not metadata_only:
        roots = {b: c.root_uri for b, c in cookies.items()}
        yield from _shared(context, {**roots, **_roots(alive)})
    yield from unreadable(ledgers, context.store.registers)
    if not metadata_only:
        yield open_ledgers(context, ledgers)
        yield from crowded_ledgers(context, ledgers)
        yield from table_diagnoses(context, ledgers.readable)
    lost = set(known) - alive.keys()
    yield _autorecovery(autorecovery, ledgers, lost, alive)
    yield from _waiting(autorecovery)
    yield from _delay(context, autorecovery, alive)
    yield from _checked(context)
    yield from restore_diagnoses(context)
    yield from _scrubbed(context, sorted(set(known) & alive.keys()))
    yield from endangered_ledgers(ledgers.readable, lost, alive, autorecovery.instead_of_recover)


def _metadata_store(context: ClientContext) -> tuple[Diagnosis, str | None]:
    """Return whether the metadata store answers, and the INSTANCEID; ``None`` if unreadable."""
    try:
        instance_id = context.store.instance_id()
    except MetadataFormatError as junk:
        remedy = "give that node the cluster's name again before an agent is started"
        return Diagnosis("zookeeper", "problem", junk.message, remedy), None
    found = f"{context.metadata_uri} answers; cluster {instance_id}"
    return Diagnosis("zookeeper", "ok", found), instance_id


def _clock(context: ClientContext) -> Iterator[Diagnosis]:
    """Compare this machine's clock with ZooKeeper's, the reference for all clocks."""
    theirs = context.cluster_ms()
    ahead = (context.runtime.wall_ms() - theirs) / 1000
    if abs(ahead) > SAME_CLOCK_SECONDS:
        yield _off("clock", "this machine's", ahead)


def _clocks(alive: Mapping[BookieId, Registration]) -> Iterator[Diagnosis]:
    """Compare the clocks of the bookies' machines with ZooKeeper's, as their agents published."""
    for bookie, live in alive.items():
        if ahead := live.told(CLOCK_AHEAD):
            yield _off(f"bookie {bookie}", "the clock of its machine", ahead)


def _off(check: str, whose: str, ahead: float) -> Diagnosis:
    return Diagnosis(
        check,
        "warning",
        f"{whose} is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} ZooKeeper's. "
        "Times of what is stored from there mislead, and so do ages of entries; nothing else "
        "depends on it",
        "set the clocks of both by a time server (NTP), that machine's or ZooKeeper's",
    )


def _autorecovery(
    autorecovery: AutorecoverySeen,
    ledgers: LedgersSeen,
    lost: Set[BookieId],
    alive: Iterable[BookieId],
) -> Diagnosis:
    """Diagnose whether any process repairs lost bookies; a cluster for trials may have none."""
    lacking = sum(1 for metadata in ledgers.readable.values() if lost & metadata.bookies())
    found = autorecovery.status
    counts = f"{found.underreplicated:,} ledgers published as under-replicated"
    if not found.is_enabled:
        return Diagnosis(
            "autorecovery",
            "warning",
            f"disabled for the cluster; {counts}, {lacking:,} name a lost bookie, and nobody "
            "publishes or repairs one",
            "spark-bookkeeper autorecovery enable, when maintenance is over",
        )
    is_needed = lacking or found.underreplicated or not are_for_trying(alive)
    if found.auditor is None and is_needed:
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
    if (unfit := autorecovery.unfit) is not None:
        return Diagnosis("autorecovery", "warning", f"{counts}; {unfit}", "see there")
    waiting = autorecovery.without_worker
    if waiting:
        ledger_id, why = waiting[0]
        return Diagnosis(
            "autorecovery",
            "warning",
            f"the auditor is {found.auditor}; {counts}, and of {len(waiting):,} of "
            f"{autorecovery.looked_at:,} that were looked at no worker that runs can make the "
            f"copies: {some_of([each for each, _ in waiting])}",
            f"of ledger {ledger_id}, {why}",
        )
    return Diagnosis("autorecovery", "ok", f"the auditor is {found.auditor}; {counts}")


def _waiting(autorecovery: AutorecoverySeen) -> Iterator[Diagnosis]:
    """Report ledgers with a task that cannot be repaired now."""
    waiting = autorecovery.waiting
    if waiting:
        ledger_id, why = waiting[0]
        yield Diagnosis(
            "under-replicated ledgers",
            "warning",
            f"{len(waiting):,} of {autorecovery.looked_at:,} that were looked at cannot be "
            f"repaired now: {some_of([each for each, _ in waiting])}; ledger {ledger_id}: {why}",
            "`spark-bookkeeper autorecovery underreplicated` shows what each of them waits for",
        )


def _delay(
    context: ClientContext,
    autorecovery: AutorecoverySeen,
    alive: Mapping[BookieId, Registration],
) -> Iterator[Diagnosis]:
    """Warn if lost bookies get no time to come back: the delay is unreadable, or it is not set
    although racks or addresses show that the cluster is not for trials.
    """
    found = read_delay(context.store.underreplication).warning
    if found is not None:
        yield Diagnosis("recovery delay", "warning", found, "see there")
    elif (
        autorecovery.status.auditor is not None
        and not autorecovery.status.lost_bookie_recovery_delay
        and (len({each.rack for each in alive.values()}) > 1 or not are_for_trying(alive))
    ):
        yield Diagnosis(
            "recovery delay",
            "warning",
            "none: a restart of one bookie's agent has its ledgers copied, and what it has is "
            "garbage then",
            "spark-bookkeeper autorecovery delay 600",
        )


def _checked(context: ClientContext) -> Iterator[Diagnosis]:
    """Report what the auditor's checks found in their last run."""
    now_ms = context.cluster_ms()
    for result in read_results(context.store.registers):
        for what, count in sorted(result.found.items()):
            if what not in _SERIOUS:
                continue
            verdict, means = _SERIOUS[what]
            named = result.named.get(what, ())
            yield Diagnosis(
                "checks of the auditor",
                verdict,
                f"{age(result.ended_at_ms, now_ms)}, {counted(count, 'ledger')} {means}: "
                f"{some_of(named)}",
                f"spark-bookkeeper ledger check {' '.join(map(str, named[:3]))} says how it is "
                "now and what to do; spark-bookkeeper autorecovery trigger-checks looks at all",
            )


def _roots(alive: Mapping[BookieId, Registration]) -> dict[BookieId, str]:
    return {bookie: live.root_uri for bookie, live in alive.items() if live.incarnation}


def places_of(context: ClientContext, roots: Mapping[BookieId, str]) -> dict[BookieId, Place]:
    """Return where bookies are, as far as this machine can see; reads their markers."""

    def look(bookie: BookieId) -> tuple[BookieId, Place]:
        try:
            return bookie, place_of(partition_of(context, bookie), bookie)
        except BookKeeperError:  # the diagnosis of the bookie reports it
            return bookie, Place(roots[bookie])

    return dict(context.runtime.map(look, sorted(roots)))


def _shared(context: ClientContext, roots: Mapping[BookieId, str]) -> Iterator[Diagnosis]:
    """Report groups of bookies that one failure would lose."""
    for found in shared(places_of(context, roots)):
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
                f"give each of them its own {found.what} when they are replaced; new ones now",
            )


def _scrubbed(context: ClientContext, bookies: Sequence[BookieId]) -> Iterator[Diagnosis]:
    for bookie, bad in scrub_problems(context, bookies):
        yield Diagnosis(
            f"bookie {bookie}",
            "warning",
            f"scrubbing found {bad}",
            "autorecovery makes them again where it runs; look at the disk. The next round of "
            "scrubbing says whether it is well",
        )
