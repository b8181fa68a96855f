"""The metadata store in ZooKeeper, in Apache BookKeeper's own tree.

What a node is called is in ``paths.py``, what it holds in ``codec.py``, ``cookies.py`` and
``service_info.py``, and how a lost answer is resolved in ``connection.py``. Here is which
nodes an operation touches, in which order.

Source: BookKeeper 4.17 ``meta/AbstractZkLedgerManager``, ``meta/ZkLedgerIdGenerator``,
``meta/LongZkLedgerIdGenerator``, ``discover/ZKRegistrationManager``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from spark_bookkeeper.errors import MetadataFormatError, MetadataUnavailableError
from spark_bookkeeper.metadata import paths, refusals
from spark_bookkeeper.metadata.codec import decode_ledger, encode_ledger
from spark_bookkeeper.metadata.connection import (
    AbsentError,
    ChangedError,
    Connection,
    Node,
    OccupiedError,
    PresentError,
)
from spark_bookkeeper.metadata.cookies import decode_cookie, encode_cookie
from spark_bookkeeper.metadata.service_info import decode_registration, encode_registration
from spark_bookkeeper.metadata.shared import SharedRead
from spark_bookkeeper.metadata.store import Cookie, Registration, Versioned
from spark_bookkeeper.metadata.uri import MetadataUri, parse_metadata_uri
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

_LAYOUT: Final = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
_LAYOUTS_READ: Final = frozenset({_LAYOUT, b"1\nhierarchical:1"})
_COUNTER: Final = "ID-"
_LONG_COUNTER: Final = "HOB-"
_COUNTERS_KEPT: Final = 3


class ZooKeeperStore:
    """One session with a cluster's metadata; implements ``MetadataStore``.

    Args:
        uri: of the cluster, see ``uri.py``.
        token: gives 32 random hexadecimal digits, never the same twice.
        session_timeout_ms: a bookie that is silent for so long is gone.
        patience_ms: how long an operation waits for an answer, the first connection too.
        options: how to reach and prove oneself to ZooKeeper, see ``options.py``.

    Raises:
        InvalidArgumentError: the URI is none, or an option is wrong.
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
    ) -> None:
        self.uri = parse_metadata_uri(uri) if isinstance(uri, str) else uri
        self._root = self.uri.root
        self._token = token
        self._session_timeout_ms = session_timeout_ms
        self._has_cluster = False
        self._registered: tuple[str, ...] = ()
        """Paths of the registrations as they were last seen."""
        self._alive = SharedRead(self._read_registrations)
        self._has_long_ids: bool | None = None
        self._zk = Connection(
            self.uri.hosts,
            session_timeout_ms=session_timeout_ms,
            patience_ms=patience_ms,
            options=options,
        )

    def __repr__(self) -> str:
        return f"ZooKeeperStore({str(self.uri)!r})"

    # Ledger ids

    def generate_ledger_id(self) -> LedgerId:
        self._require_cluster()
        long_ids = paths.long_ids(self._root)
        if self._has_long_ids is None:
            # BookKeeper asks before each id until the answer is yes. Once is enough: the two
            # generators never give the same id, and one that ran out is noticed below.
            self._has_long_ids = self._zk.exists(long_ids)
        if not self._has_long_ids:
            number = self._count(paths.short_ids(self._root))
            if 0 <= number < paths.LONG_ID_FIRST:
                return LedgerId(number)
            self._zk.ensure(long_ids)
            self._has_long_ids = True
        while True:
            high = self._highest_counter()
            number = self._count(f"{long_ids}/{_LONG_COUNTER}{high:010d}")
            if 0 <= number < paths.LONG_ID_FIRST:
                return LedgerId(high << 32 | number)
            self._zk.ensure(f"{long_ids}/{_LONG_COUNTER}{high + 1:010d}")

    def _count(self, parent: str) -> int:
        """The next number of a counter: that of a sequential node made for the purpose."""
        try:
            name = self._zk.create_sequential(parent, _COUNTER)
        except AbsentError:
            self._zk.ensure(parent)
            name = self._zk.create_sequential(parent, _COUNTER)
        self._zk.discard(f"{parent}/{name}")
        return int(name.removeprefix(_COUNTER))

    def _highest_counter(self) -> int:
        names = self._zk.children(paths.long_ids(self._root))
        numbers = sorted(int(n.removeprefix(_LONG_COUNTER)) for n in names if n[4:].isdecimal())
        for number in numbers[:-_COUNTERS_KEPT]:
            self._zk.discard(f"{paths.long_ids(self._root)}/{_LONG_COUNTER}{number:010d}")
        return numbers[-1] if numbers else 1

    # Ledgers

    def create_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata
    ) -> Versioned[LedgerMetadata]:
        self._require_cluster()
        if metadata.ctoken is None:
            metadata = self._with_fresh_token(metadata)
        path = paths.ledger(self._root, ledger_id)
        try:
            self._create_with_parents(path, encode_ledger(metadata))
        except PresentError:
            there = self._zk.get_settled(path)
            stored = None if there is None else self._metadata(there, path)
            if stored is None or metadata.ctoken is None or stored.value.ctoken != metadata.ctoken:
                raise refusals.ledger_exists(ledger_id) from None
            return stored  # an earlier call made it, and its answer was lost
        return Versioned(metadata, 0)

    def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        self._require_cluster()
        path = paths.ledger(self._root, ledger_id)
        try:
            node: Node | None = self._zk.get(path)
        except AbsentError:
            # The server asked may lag behind the others, and much is decided by "no such
            # ledger", so it is made to catch up before it is believed.
            node = self._zk.get_settled(path)
        if node is None:
            raise refusals.no_such_ledger(ledger_id)
        return self._metadata(node, path)

    def write_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int
    ) -> Versioned[LedgerMetadata]:
        self._require_cluster()
        metadata = self._with_fresh_token(metadata)
        path = paths.ledger(self._root, ledger_id)
        try:
            return Versioned(metadata, self._zk.set(path, encode_ledger(metadata), version))
        except ChangedError:
            raise refusals.ledger_conflict(ledger_id, version, None) from None
        except AbsentError:
            raise refusals.no_such_ledger(ledger_id) from None

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        self._require_cluster()
        try:
            self._zk.delete(paths.ledger(self._root, ledger_id))
            for parent in paths.ledger_parents(self._root, ledger_id):
                self._zk.delete(parent)
        except (AbsentError, OccupiedError):
            return  # deleted already; or a parent still leads to other ledgers

    def ledger_ids(self) -> Iterator[LedgerId]:
        self._require_cluster()
        names = self._zk.children(self._root)
        for width, depth in ((2, 2), (3, 4)):  # all short ids are smaller than all long ones
            tops = sorted(n for n in names if len(n) == width and paths.is_parent_name([n]))
            level: Iterator[str] = (f"{self._root}/{name}" for name in tops)
            for _ in range(depth):
                level = self._children_in_order(level)
            for path in level:
                ledger_id = paths.parse_ledger(self._root, path)
                if ledger_id is not None:
                    yield ledger_id

    def _children_in_order(self, parents: Iterator[str]) -> Iterator[str]:
        for parent, names in self._zk.children_of_many(parents):
            for name in sorted(names or []):
                yield f"{parent}/{name}"

    def read_ledgers(
        self, ledger_ids: Iterable[LedgerId]
    ) -> Iterator[tuple[LedgerId, Versioned[LedgerMetadata] | None]]:
        self._require_cluster()
        asked = (paths.ledger(self._root, ledger_id) for ledger_id in ledger_ids)
        for path, node in self._zk.get_many(asked):
            ledger_id = paths.parse_ledger(self._root, path)
            assert ledger_id is not None
            yield ledger_id, None if node is None else self._metadata(node, path)

    def _create_with_parents(self, path: str, data: bytes) -> None:
        """Create a node, and its parents when they are not there (they seldom are not)."""
        for _ in range(10):
            try:
                return self._zk.create(path, data)
            except AbsentError:  # or deleted meanwhile, with the last ledger below it
                self._zk.ensure(path.rsplit("/", 1)[0])
        raise MetadataUnavailableError(
            f"{path} could not be created: its parents went away again and again. Nothing was "
            "written. Try again"
        )

    def _with_fresh_token(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """With a new cToken, by which this very write is known again; only format 3 has one."""
        token = int(self._token(), 16) & (1 << 63) - 1 if metadata.format_version >= 3 else None
        return replace(metadata, ctoken=token)

    def _metadata(self, node: Node, path: str) -> Versioned[LedgerMetadata]:
        return Versioned(decode_ledger(node.data, path), node.version)

    # Bookies

    def instance_id(self) -> str:
        self._require_cluster()
        try:
            return self._zk.get(paths.instance_id(self._root)).data.decode()
        except AbsentError:
            raise refusals.no_cluster(str(self.uri)) from None

    def registrations(self) -> Sequence[Registration]:
        """Who asks at the same time as others shares their answer."""
        self._require_cluster()
        return self._alive.get()

    def _read_registrations(self) -> Sequence[Registration]:
        found: dict[BookieId, Registration] = {}
        parents = (paths.available(self._root), paths.available_readonly(self._root))
        # The bookies of last time are asked for together with the names: they seldom change.
        names, nodes = self._zk.families(parents, self._registered)
        now = [f"{p}/{name}" for p in parents for name in names[p] if name != paths.READONLY]
        nodes.update(self._zk.get_many([path for path in now if path not in nodes]))
        self._registered = tuple(now)
        # A bookie that changes its mode is in both places for a moment. The second, read-only,
        # wins: not to write to a bookie is never wrong.
        for path in now:
            parent, _, name = path.rpartition("/")
            node = nodes[path]
            if node is not None:
                bookie_id = BookieId(name)
                found[bookie_id] = decode_registration(
                    bookie_id, node.data, path, readonly=parent == parents[1]
                )
        return [found[bookie_id] for bookie_id in sorted(found)]

    def register(self, registration: Registration) -> None:
        self._require_cluster()
        bookie_id, readonly = registration.bookie_id, registration.is_readonly
        # First the new place and then the old one: seen twice for a moment, but never gone.
        self._hold(
            paths.registration(self._root, bookie_id, readonly=readonly),
            encode_registration(registration),
            bookie_id,
        )
        self._release(paths.registration(self._root, bookie_id, readonly=not readonly))

    def unregister(self, bookie_id: BookieId) -> None:
        self._require_cluster()
        for readonly in (False, True):
            self._release(paths.registration(self._root, bookie_id, readonly=readonly))

    def _hold(self, path: str, data: bytes, bookie_id: BookieId) -> None:
        for _ in range(3):
            try:
                return self._zk.create(path, data, ephemeral=True)
            except PresentError:
                there = self._zk.get_settled(path)
            try:
                if there is not None and there.owner == self._zk.session_id:
                    self._zk.set(path, data, there.version)
                    return None
            except (AbsentError, ChangedError):
                continue
            # The session of a predecessor that died is still there for a while.
            if not self._zk.wait_gone(path, self._session_timeout_ms * 3 // 2):
                raise refusals.held_elsewhere(bookie_id)
        raise MetadataUnavailableError(
            f"{path} keeps changing, so bookie {bookie_id} is not registered. Check that no "
            "second agent of this bookie runs"
        )

    def _release(self, path: str) -> None:
        try:
            if self._zk.get(path).owner == self._zk.session_id:
                self._zk.delete(path)
        except AbsentError:
            return

    def cookies(self) -> Sequence[Versioned[Cookie]]:
        self._require_cluster()
        names = self._names(paths.cookies(self._root))
        asked = (paths.cookie(self._root, BookieId(name)) for name in names)
        return [
            Versioned(decode_cookie(node.data, path), node.version)
            for path, node in self._zk.get_many(asked)
            if node is not None
        ]

    def read_cookie(self, bookie_id: BookieId) -> Versioned[Cookie] | None:
        self._require_cluster()
        path = paths.cookie(self._root, bookie_id)
        node = self._zk.get_settled(path)
        return None if node is None else Versioned(decode_cookie(node.data, path), node.version)

    def write_cookie(self, cookie: Cookie, version: int | None) -> None:
        self._require_cluster()
        path, data = paths.cookie(self._root, cookie.bookie_id), encode_cookie(cookie)
        try:
            if version is None:
                self._create_with_parents(path, data)
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

    def _names(self, parent: str) -> list[str]:
        """The children of a node in order; none when BookKeeper has not made it yet."""
        try:
            return sorted(self._zk.children(parent))
        except AbsentError:
            return []

    def _cookie_conflict(self, bookie_id: BookieId, expected: int | None) -> Exception:
        there = self._zk.get_settled(paths.cookie(self._root, bookie_id))
        found = None if there is None else there.version
        return refusals.cookie_conflict(bookie_id, expected, found)

    def watch_registrations(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._require_cluster()
        stops = [
            self._zk.watch_children(parent, changed)
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

    def on_session_lost(self, lost: Callable[[], None]) -> None:
        self._zk.on_session_lost(lost)

    def close(self) -> None:
        self._zk.close()

    def _require_cluster(self) -> None:
        """There is a cluster here, of the only layout that we know; asked once."""
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
