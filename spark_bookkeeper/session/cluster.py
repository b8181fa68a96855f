"""Views of the whole cluster: bookies, ledgers that lack replicas, jobs, space, health.

Each call imports the larger modules that it needs: every program and command imports this one.
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
    """Return all known bookies, alive or not, as a DataFrame (``docs/tables.md``)."""
    return self.frames.from_arrow(self.calls.bookies_arrow())


def bookies_arrow(self: ClusterHandle) -> pa.Table:
    """Return all known bookies as an Arrow table, without Spark."""
    return views.bookies_table(self.context)


def underreplicated(self: ClusterHandle) -> Any:
    """Return ledgers that lack replicas, with the reasons, as a DataFrame (``docs/tables.md``)."""
    return self.frames.from_arrow(self.calls.underreplicated_arrow())


def underreplicated_arrow(self: ClusterHandle) -> pa.Table:
    """Return ``underreplicated`` as an Arrow table, without Spark."""
    from spark_bookkeeper.autorecovery.table import underreplicated_table

    return underreplicated_table(self.context)


def jobs(self: ClusterHandle) -> Any:
    """Return recent and running jobs as a DataFrame (``docs/tables.md``).

    They are the recoveries, repairs, checks and replication work of every client and agent, newest
    first. A running job gives a sign of life every few seconds.
    """
    return self.frames.from_arrow(self.calls.jobs_arrow())


def jobs_arrow(self: ClusterHandle) -> pa.Table:
    """Return ``jobs`` as an Arrow table, without Spark."""
    return jobs_table(self.context)


def doctor(self: ClusterHandle) -> Diagnoses:
    """Examine the setup of this machine, the cluster and every bookie, and suggest remedies.

    The result is true if it has no problem: ``if bk.doctor(): ...``; ``print`` shows what needs
    care. Nothing changes; a small file is written to every bookie and removed again.

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
    """Return the ledgers that would have fewer than Qa live copies without these bookies.

    The result is true if there are none: ``if bk.safe_to_lose("10.0.0.3:3181"): ...``. Only the
    metadata are read, and nothing changes.

    Raises:
        InvalidArgumentError: no bookie is named, or a bookie is unknown.
    """
    from spark_bookkeeper.autorecovery.losses import losses

    names = [bookie_ids] if isinstance(bookie_ids, str) else list_of("bookie_ids", bookie_ids)
    return losses(self.context, [parse_bookie_id(name) for name in names])


def space(self: ClusterHandle, bookie_ids: Sequence[str] | None = None) -> Any:
    """Return the use of space on each bookie by each ledger, as a DataFrame (``docs/tables.md``).

    Live bytes are those of ledgers with an owner, orphan bytes those of ``orphans()``. Garbage is
    what was deleted, or what remains of copies that no metadata name. The call inspects every file
    of every bookie, so it takes a while; nothing is changed.

    Args:
        bookie_ids: only these; ``None`` is all.
    """
    return self.frames.from_arrow(self.calls.space_arrow(bookie_ids))


def space_arrow(self: ClusterHandle, bookie_ids: Sequence[str] | None = None) -> pa.Table:
    """Return ``space`` as an Arrow table, without Spark."""
    from spark_bookkeeper.agent.space import space_table

    return space_table(self.context, bookie_ids_of(bookie_ids))


def orphans(self: ClusterHandle) -> Any:
    """Return ledgers without an owner, with the reasons, as a DataFrame (``docs/tables.md``).

    An orphan has no writer, no log that names it and no label of a user. Only people know whether
    it is still needed: they decide whether to call ``delete_orphans``.
    """
    return self.frames.from_arrow(self.calls.orphans_arrow())


def orphans_arrow(self: ClusterHandle) -> pa.Table:
    """Return ``orphans`` as an Arrow table, without Spark."""
    from spark_bookkeeper.agent.orphans import orphans_table

    return orphans_table(self.context)
