"""The metadata store in ZooKeeper, in Apache BookKeeper's own tree.

``paths.py`` has the names of the nodes, ``codec.py``, ``cookie_text.py`` and ``service_info.py``
have their content, and ``nodes.py`` resolves lost answers. This module, ``ledger_ids.py`` and
``registrations.py`` decide which nodes an operation reads or writes, and in which order.

No id has two lives (SLOT-LOG rule R16). A chosen id is marked in the transaction that creates its
ledger, and a generated id is used only if it has no mark. Other tools ignore the marks, and may
delete a ledger and make it again, with a version that begins at 0 like the first. So each write of
this library also creates and deletes a child of the ledger's node, in the same transaction. The
child's name contains the number of children that the node ever had. The deletion names the expected
number; if the number differs, the whole transaction fails. A node that another tool has made never
had a child.

Source: BookKeeper 4.17 ``meta/AbstractZkLedgerManager``, ``discover/ZKRegistrationManager``.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from itertools import tee
from typing import Final

from spark_bookkeeper.errors import BookKeeperError, MetadataFormatError, MetadataUnavailableError
from spark_bookkeeper.metadata import refusals
from spark_bookkeeper.metadata.codec import decode_ledger, decode_ledger_naming, encode_ledger
from spark_bookkeeper.metadata.cookie_text import decode_cookie, encode_cookie, unreadable_cookie
from spark_bookkeeper.metadata.store import (
    Cookie,
    LedgerChange,
    LedgerRange,
    Registration,
    Unchanged,
    Versioned,
)
from spark_bookkeeper.metadata.uri import MetadataUri, parse_metadata_uri
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.clearing import Clearing
from spark_bookkeeper.metadata.zookeeper.leader_election import ZooKeeperBallots
from spark_bookkeeper.metadata.zookeeper.ledger_ids import LedgerIds
from spark_bookkeeper.metadata.zookeeper.link import (
    AbsentError,
    ChangedError,
    OccupiedError,
    PresentError,
)
from spark_bookkeeper.metadata.zookeeper.nodes import WINDOW, Node, Nodes
from spark_bookkeeper.metadata.zookeeper.operations import Create, Delete, Operation, Replace
from spark_bookkeeper.metadata.zookeeper.presence import Presences
from spark_bookkeeper.metadata.zookeeper.register_nodes import Instance, ZooKeeperRegisters
from spark_bookkeeper.metadata.zookeeper.registrations import Registrations
from spark_bookkeeper.metadata.zookeeper.underreplication_nodes import ZooKeeperUnderreplication
from spark_bookkeeper.metrics import Metrics
from spark_bookkeeper.protocol.ids import LEDGER_IDS_END, BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

_log = logging.getLogger(__name__)

_LAYOUT: Final = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
_INSTANCE_ID: Final = re.compile(rb"[0-9A-Za-z._\-]{1,100}")
_LAYOUTS_READ: Final = frozenset({_LAYOUT, b"1\nhierarchical:1"})

_LISTS_AHEAD: Final = 4
"""The lists of ledgers that are read ahead at once; each has up to 10,000 names."""

_CLOCK_ASKED: Final = 3
"""How often reading the time is tried when the session ends meanwhile."""

_WRITE: Final = "write-"
"""The beginning of the name of the child that counts a write; its number follows."""


class ZooKeeperStore:
    """One session with a cluster's metadata; implements ``MetadataStore``.

    Args:
        uri: of the cluster, see ``uri.py``.
        token: returns 32 random hexadecimal digits, never the same twice.
        session_timeout_ms: a bookie without a sign of life for so long counts as dead.
        patience_ms: how long an operation waits for an answer, the first connection too.
        options: how to connect and authenticate to ZooKeeper, see ``options.py``.
        metrics: counts repeated requests and lost sessions; ``None``: not counted.

    Raises:
        InvalidArgumentError: the URI is not valid, or an option is wrong.
        MetadataUnavailableError: no server answered.
    """

    def __init__(
        self,
        uri: str | MetadataUri,
        *,
        token: Callable[[], str],
        session_timeout_ms: int = 10_000,
        patience_ms: int = 10_000,
        options: Mapping[str, str] | None = None,
        metrics: Metrics | None = None,
        reads_in_flight: int = WINDOW,
    ) -> None:
        self.uri = parse_metadata_uri(uri) if isinstance(uri, str) else uri
        self._root = self.uri.root
        self._token = token
        self._has_cluster = False
        self._zk = Nodes(
            self.uri.hosts,
            session_timeout_ms=session_timeout_ms,
            patience_ms=patience_ms,
            options=options,
            metrics=metrics,
            reads_in_flight=reads_in_flight,
        )
        self._ids = LedgerIds(self._zk, self._root)
        self._presences = Presences(self._zk, self._root)
        self._instance = Instance(self._zk, self._root)
        self.registers = ZooKeeperRegisters(self._zk, self._instance)
        self.ballots = ZooKeeperBallots(
            self._zk, lambda path: paths.election(self._instance.folder(), path)
        )
        self.underreplication = ZooKeeperUnderreplication(
            self._zk, self._root, self._require_cluster
        )
        self._registrations = Registrations(self._zk, self._root, session_timeout_ms)

    def __repr__(self) -> str:
        return f"ZooKeeperStore({str(self.uri)!r})"

    # Ledger ids

    def generate_ledger_id(self) -> LedgerId:
        self._require_cluster()
        return self._ids.next()

    # Ledgers

    def create_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        *,
        is_generated: bool = False,
        is_kept: bool = False,
        writer: str | None = None,
    ) -> Versioned[LedgerMetadata]:
        self._require_cluster()
        if metadata.ctoken is None:
            metadata = self._with_fresh_token(metadata)
        if writer is not None:
            self._presences.enter(ledger_id, writer)
        try:
            if is_generated or is_kept:
                created = self._create_ledger(ledger_id, metadata, is_generated=is_generated)
            else:
                created = self._create_chosen(ledger_id, metadata)
        except BaseException:
            if writer is not None:
                self._presences.leave(ledger_id, writer, at_once=True)
            raise
        if writer is not None:
            self._presences.entered(ledger_id, writer)
        return created

    def _create_chosen(
        self, ledger_id: LedgerId, metadata: LedgerMetadata
    ) -> Versioned[LedgerMetadata]:
        if self._ids.has_given(ledger_id):
            there = self._zk.exists(paths.ledger(self._root, ledger_id))
            raise (refusals.ledger_exists if there else refusals.id_used)(ledger_id)
        created = self._create_ledger(ledger_id, metadata, is_generated=False)
        if self._ids.has_given(ledger_id):
            # The counter gave out this id while the ledger was made. Another client may have made
            # and deleted a ledger with it before our mark was there, so the id may be used.
            self.delete_ledger(ledger_id, created)
            raise refusals.id_used(ledger_id)
        return created

    def _create_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, *, is_generated: bool
    ) -> Versioned[LedgerMetadata]:
        path = paths.ledger(self._root, ledger_id)
        mark = paths.used_id(self._instance.folder(), ledger_id)
        also = [*_counted_write(path, 0), Create(mark)]
        if is_generated:
            # A mark that can be created was not there before: this checks that the id is unused.
            # A generated id needs no mark of its own, so it is deleted in the same transaction.
            also.append(Delete(mark))
        try:
            self._zk.create_below_parents(
                path, encode_ledger(metadata), also=also, once=is_generated
            )
        except PresentError:
            there = self._zk.get_settled(path)
            if there is None:
                raise refusals.id_used(ledger_id) from None
            try:
                stored = self._metadata(there, path)
            except MetadataFormatError as error:
                raise refusals.ledger_exists(ledger_id) from error
            if metadata.ctoken is None or stored.value.ctoken != metadata.ctoken:
                raise refusals.ledger_exists(ledger_id) from None
            return stored  # an earlier call made it, and its answer was lost
        return Versioned(metadata, 0, own_writes=1)

    def has_used(self, ledger_id: LedgerId, *, is_kept: bool = False) -> bool:
        self._require_cluster()
        mark = paths.used_id(self._instance.folder(), ledger_id)
        return (not is_kept and self._ids.has_given(ledger_id)) or self._zk.exists(mark)

    def use_up_ledger_id(self, ledger_id: LedgerId) -> None:
        self._require_cluster()
        with suppress(PresentError):
            self._zk.create_below_parents(paths.used_id(self._instance.folder(), ledger_id), b"")

    def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        self._require_cluster()
        path = paths.ledger(self._root, ledger_id)
        try:
            node: Node | None = self._zk.get(path)
        except AbsentError:
            # This server may lag behind the others, and much depends on "no such ledger", so the
            # server must catch up before the answer counts.
            node = self._zk.get_settled(path)
        if node is None:
            raise refusals.no_such_ledger(ledger_id)
        return self._metadata(node, path)

    def read_ledger_settled(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        self._require_cluster()
        path = paths.ledger(self._root, ledger_id)
        node = self._zk.get_settled(path)
        if node is None:
            raise refusals.no_such_ledger(ledger_id)
        return self._metadata(node, path)

    def write_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, known: Versioned[LedgerMetadata]
    ) -> Versioned[LedgerMetadata]:
        self._require_cluster()
        metadata, wanted = self._change(LedgerChange(ledger_id, metadata, known))
        try:
            version = self._zk.set(wanted.path, wanted.data, wanted.version, also=wanted.also)
        except ChangedError:
            raise refusals.ledger_conflict(ledger_id, known.version, None) from None
        except AbsentError:
            raise refusals.no_such_ledger(ledger_id) from None
        return Versioned(metadata, version, known.own_writes + 1)

    def write_ledgers(
        self, changes: Sequence[LedgerChange]
    ) -> Sequence[Versioned[LedgerMetadata] | BookKeeperError]:
        self._require_cluster()
        wanted = [self._change(change) for change in changes]
        answers: list[Versioned[LedgerMetadata] | BookKeeperError] = []
        versions = self._zk.set_many([each for _, each in wanted])
        for change, (metadata, _), version in zip(changes, wanted, versions, strict=True):
            if version is None:
                answers.append(
                    MetadataUnavailableError(
                        f"the metadata of ledger {change.ledger_id} may or may not have been "
                        "written with those of others: read it, then decide"
                    )
                )
            else:
                answers.append(Versioned(metadata, version, change.known.own_writes + 1))
        return answers

    def _change(self, change: LedgerChange) -> tuple[LedgerMetadata, Replace]:
        """Return the metadata as they are written, and the operations that write them."""
        ledger_id, metadata, known = change
        metadata = self._with_fresh_token(metadata)
        path = paths.ledger(self._root, ledger_id)
        if metadata.is_closed:  # no writer needs it any more, even if this fails
            self._presences.leave(ledger_id, at_once=False)
        also = _counted_write(path, known.own_writes)
        return metadata, Replace(path, encode_ledger(metadata), known.version, also)

    def watch_ledger(self, ledger_id: LedgerId, deleted: Callable[[], None]) -> None:
        self._presences.watch(ledger_id, deleted)

    def watch_metadata(self, ledger_id: LedgerId) -> Unchanged:
        self._require_cluster()
        return self._zk.watch(paths.ledger(self._root, ledger_id))

    def leave_ledger(self, ledger_id: LedgerId) -> None:
        self._presences.leave(ledger_id, at_once=True)

    def writers(self) -> Set[tuple[LedgerId, str]]:
        self._require_cluster()
        return self._presences.living()

    def has_writer(self, ledger_id: LedgerId, token: str) -> bool:
        self._require_cluster()
        return self._presences.lives(ledger_id, token)

    def delete_ledger(self, ledger_id: LedgerId, known: Versioned[LedgerMetadata] | None) -> None:
        self._require_cluster()
        path = paths.ledger(self._root, ledger_id)
        try:
            if known is None:
                self._zk.delete(path)
            else:
                self._zk.delete(path, known.version, also=_counted_write(path, known.own_writes))
        except ChangedError:
            version = known.version if known else -1
            raise refusals.ledger_conflict(ledger_id, version, None) from None
        except AbsentError:
            return
        except OccupiedError:
            raise refusals.ledger_occupied(ledger_id, path) from None
        with suppress(AbsentError, OccupiedError):  # a parent still leads to other ledgers
            for parent in paths.ledger_parents(self._root, ledger_id):
                self._zk.delete(parent)

    def ledger_ids(self, among: LedgerRange | None = None) -> Iterator[LedgerId]:
        parents = self._ledger_parents(among)
        for parent, found in self._zk.children_of_many(parents, ahead=_LISTS_AHEAD):
            ledger_ids = paths.ledgers_below(self._root, parent, found or [])
            if among is None:
                yield from ledger_ids
            else:
                yield from (i for i in ledger_ids if among.first <= i < among.end)

    def ledger_ranges(self, ledgers: int) -> Iterator[LedgerRange]:
        first, count = 0, 0
        for parent, node in self._zk.get_many(self._ledger_parents()):
            ids = paths.ids_below(self._root, parent)
            if node is None or not ids:
                continue
            if count and count + node.children > ledgers:
                yield LedgerRange(LedgerId(first), ids.start, count)
                first, count = ids.start, 0
            count += node.children
        yield LedgerRange(LedgerId(first), LEDGER_IDS_END, count)

    def _ledger_parents(self, among: LedgerRange | None = None) -> Iterator[str]:
        """Yield the parents of ledgers, in the order of the ledgers' ids."""

        def wanted(nodes: Iterator[str]) -> Iterator[str]:
            if among is None:
                return nodes
            first, end = among.first, among.end
            below = ((node, paths.ids_below(self._root, node)) for node in nodes)
            return (node for node, ids in below if ids.start < end and first < ids.stop)

        self._require_cluster()
        names = self._zk.children(self._root)
        for width, depth in ((2, 2), (3, 4)):  # all short ids are smaller than all long ones
            tops = sorted(n for n in names if len(n) == width and paths.is_parent_name([n]))
            level = wanted(f"{self._root}/{name}" for name in tops)
            for _ in range(depth - 1):
                level = wanted(self._children_in_order(level))
            yield from level

    def _children_in_order(self, parents: Iterator[str]) -> Iterator[str]:
        for parent, names in self._zk.children_of_many(parents):
            for name in sorted(names or []):
                yield f"{parent}/{name}"

    def read_ledgers(
        self, ledger_ids: Iterable[LedgerId], *, naming: Set[BookieId] | None = None
    ) -> Iterator[tuple[LedgerId, Versioned[LedgerMetadata] | MetadataFormatError | None]]:
        self._require_cluster()
        asked, wanted = tee(ledger_ids)
        nodes = self._zk.get_many(paths.ledger(self._root, ledger_id) for ledger_id in asked)
        for ledger_id, (path, node) in zip(wanted, nodes, strict=False):
            if node is None:
                yield ledger_id, None
                continue
            try:
                if naming is None:
                    yield ledger_id, self._metadata(node, path)
                elif (metadata := decode_ledger_naming(node.data, path, naming)) is not None:
                    yield ledger_id, Versioned(metadata, node.version, node.children_made)
            except MetadataFormatError as error:
                yield ledger_id, error

    def _with_fresh_token(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Return it with a new cToken, which identifies this write; only format 3 has one."""
        token = int(self._token(), 16) & (1 << 63) - 1 if metadata.format_version >= 3 else None
        return replace(metadata, ctoken=token)

    def _metadata(self, node: Node, path: str) -> Versioned[LedgerMetadata]:
        return Versioned(decode_ledger(node.data, path), node.version, node.children_made)

    # Bookies

    def require_cluster(self) -> None:
        self._require_cluster()

    def instance_id(self) -> str:
        self._require_cluster()
        path = paths.instance_id(self._root)
        try:
            data = self._zk.get(path).data
        except AbsentError:
            raise refusals.no_cluster(str(self.uri)) from None
        if not _INSTANCE_ID.fullmatch(data):
            raise MetadataFormatError(
                f"{path} holds no name of a cluster: {data[:80]!r}. Nothing was changed. Ledgers "
                "are read and written without it; bookies are neither started nor formatted. The "
                "marker (BOOKIE) of any bookie's partition has the right one",
                path=path,
            )
        return data.decode()

    def clock_ms(self) -> int | None:
        for _ in range(_CLOCK_ASKED):
            path = paths.clock(self._root, self._token())
            try:
                self._zk.create(path, b"", ephemeral=True)
            except AbsentError:  # no tree yet
                return None
            except PresentError:  # made in a session that ended before its answer came
                continue
            try:
                return self._zk.get(path).written_ms
            except AbsentError:  # it was deleted with its session
                continue
            finally:
                self._zk.discard(path, at_once=True)
        return None

    def registrations(self) -> Sequence[Registration]:
        self._require_cluster()
        return self._registrations.now()

    def last_registrations(self) -> Sequence[Registration]:
        self._require_cluster()
        return self._registrations.last_told()

    def register(self, registration: Registration) -> None:
        self._require_cluster()
        self._registrations.register(registration)

    def unregister(self, bookie_id: BookieId) -> None:
        self._require_cluster()
        self._registrations.unregister(bookie_id)

    def cookies(self) -> Sequence[Versioned[Cookie]]:
        self._require_cluster()
        names = self._names(paths.cookies(self._root))
        asked = (paths.cookie(self._root, BookieId(name)) for name in names)
        found: list[Versioned[Cookie]] = []
        for path, node in self._zk.get_many(asked):
            if node is None:
                continue
            try:
                found.append(self._cookie(node, path))
            except MetadataFormatError as error:
                _log.warning("%s", error.message)
        return found

    def read_cookie(self, bookie_id: BookieId) -> Versioned[Cookie] | None:
        self._require_cluster()
        path = paths.cookie(self._root, bookie_id)
        node = self._zk.get_settled(path)
        return None if node is None else self._cookie(node, path)

    def cookie_version(self, bookie_id: BookieId) -> int | None:
        self._require_cluster()
        node = self._zk.get_settled(paths.cookie(self._root, bookie_id))
        return None if node is None else node.version

    def write_cookie(self, cookie: Cookie, version: int | None) -> None:
        self._require_cluster()
        path, data = paths.cookie(self._root, cookie.bookie_id), encode_cookie(cookie)
        try:
            if version is None:
                self._zk.create_below_parents(path, data)
            else:
                self._zk.set(path, data, version)
        except (PresentError, ChangedError, AbsentError):
            raise self._cookie_conflict(cookie.bookie_id, version) from None

    def delete_cookie(self, bookie_id: BookieId, version: int) -> None:
        self._require_cluster()
        try:
            self._zk.delete(paths.cookie(self._root, bookie_id), version)
        except AbsentError:
            return
        except ChangedError:
            raise self._cookie_conflict(bookie_id, version) from None

    def _cookie(self, node: Node, path: str) -> Versioned[Cookie]:
        cookie = decode_cookie(node.data, path)
        if cookie.bookie_id != path.rpartition("/")[2]:
            raise unreadable_cookie(
                path, f"holds the cookie of bookie {cookie.bookie_id!r}, which belongs elsewhere"
            )
        return Versioned(cookie, node.version)

    def _names(self, parent: str) -> list[str]:
        """Return the children of a node in order; none if BookKeeper has not made it yet."""
        try:
            return sorted(self._zk.children(parent))
        except AbsentError:
            return []

    def _cookie_conflict(self, bookie_id: BookieId, expected: int | None) -> Exception:
        return refusals.cookie_conflict(bookie_id, expected, self.cookie_version(bookie_id))

    def watch_registrations(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._require_cluster()
        stops = [
            self._zk.watches.watch_children(parent, changed)
            for parent in (paths.available(self._root), paths.available_readonly(self._root))
        ]

        def stop() -> None:
            for each in stops:
                each()

        return stop

    # The cluster and the session

    def initialize_cluster(self) -> str:
        instance_id = str(uuid.UUID(hex=self._token(), version=4))
        self._zk.ensure(self._root.rpartition("/")[0] or "/")
        try:
            self._zk.create_all(
                {
                    self._root: b"",
                    paths.instance_id(self._root): instance_id.encode(),
                    paths.layout(self._root): _LAYOUT,
                    paths.available(self._root): b"",
                    paths.available_readonly(self._root): b"",
                    paths.cookies(self._root): b"",
                    paths.short_ids(self._root): b"",
                }
            )
        except PresentError:
            raise refusals.cluster_exists(str(self.uri)) from None
        return instance_id

    def format_cluster(self) -> str:
        self._require_cluster()
        instance_id = str(uuid.UUID(hex=self._token(), version=4))
        Clearing(self._zk, self._root).begin_again(instance_id)
        return instance_id

    def remove_cluster(self) -> None:
        self._require_cluster()
        Clearing(self._zk, self._root).remove()
        self._has_cluster = False

    def on_session_lost(self, lost: Callable[[], None]) -> Callable[[], None]:
        return self._zk.on_session_lost(lost)

    def close(self) -> None:
        self._zk.close()

    def _require_cluster(self) -> None:
        """Check once that a cluster of the only known layout exists here."""
        if self._has_cluster:
            return
        path = paths.layout(self._root)
        node = self._zk.get_settled(path)
        if node is None:
            raise refusals.no_cluster(str(self.uri))
        if node.data not in _LAYOUTS_READ:
            raise MetadataFormatError(
                f"{path} says {node.data.decode(errors='replace')!r}: this cluster keeps its "
                "ledgers in another layout than the hierarchical one, BookKeeper's default. "
                "Nothing was changed",
                path=path,
            )
        self._has_cluster = True


def _counted_write(path: str, before: int) -> list[Operation]:
    """Return operations that count a write of ours, if ``before`` writes were counted before."""
    child = f"{path}/{_WRITE}"
    return [Create(child, is_sequential=True), Delete(f"{child}{before:010d}")]
