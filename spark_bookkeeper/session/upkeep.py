"""Upkeep of bookies: remove, empty and rebalance them; free space, compact files, check digests.

Each call imports its own job: every program and command imports this module, but few use a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from spark_bookkeeper.config import COMPACTED_FROM_FILES, SPARE_BYTES
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import parse_bookie_id
from spark_bookkeeper.session.arguments import error_text, ids_of, known_bookies, list_of, rate_of
from spark_bookkeeper.session.handle import ClusterHandle

if TYPE_CHECKING:
    from spark_bookkeeper.agent.collection import GarbageReport
    from spark_bookkeeper.agent.compaction_job import CompactReport
    from spark_bookkeeper.agent.decommission import DecommissionReport
    from spark_bookkeeper.agent.orphan_deletion import OrphansReport
    from spark_bookkeeper.agent.scrubbing import ScrubReport
    from spark_bookkeeper.replication.rebalance import RebalanceReport
    from spark_bookkeeper.replication.runner import Progress


def decommission_bookie(
    self: ClusterHandle,
    bookie_id: str,
    drain: bool = False,
    *,
    dry_run: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress | None = None,
) -> DecommissionReport:
    """Copy all data of a bookie to other bookies, and then remove its cookie.

    Args:
        bookie_id: the bookie.
        drain: copy the data also while it is alive. Its cookie then stays, until the bookie is
            stopped and this is called again.
        dry_run: show what would be copied; nothing is changed.
        bytes_per_second: limit for the whole job.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Raises:
        InvalidArgumentError: it is unknown, or alive and ``drain`` is not set.
    """
    from spark_bookkeeper.agent.decommission import decommission_bookie as decommission_job

    bookie, rate = parse_bookie_id(bookie_id), rate_of(bytes_per_second)
    return self.reported(
        "decommission_bookie",
        error_text("bookie", [bookie]),
        dry_run,
        progress,
        lambda runner, tell: decommission_job(
            self.context,
            runner,
            bookie,
            drain=drain,
            dry_run=dry_run,
            bytes_per_second=rate,
            progress=tell,
        ),
    )


def drain_bookie(
    self: ClusterHandle,
    bookie_id: str,
    *,
    dry_run: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress | None = None,
) -> DecommissionReport:
    """Make a bookie read-only, and copy all its data to other bookies, as a Spark job.

    It stays in the cluster. The report shows what remains on it, and what prevents the rest.

    Args:
        bookie_id: the bookie.
        dry_run: show what would be copied; nothing is changed.
        bytes_per_second: limit for the whole job.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Raises:
        InvalidArgumentError: the bookie is unknown. Nothing was changed.
    """
    from spark_bookkeeper.agent.decommission import drain_bookie as drain_bookie_job

    bookie, rate = parse_bookie_id(bookie_id), rate_of(bytes_per_second)
    return self.reported(
        "drain_bookie",
        error_text("bookie", [bookie]),
        dry_run,
        progress,
        lambda runner, tell: drain_bookie_job(
            self.context, runner, bookie, dry_run=dry_run, bytes_per_second=rate, progress=tell
        ),
    )


def rebalance(
    self: ClusterHandle,
    targets: str | Sequence[str] | None = None,
    *,
    max_bytes: int | None = None,
    tolerance_percent: int = 10,
    spare_bytes: int = SPARE_BYTES,
    dry_run: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress | None = None,
) -> RebalanceReport:
    """Move shares of closed ledgers to bookies that have room, as a Spark job.

    Each bookie's part of all bytes follows the size of its disk. The copies on the earlier bookies
    become garbage, and take space there until it is collected.

    Args:
        targets: only these bookies get more; ``None`` is every one that has too little.
        max_bytes: the most bytes to move.
        tolerance_percent: a bookie that exceeds its part by no more than this loses no share.
        spare_bytes: the least bytes that must stay free on a target's disk.
        dry_run: show the plan; nothing is changed.
        bytes_per_second: limit for the whole job.
        progress: called with phase, items done, items in all, bytes so far.

    Raises:
        InvalidArgumentError: a target is not registered, or read-only.
    """
    from spark_bookkeeper.replication.rebalance import Rebalance
    from spark_bookkeeper.replication.rebalance import rebalance as rebalance_job

    names = [targets] if isinstance(targets, str) else targets
    wish = Rebalance(
        None if names is None else tuple(map(parse_bookie_id, list_of("targets", names))),
        None if max_bytes is None else whole_number("max_bytes", max_bytes, 1),
        whole_number("tolerance_percent", tolerance_percent, 0),
        whole_number("spare_bytes", spare_bytes, 0),
        rate_of(bytes_per_second),
    )
    return self.reported(
        "rebalance",
        None,
        dry_run,
        progress,
        lambda runner, tell: rebalance_job(
            self.context, runner, wish, dry_run=dry_run, progress=tell
        ),
    )


def collect_garbage(
    self: ClusterHandle,
    dry_run: bool = True,
    *,
    bookie_ids: Sequence[str] | None = None,
    leftovers_after_s: int = 86_400,
    bytes_per_second: int | None = None,
    progress: Progress | None = None,
) -> GarbageReport:
    """Remove unneeded files from bookies, in this process. Agents also do this on their own.

    A file stays if it is uncertain whether it is needed; a row then shows the reason.

    Args:
        dry_run: only report what would be removed; the default.
        bookie_ids: only from these; ``None`` is all that are registered.
        leftovers_after_s: remove files of unfinished writes that are older than this.
        bytes_per_second: limit on reading other replicas of copies that no metadata name.
    """
    from spark_bookkeeper.agent.collection import Collection
    from spark_bookkeeper.agent.collection import collect_garbage as collect_garbage_job

    wish = Collection(
        dry_run,
        leftovers_after_ms=1000 * whole_number("leftovers_after_s", leftovers_after_s, 0),
        bytes_per_second=rate_of(bytes_per_second),
    )
    wanted = known_bookies(self.context, bookie_ids)
    return self.reported(
        "collect_garbage",
        error_text("bookie", wanted),
        dry_run,
        progress,
        lambda _, tell: collect_garbage_job(self.context, wanted, wish, progress=tell),
    )


def delete_orphans(
    self: ClusterHandle,
    created_before: datetime,
    dry_run: bool = True,
    *,
    ledger_ids: Iterable[int] | None = None,
    progress: Progress | None = None,
) -> OrphansReport:
    """Delete the ledgers of ``orphans()`` that were created before a time.

    They include every closed ledger without a name, an owner or another label, even if a user
    still needs it: read the plan first. A ledger whose metadata change before its deletion
    stays. Garbage collection then frees the bytes.

    A ledger that is not closed stays: its writer may only be cut off from ZooKeeper.
    Once its process has ended, ``recover_ledgers`` closes it, and keeps acknowledged entries.

    Args:
        created_before: a ledger whose time of creation is unknown stays.
        dry_run: only report what would be deleted; the default.
        ledger_ids: only these of them; ``None`` is all.

    Raises:
        InvalidArgumentError: not a time, or a restore has not ended. Nothing was deleted.
    """
    from spark_bookkeeper.agent.orphan_deletion import delete_orphans as delete_orphans_job
    from spark_bookkeeper.client.read.times import to_ms

    at_ms, wanted = to_ms(created_before), ids_of(ledger_ids)
    only = None if wanted is None else frozenset(wanted)
    return self.reported(
        "delete_orphans",
        f"created before {created_before}",
        dry_run,
        progress,
        lambda _, tell: delete_orphans_job(
            self.context, at_ms, ledger_ids=only, dry_run=dry_run, progress=tell
        ),
    )


def compact(
    self: ClusterHandle,
    ledger_ids: Iterable[int] | None = None,
    *,
    bookie_ids: Sequence[str] | None = None,
    dry_run: bool = False,
    files_least: int = COMPACTED_FROM_FILES,
    bytes_per_second: int | None = None,
    progress: Progress | None = None,
) -> CompactReport:
    """Replace the many small files of closed ledgers by few large ones, on each bookie.

    Runs in this process; agents also compact on their own. Reads continue meanwhile.

    Args:
        ledger_ids: only these; ``None`` is all.
        bookie_ids: only on these; ``None`` is all that are registered.
        files_least: skip a ledger on a bookie if it has fewer files there.
        bytes_per_second: limit on the bytes that are moved.
    """
    from spark_bookkeeper.agent.compaction_job import CompactionRequest, compact_ledgers

    wish = CompactionRequest(
        dry_run, whole_number("files_least", files_least, 2), rate_of(bytes_per_second)
    )
    wanted, bookies = ids_of(ledger_ids), known_bookies(self.context, bookie_ids)
    return self.reported(
        "compact",
        error_text("ledger", wanted),
        dry_run,
        progress,
        lambda _, tell: compact_ledgers(self.context, wanted, bookies, wish, progress=tell),
    )


def scrub(
    self: ClusterHandle,
    bookie_id: str,
    *,
    from_start: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress | None = None,
) -> ScrubReport:
    """Read everything that a bookie should have, and compare it with its digests.

    Damaged and missing copies are published to autorecovery. Runs in this process; agents also
    scrub on their own. A scrub continues where the previous one ended, unless ``from_start``.

    Raises:
        BookieUnavailableError: the bookie does not answer; nothing was published for this reason.
    """
    from spark_bookkeeper.agent.scrubbing import Scrubbing
    from spark_bookkeeper.agent.scrubbing import scrub as scrub_job

    wish = Scrubbing(rate_of(bytes_per_second), from_start)
    bookie = parse_bookie_id(bookie_id)
    known_bookies(self.context, [bookie])
    return self.reported(
        "scrub",
        error_text("bookie", [bookie]),
        False,
        progress,
        lambda _, tell: scrub_job(self.context, bookie, wish, progress=tell),
    )
