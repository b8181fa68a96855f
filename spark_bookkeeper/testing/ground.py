"""A cluster in one process: bookies in directories, metadata in memory, hooks at every operation.

A hook is called before every operation on a bookie's storage or on the metadata, with the place
(a bookie id, or ``METADATA``), the operation and its path. It may return, wait, or raise. It may
raise any error of a storage or of the metadata, or ``Killed``, which ends the calling process.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

from typing_extensions import Buffer, override

from spark_bookkeeper.bookie.bookie import Bookie
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.client.bookies.known_bookies import TABLE_ROOT, Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.metadata.store import Cookie, Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import Runtime, ThreadRuntime
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.bounded_storage import BoundedStorage
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.storage.storage import Content, FileSink, Storage, nothing
from spark_bookkeeper.table.table_bookie import TableBookie
from spark_bookkeeper.testing.counting import CountingStorage
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore

WRITER: Final = WriterInfo("ground", 1, "tester", "tests")

METADATA: Final = "metadata"
"""The place of an operation on the metadata."""

TABLE: Final = "table"
"""The place of an operation on the storage of a table."""

T = TypeVar("T")
Hook = Callable[[str, str, str], None]
"""``hook(place, operation, path)``."""


class Killed(BaseException):
    """Ends the process in which it is raised: no code handles it, and nothing more is done."""


class Step(NamedTuple):
    """One requested operation."""

    place: str
    operation: str
    path: str


class InlineRuntime(ThreadRuntime):
    """Runs one item after the other, so that the n-th operation is the same in every run.

    It does not sleep either: the time of each sleep is added to ``slept``.
    """

    def __init__(self) -> None:
        self.slept = 0.0

    @override
    def now(self) -> float:
        return super().now() + self.slept

    @override
    def wall_ms(self) -> int:
        return super().wall_ms() + round(self.slept * 1000)

    @override
    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    @override
    def employ(self, name: str, run: Callable[[], None]) -> None:
        run()

    @override
    def map(
        self,
        function: Callable[[Any], T],
        items: list[Any],
        width: int = 16,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> list[T]:
        return [function(item) for item in items]


class StandingStill(InlineRuntime):
    """A runtime whose clock advances only by sleeps, however slow the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self._began, self._began_ms = super().now(), super().wall_ms()

    @override
    def now(self) -> float:
        return self._began + self.slept

    @override
    def wall_ms(self) -> int:
        return self._began_ms + round(self.slept * 1000)


def bounded_files(storage: Storage, bookie_client: BookieClient) -> FileBookie:
    """Return a bookie as clients open it."""
    return FileBookie(BoundedStorage(storage, bookie_client))


