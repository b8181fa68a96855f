"""Sessions with ZooKeeper, each through a proxy that loses what it is told."""

from __future__ import annotations

import itertools
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kazoo.client import KazooClient, KazooState

from spark_bookkeeper.metadata.codec import encode_ledger
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from tests.support.sessions import wait_no_longer_for_another

SESSION_TIMEOUT_MS = 8_000
"""A session outlives a moment in which the machine does something else."""


LONG_SESSION_MS = 60_000
"""It outlives whatever a test does meanwhile."""


_numbers = itertools.count()


def token() -> str:
    return secrets.token_hex(16)


class Proxy:
    """Between one session and its ZooKeeper: it understands frames, and loses what it is told.

    A request is a length, a number and an operation; its answer bears the same number. The
    kinds that change something are create (1), delete (2), set (5), multi (14).
    """

    CHANGES = frozenset({1, 2, 5, 14})

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.lose: str | None = None
        """What happens to the next change: "answer", "request", or nothing."""
        self.requests: list[int] = []
        """The kinds of all requests so far."""
        self.swallow_answers = False
        """Requests go through; no answer comes back, and the connection stays."""
        self.flows = threading.Event()
        """Whether anything goes through, both ways; what comes meanwhile goes through later."""
        self.flows.set()
        self.never_greeted = 0
        """How many of the next connections are taken and never answered."""
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept() that waits
        self._listener.close()
        self.cut()
        for each in list(self._open):  # also those that were never greeted
            each.close()

    def cut(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.add(client)
                if self.never_greeted:
                    self.never_greeted -= 1
                    continue
                server = socket.create_connection(self._upstream)
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(server)
                lost: set[int] = set()
                for source, target, wanted in (
                    (client, server, "_requests"),
                    (server, client, "_answers"),
                ):
                    threading.Thread(
                        target=self._pump, args=(source, target, wanted, lost), daemon=True
                    ).start()

    def _pump(
        self, source: socket.socket, target: socket.socket, wanted: str, lost: set[int]
    ) -> None:
        stream = source.makefile("rb")
        is_first = True
        with suppress(OSError, struct.error):
            while True:
                head = stream.read(4)
                body = stream.read(struct.unpack(">i", head)[0])
                if not is_first and not getattr(self, wanted)(body, lost):
                    break
                is_first = False
                self.flows.wait()
                target.sendall(head + body)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
            self._open.discard(each)

    def _requests(self, body: bytes, lost: set[int]) -> bool:
        number, kind = struct.unpack(">ii", body[:8])
        self.requests.append(kind)
        if self.lose is None or kind not in self.CHANGES:
            return True
        what, self.lose = self.lose, None
        if what == "answer":
            lost.add(number)
        return what == "answer"

    def _answers(self, body: bytes, lost: set[int]) -> bool:
        number = struct.unpack(">i", body[:4])[0]
        return number not in lost and not self.swallow_answers


class ZooKeeperStores:
    """Sessions with one cluster, each through a proxy of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.root = f"/test-{next(_numbers)}/ledgers"
        self.sessions: dict[ZooKeeperStore, Proxy] = {}

    def session(self, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> ZooKeeperStore:
        proxy = Proxy(self.address)
        store = ZooKeeperStore(
            f"zk+hierarchical://{proxy.address}{self.root}",
            token=token,
            session_timeout_ms=session_timeout_ms,
        )
        self.sessions[store] = proxy
        return store

    def hurry(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        wait_no_longer_for_another(store)

    def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        # A second client that takes the session over and ends it properly.
        twin = KazooClient(self.address, client_id=store._zk._link.client.client_id)
        twin.start(timeout=60)
        twin.stop()
        twin.close()

    def recreate(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        other = KazooClient(self.address)
        other.start(timeout=60)
        path = paths.ledger(self.root, ledger_id)
        if other.exists(path):
            other.delete(path)
        other.create(path, encode_ledger(metadata), makepath=True)
        other.stop()
        other.close()

    @contextmanager
    def answer_lost(self, store: MetadataStore) -> Iterator[None]:
        with self._losing(store, "answer"):
            yield

    @contextmanager
    def request_lost(self, store: MetadataStore) -> Iterator[None]:
        with self._losing(store, "request"):
            yield

    @contextmanager
    def _losing(self, store: MetadataStore, what: str) -> Iterator[None]:
        assert isinstance(store, ZooKeeperStore)
        proxy = self.sessions[store]
        proxy.lose = what
        yield
        assert proxy.lose is None, "nothing was changed in the block"

    def close(self) -> None:
        for store, proxy in self.sessions.items():
            store.close()
            proxy.close()


def cut_off(zookeeper: ZooKeeperStores, store: ZooKeeperStore, *, never_greeted: int = 1) -> None:
    """The connection breaks, and so many next ones are taken and never answered; the session lives
    on, and does not wait long for a greeting.
    """
    proxy, is_away = zookeeper.sessions[store], threading.Event()

    def hear(state: str) -> bool:
        if state == KazooState.SUSPENDED:
            is_away.set()
        return is_away.is_set()  # then it hears no more

    store._zk._link.client.add_listener(hear)
    store._zk._link.client.handler._greeting_seconds = 0.25
    proxy.never_greeted = never_greeted
    proxy.cut()
    assert is_away.wait(60)  # whoever looks now and then may miss it


def let_come_back(zookeeper: ZooKeeperStores, store: ZooKeeperStore) -> None:
    """The next connection is answered."""
    proxy = zookeeper.sessions[store]
    proxy.never_greeted = 0
    proxy.cut()
