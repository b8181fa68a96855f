"""The diagnosis of a registered bookie: do its registration, cookie and storage agree?"""

from __future__ import annotations

import shlex

from spark_bookkeeper.agent.health import BY_HAND, FULL, NOT_WRITTEN, SHORT_OF_SPACE
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import GIB, BookieConfig
from spark_bookkeeper.connection import partition_of
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.errors import BookieFullError, BookKeeperError, MetadataFormatError
from spark_bookkeeper.metadata.store import READONLY_BELOW, Cookie, Registration
from spark_bookkeeper.protocol.balance import usable_bytes
from spark_bookkeeper.runtime.runtime import ThreadRuntime


def present_bookie(
    context: ClientContext,
    live: Registration,
    cookie: Cookie | None,
    instance_id: str | None,
    *,
    metadata_only: bool,
) -> Diagnosis:
    """Compare registration, cookie and cluster, then probe the storage.

    A small file is written to the storage and removed again.

    Args:
        live: its registration.
        cookie: its cookie, if any.
        instance_id: the INSTANCEID of the cluster; ``None`` if it is unreadable.
        metadata_only: do not look at its storage.
    """
    check = f"bookie {live.bookie_id}"
    if not live.incarnation:
        return Diagnosis(
            check,
            "warning",
            "names no storage: it serves BookKeeper's own protocol, or its registration is "
            "broken; no ledgers of ours go there",
        )
    if cookie is None:
        found, begin = "its cookie is gone: it takes no new data", "if it is to stay, "
        try:
            context.store.read_cookie(live.bookie_id)
        except MetadataFormatError as junk:
            found, begin = junk.message, "remove that node of ZooKeeper, and "
        return Diagnosis(
            check,
            "problem",
            f"{found}. Once stopped it will not start",
            f"{begin}write the cookie again: spark-bookkeeper bookie cookie create "
            f"--bookie-id {live.bookie_id} --root {shlex.quote(live.root_uri)}",
        )
    if instance_id and cookie.instance_id not in (None, instance_id):
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
            f"its cookie has incarnation {cookie.incarnation}, its registration {live.incarnation}",
            "stop its agent and start it again; what it then says is the cause",
        )
    if metadata_only:
        return _by_registration(check, live)
    return _storage(context, check, live, instance_id)


def _storage(
    context: ClientContext, check: str, live: Registration, instance_id: str | None
) -> Diagnosis:
    try:
        partition = partition_of(context, live.bookie_id)
        marker = partition.check_marker(live.incarnation, live.bookie_id)
        if instance_id is not None and marker.instance_id != instance_id:
            return Diagnosis(
                check,
                "problem",
                f"its storage belongs to cluster {marker.instance_id}",
                "the agent was started on the partition of another cluster: stop it",
            )
        partition.probe(ThreadRuntime().token)
        space, inodes = partition.space(), partition.inodes()
    except BookieFullError as error:
        return Diagnosis(
            check,
            "problem",
            f"{_state(live)}, and so full that not even a probe can be written: fences and "
            f"recovery find no space either. {error.message}",
            _make_writable(live, is_full=True),
        )
    except BookKeeperError as error:
        if NOT_WRITTEN in live.readonly_causes:  # its agent, close to the storage, knows why
            return _by_registration(check, live)
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
    if inodes is not None:
        facts += f", and {inodes[0]:,} of {inodes[1]:,} inodes"
    readonly_below = live.told(READONLY_BELOW)
    if readonly_below is None:  # an agent of an earlier version
        readonly_below = BookieConfig.readonly_below_free_bytes
    if live.is_readonly or usable_bytes(space, inodes) < 2 * readonly_below:
        return Diagnosis(check, "warning", facts, _make_writable(live))
    return Diagnosis(check, "ok", facts)


def _by_registration(check: str, live: Registration) -> Diagnosis:
    """Diagnose a live bookie by its registration alone."""
    if not live.is_readonly:
        return Diagnosis(check, "ok", "registered, writable")
    is_bad = not live.readonly_causes.isdisjoint({FULL, NOT_WRITTEN})
    return Diagnosis(check, "problem" if is_bad else "warning", _state(live), _make_writable(live))


def _state(live: Registration) -> str:
    why = f" ({live.readonly_reason})" if live.readonly_reason else ""
    return f"read-only{why}" if live.is_readonly else "writable"


def _make_writable(live: Registration, *, is_full: bool = False) -> str:
    """Return remedies that let a bookie take new data again, or keep it writable, according to the
    causes in its registration.
    """
    remedies = []
    if BY_HAND in live.readonly_causes:
        remedies.append(
            "when it may take new data again: spark-bookkeeper bookie set-writable "
            f"{live.bookie_id}"
        )
    if is_full or SHORT_OF_SPACE in live.readonly_causes or not live.is_readonly:
        remedies.append(
            "make room: delete ledgers and collect what is left of them (spark-bookkeeper bookie "
            f"gc {live.bookie_id}), compact small files (the same with compact), or add a disk or "
            "a bookie"
        )
    if not remedies:
        remedies.append("look at its disk and at the log of its agent, which tries it again")
    return "; and ".join(remedies)