class Ground:
    """Bookies in ``directory``, one folder each; the first client is ``context``."""

    def __init__(
        self,
        directory: Path,
        bookies: int = 4,
        config: ClientConfig | None = None,
        runtime: Runtime | None = None,
        open_bookie: Callable[[Storage, BookieClient], Bookie] = bounded_files,
    ) -> None:
        self.directory = directory
        self._open_bookie = open_bookie
        # Otherwise the slots of bookies would depend on a test's pauses between two appends.
        self.config = config or ClientConfig(explicit_lac_ms=0)
        self.runtime = runtime or ThreadRuntime()
        self.cluster = MemoryCluster()
        self.steps: list[Step] = []
        """All operations of clients, in the order of the requests."""
        self.before: list[Hook] = []
        """Called before every operation of every client."""
        self.after: list[Hook] = []
        """Called after every put and every operation on the metadata; may lose the answer."""
        self.bookie_ids: list[BookieId] = []
        self._down: set[str] = set()
        self._agent = self.cluster.session()
        self._agent.initialize_cluster()
        for _ in range(bookies):
            self.add_bookie()
        self.context = self.client()

    def client(self, runtime: Runtime | None = None, *hooks: Hook) -> ClientContext:
        """Return another client, with a session, storage handles and ``hooks`` of its own."""
        runtime = runtime or self.runtime

        def faults(moment: Literal["before", "after"], operation: str, subject: str) -> None:
            if moment == "before":
                self._before(METADATA, operation, subject, hooks)
            else:
                self._after(METADATA, operation, subject)

        store: MemoryStore = self.cluster.session(faults, lambda: runtime.wall_ms())

        def opened(uri: str, bookie_client: BookieClient) -> Bookie:
            bookie = bookie_client.bookie_id
            if uri.startswith(TABLE_ROOT):
                lake = GroundStorage(
                    LocalStorage(uri.removeprefix(TABLE_ROOT), bookie),
                    lambda operation, path: self._before(TABLE, operation, path, hooks),
                    lambda operation, path: self._after(TABLE, operation, path),
                )
                return TableBookie(BoundedStorage(lake, bookie_client), bookie)
            if bookie not in self.bookie_ids:  # for example a backup's directory
                other = GroundStorage(
                    LocalStorage(uri, bookie),
                    lambda operation, path: self._before(uri, operation, path, hooks),
                    lambda operation, path: self._after(uri, operation, path),
                )
                return self._open_bookie(other, bookie_client)
            storage = GroundStorage(
                LocalStorage(self.root(bookie), bookie),
                lambda operation, path: self._before(bookie, operation, path, hooks),
                lambda operation, path: self._after(bookie, operation, path),
            )
            return self._open_bookie(storage, bookie_client)

        bookies = Bookies(store, opened, runtime, self.config)
        return ClientContext(store, bookies, runtime, self.config, writer=WRITER)

    # Bookies

    def add_bookie(self) -> BookieId:
        """Add a new bookie, formatted and registered; return its id."""
        bookie = BookieId(f"127.0.0.1:{3181 + len(self.bookie_ids)}")
        self.bookie_ids.append(bookie)
        self.format(bookie)
        return bookie

    def format(self, bookie: BookieId) -> None:
        """Wipe the partition, give it a new incarnation, and register that."""
        self._destroy(bookie)
        self.root(bookie).mkdir(parents=True)
        incarnation = self.runtime.token()
        marker = Marker(bookie, incarnation, self._agent.instance_id())
        Partition(LocalStorage(str(self.root(bookie)))).furnish(marker)
        known = self._agent.read_cookie(bookie)
        cookie = Cookie(bookie, self._uri(bookie), incarnation, self._agent.instance_id())
        self._agent.write_cookie(cookie, known.version if known else None)
        self._agent.register(Registration(bookie, self._uri(bookie), incarnation))
        self._down.discard(bookie)

    def stop(self, bookie: str, *, destroy: bool = False) -> None:
        """End a bookie: no registration, no answers; its partition stays or is destroyed."""
        self._down.add(bookie)
        self._agent.unregister(BookieId(bookie))
        if destroy:
            self._destroy(bookie)

    def end_agent(self, bookie: str) -> None:
        """Remove the registration of a bookie; its partition stays and answers."""
        self._agent.unregister(BookieId(bookie))

    def start(
        self,
        bookie: str,
        *,
        is_readonly: bool = False,
        rack: str = "/default-rack",
        free_bytes: int | None = None,
    ) -> None:
        """Start a stopped bookie with its old partition, or change a running one's registration."""
        self._down.discard(bookie)
        cookie = self._agent.read_cookie(BookieId(bookie))
        assert cookie is not None
        incarnation = cookie.value.incarnation
        registration = Registration(
            BookieId(bookie),
            self._uri(bookie),
            incarnation,
            is_readonly=is_readonly,
            rack=rack,
            free_bytes=free_bytes,
        )
        self._agent.register(registration)

    def root(self, bookie: str) -> Path:
        """Return the folder of a bookie."""
        return self.directory / bookie.replace(":", "-")

    def files(self, bookie: str, kind: str = "*") -> list[Path]:
        """Return files of ledgers on a bookie: ``slots``, ``parts``, ``copies`` or all of them."""
        return sorted(p for p in self.root(bookie).glob(f"ledgers/*/{kind}/*") if p.is_file())

    def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until other threads have made a condition true."""
        deadline = time.monotonic() + seconds  # real time, because other threads run in it
        while not holds():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.005)

    # Counting

    def count(self) -> Counter[str]:
        """Return how often each operation was requested since ``forget``."""
        return Counter(step.operation for step in self.steps)

    def forget(self) -> None:
        """Reset the counts."""
        self.steps.clear()

    def _destroy(self, bookie: str) -> None:
        """Remove a partition in one step, even while another thread writes there."""
        if self.root(bookie).exists():
            gone = self.directory / f"destroyed-{self.runtime.token()}"
            self.root(bookie).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def _uri(self, bookie: str) -> str:
        return LocalStorage(str(self.root(bookie))).uri

    def _before(self, place: str, operation: str, path: str, hooks: tuple[Hook, ...]) -> None:
        self.steps.append(Step(place, operation, path))
        for hook in (*self.before, *hooks):
            hook(place, operation, path)
        if place in self._down:
            raise BookieUnavailableError(f"bookie {place} does not answer", bookie_id=place)

    def _after(self, place: str, operation: str, path: str) -> None:
        for hook in list(self.after):
            hook(place, operation, path)


class GroundStorage(CountingStorage):
    """Passes every operation on, with a hook before it and one after each put."""

    def __init__(
        self,
        storage: Storage,
        before: Callable[[str, str], None],
        after: Callable[[str, str], None],
    ) -> None:
        super().__init__(storage)
        self._before = before
        self._after = after

    @override
    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        created = super().put_if_absent(path, data)
        self._after("put_if_absent", path)
        return created

    @override
    def put_all(
        self,
        files: Sequence[tuple[str, bytes]],
        progress: Callable[[], None] = nothing,
        relied_on: Sequence[str] = (),
        directories: Sequence[str] = (),
    ) -> Sequence[bool]:
        created = super().put_all(files, progress, relied_on, directories)
        for path, _ in files:
            self._after("put_if_absent", path)
        return created

    @override
    def create(self, path: str) -> FileSink:
        return _GroundSink(super().create(path), lambda operation: self._before(operation, path))

    @override
    def _note(self, operation: str, path: str) -> None:
        self._before(operation, path)


class _GroundSink(FileSink):
    def __init__(self, sink: FileSink, before: Callable[[str], None]) -> None:
        self._sink = sink
        self._before = before

    @override
    def write(self, data: Buffer) -> None:
        self._before("write")
        self._sink.write(data)

    @override
    def finish(self) -> None:
        self._before("finish")
        self._sink.finish()

    @override
    def abandon(self) -> None:
        self._sink.abandon()


class KillAt:
    """A hook that ends the process at its n-th operation, counted from 0, and at later ones."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.operations = 0
        self.is_dead = False

    def __call__(self, place: str, operation: str, path: str) -> None:
        if self.is_dead or self.operations == self._number:
            self.is_dead = True
            raise Killed(f"at operation {self._number}: {operation} {path} on {place}")
        self.operations += 1
