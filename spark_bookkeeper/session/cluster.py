"""The cluster as a whole, looked at: bookies, what lacks replicas, jobs, space, health.

What looks deeper is imported by its call: every program and command imports this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_bookkeeper.client import views
from spark_bookkeeper.protocol.ids import parse_bookie_id
from spark_bookkeeper.replication.recent_jobs import jobs_table
from spark_bookkeeper.session.arguments import bookie_ids_of, list_of
from spark_bookkeeper.session.handle import ClusterHandle

if TYPE_CHECKING:
    from spark_bookkeeper.autorecovery.losses import Losses
    from spark_bookkeeper.doctor.diagnosis import Diagnoses


def bookies(self: ClusterHandle) -> Any:
    """All bookies that are known, alive or not, as a DataFrame (``docs/tables.md``)."""
    return self.frames.from_arrow(self.calls.bookies_arrow())


def bookies_arrow(self: ClusterHandle) -> pa.Table:
    """All bookies, as an Arrow table: no Spark."""
    return views.bookies_table(self.context)


def underreplicated(self: ClusterHandle) -> Any:
    """Ledgers that lack replicas, and why still, as a DataFrame (``docs/tables.md``)."""
    return self.frames.from_arrow(self.calls.underreplicated_arrow())


def underreplicated_arrow(self: ClusterHandle) -> pa.Table:
    """The same as an Arrow table: no Spark."""
    from spark_bookkeeper.autorecovery.table import underreplicated_table

    return underreplicated_table(self.context)


def jobs(self: ClusterHandle) -> Any:
    """What was done lately, and what is being done, as a DataFrame (``docs/tables.md``).

    Recoveries, repairs, checks and replication work of every client and agent, the newest
    first; a job that runs gives a sign of life every few seconds.
    """
    return self.frames.from_arrow(self.calls.jobs_arrow())


def jobs_arrow(self: ClusterHandle) -> pa.Table:
    """The same as an Arrow table: no Spark."""
    return jobs_table(self.context)


def doctor(self: ClusterHandle) -> Diagnoses:
    """Is everything set up right, and what to do: this machine, the cluster, every bookie.

    True when nothing is a problem: ``if bk.doctor(): ...``; ``print`` shows what needs care.
    Changes nothing; a small file is written to every bookie and removed again.

    Raises:
        MetadataUnavailableError: ZooKeeper does not answer.
    """
    from spark_bookkeeper.doctor.diagnosis import Diagnoses
    from spark_bookkeeper.doctor.examination import cluster_diagnoses
    from spark_bookkeeper.doctor.machine import machine_diagnoses

    context = self.context
    findings = (*machine_diagnoses(), *cluster_diagnoses(context))
    return Diagnoses(findings, frame=self.frames.from_arrow)


def safe_to_lose(self: ClusterHandle, bookie_ids: str | Sequence[str]) -> Losses:
    """Which ledgers would have fewer than Qa live copies without these bookies.

    True when there are none: ``if bk.safe_to_lose("10.0.0.3:3181"): ...``. Asks the metadata
    only, and changes nothing.

    Raises:
        InvalidArgumentError: no bookie is named, or one that nobody knows.
    """
    from spark_bookkeeper.autorecovery.losses import losses

    names = [bookie_ids] if isinstance(bookie_ids, str) else list_of("bookie_ids", bookie_ids)
    return losses(self.context, [parse_bookie_id(name) for name in names])


def space(self: ClusterHandle, bookie_ids: Sequence[str] | None = None) -> Any:
    """What takes space on each bookie, ledger by ledger, as a DataFrame (``docs/tables.md``).

    Live bytes are those of ledgers that somebody owns, orphan bytes those of ``orphans()``;
    garbage is what was deleted, or is left of copies that no metadata name. Every file of
    every bookie is looked at, so it takes a while; nothing is changed.

    Args:
        bookie_ids: only these; ``None`` is all.
    """
    return self.frames.from_arrow(self.calls.space_arrow(bookie_ids))


def space_arrow(self: ClusterHandle, bookie_ids: Sequence[str] | None = None) -> pa.Table:
    """The same as an Arrow table: no Spark."""
    from spark_bookkeeper.agent.space import space_table

    return space_table(self.context, bookie_ids_of(bookie_ids))


def orphans(self: ClusterHandle) -> Any:
    """Ledgers that nobody owns, and why it seems so, as a DataFrame (``docs/tables.md``).

    Those that nobody writes, no log names, and that have no label of a user. Whether somebody
    misses them only people know: ``delete_orphans`` is theirs to call.
    """
    return self.frames.from_arrow(self.calls.orphans_arrow())


def orphans_arrow(self: ClusterHandle) -> pa.Table:
    """The same as an Arrow table: no Spark."""
    from spark_bookkeeper.agent.orphans import orphans_table

    return orphans_table(self.context)
