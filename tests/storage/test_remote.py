"""Object stores through fsspec: S3 by its protocol, and whatever else creates conditionally."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

import fsspec
import fsspec.asyn
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_bookkeeper.errors import (
    NO_ACCESS,
    BookieFullError,
    BookieUnavailableError,
    InvalidArgumentError,
    MissingRequirementError,
)
from spark_bookkeeper.storage.objects import Objects
from spark_bookkeeper.storage.remote import RemoteStorage
from spark_bookkeeper.storage.requests import OF_ONE_CALL, Requests
from spark_bookkeeper.storage.storage import Request, Storage, nothing
from spark_bookkeeper.testing.conformance.storage import StorageConformance, Storages, ThreadRace
from tests.support.s3 import S3Server


class RemoteStorages(ThreadRace):
    """Handles on one prefix."""

    def __init__(self, uri: str, **options: Any) -> None:
        self.uri = uri
        self.options = options

    def open(self) -> Storage:
        """A client of its own."""
        return RemoteStorage(self.uri, **self.options)

    def vanish(self) -> None:
        """Overridden where the conformance suite asks for it."""
        raise NotImplementedError


class S3Storages(RemoteStorages):
    """Handles on a prefix of a bucket of its own: two clients, since each takes long to make."""

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.bucket = server.make_bucket()
        self._clients: list[Storage] = []
        super().__init__(f"s3://{self.bucket}/root", **server.storage_options)

    def open(self) -> Storage:
        """The one that is asked for first, and another one for all who look at what it did."""
        if len(self._clients) < 2:
            self._clients.append(super().open())
        return self._clients[-1]

    def race(self, run: Callable[[Storage, int], list[bool]]) -> list[list[bool]]:
        """Each racer has a client of its own."""
        race = RemoteStorages(self.uri, **self.options)
        race.racers = 4
        return race.race(run)

    def vanish(self) -> None:
        """Nobody answers at the endpoint."""
        self.server.stop()


@pytest.mark.s3
class TestS3(StorageConformance):
    """By conditional PUT."""

    @pytest.fixture
    def storages(self, request: pytest.FixtureRequest) -> Iterator[Storages]:
        if "does_not_answer" in request.node.name:
            with S3Server() as server:
                yield S3Storages(server)
        else:
            yield S3Storages(request.getfixturevalue("s3_server"))


@pytest.mark.s3
def test_a_root_is_no_pattern_and_what_is_beside_it_stays(s3_server: S3Server) -> None:
    bucket = s3_server.make_bucket()
    names = ["data1", "data?", "data*", "data[1]", "data%31", "data 1"]
    roots = [RemoteStorage(f"s3://{bucket}/{n}", **s3_server.storage_options) for n in names]
    for root in roots:
        root.put_all([("ledgers/a", b"x"), ("ledgers/b/c", b"x")])

    for root in roots[1:]:
        root.delete_directory("ledgers")

    assert s3_server.objects(bucket) == ["data1/ledgers/a", "data1/ledgers/b/c"]


@pytest.mark.s3
def test_a_directory_that_a_console_made_goes_with_what_is_in_it(s3_server: S3Server) -> None:
    """As an object without content whose name ends in a slash."""
    storages = S3Storages(s3_server)
    storage = storages.open()
    assert isinstance(storage, RemoteStorage)
    for name in ("root/d/", "root/d/sub/", "root/d/sub/a"):
        storage._fs.call_s3("put_object", Bucket=storages.bucket, Key=name, Body=b"")

    storage.delete_directory("d")

    assert s3_server.objects(storages.bucket) == []


@pytest.mark.parametrize(
    "root", ["b/data?versionId=1", "b/s3://c/d", "b/../c", "b//c", "b/./c", "s3://c/d"]
)
def test_a_root_that_its_file_system_takes_for_another_is_refused(root: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is no root of a bookie"):
        RemoteStorage(f"s3://{root}")


class CuttingQueries(MemoryFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """Takes what is behind a question mark for a query, as that of Azure does."""

    protocol = "cutting"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("cutting://").partition("?")[0].strip("/")


def test_a_root_of_which_a_part_is_cut_off_is_refused() -> None:
    fsspec.register_implementation("cutting", CuttingQueries, clobber=True)

    assert RemoteStorage("cutting://host/data/").uri == "cutting://host/data"
    with pytest.raises(InvalidArgumentError, match=r"would take it for 'host/data'"):
        RemoteStorage("cutting://host/data?1")


@pytest.mark.s3
def test_a_bucket_that_is_gone_says_nothing_about_its_files(s3_server: S3Server) -> None:
    storages = S3Storages(s3_server)
    storage = storages.open()
    s3_server.remove_bucket(storages.bucket)

    calls: Sequence[Callable[[], object]] = (
        lambda: storage.read("a"),
        lambda: storage.read_range("a", 0, 1),
        lambda: storage.read_range("a", 0, 0),
        lambda: storage.size("a"),
        lambda: storage.exists("a"),
        lambda: storage.modified_ms("a"),
        lambda: storage.list("d"),
        lambda: storage.sync("a"),
        lambda: storage.put_if_absent("a", b"x"),
        lambda: storage.delete("a"),
        lambda: storage.delete_directory("d"),
    )
    for call in calls:
        with pytest.raises(BookieUnavailableError, match="bucket does not exist"):
            call()


def test_a_container_of_azure_that_is_gone_says_nothing_about_its_files(
    async_storage: RemoteStorage, async_s3: AsyncS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As adlfs raises it; a file that is absent there is a ``BlobNotFound``."""
    told = "BlobNotFound"

    async def not_found(path: str, **_: Any) -> bytes:
        cause = Exception(f"The specified one does not exist.\nErrorCode:{told}")
        raise FileNotFoundError(2, "No such file or directory", path) from cause

    monkeypatch.setattr(async_s3, "_cat_file", not_found, raising=False)

    assert (async_storage.read("a"), async_storage.exists("a")) == (None, False)
    told = "ContainerNotFound"
    for ask in (async_storage.read, async_storage.exists):
        with pytest.raises(BookieUnavailableError):
            ask("a")


@pytest.mark.s3
def test_a_bucket_without_space_is_full_and_keeps_answering(s3_server: S3Server) -> None:
    storages = S3Storages(s3_server)
    storage = storages.open()
    assert storage.put_if_absent("a", b"content")
    s3_server.fill(storages.bucket)

    with pytest.raises(BookieFullError, match="minimum free drive threshold"):
        storage.put_if_absent("b", b"x")
    part = storage.create("part")
    part.write(b"x")
    with pytest.raises(BookieFullError):
        part.finish()
    part.abandon()

    assert storage.read("a") == b"content"
    assert storage.read("b") is None
    assert storage.read("part") is None
    s3_server.make_room(storages.bucket)
    assert storage.put_if_absent("b", b"x")


@pytest.mark.s3
def test_many_requests_are_on_their_way_at_once(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request waits until eight are on their way: one after the other none would end."""
    storage = S3Storages(s3_server).open()
    assert isinstance(storage, RemoteStorage)
    files = [(f"d/{number}", b"%d" % number) for number in range(16)]
    for method in ("_pipe_file", "_cat_file", "_info", "_lsdir"):
        asked: list[str] = []
        together_in(monkeypatch, storage, method, asked)
        answers = storage.ask_all(
            {
                "_pipe_file": [Request("put_if_absent", path, (data,)) for path, data in files],
                "_cat_file": [
                    Request(operation, path)
                    for path, _ in files[:8]
                    for operation in ("read", "exists")
                ],
                "_info": [Request("sync", path) for path, _ in files],
                "_lsdir": [Request("list", "d")] * 16,
            }[method]
        )

        assert len(asked) == 16, "one request of fsspec's for each"
        assert len(set(asked)) == 1, "from one thread"
        assert not any(isinstance(answer, BookieUnavailableError) for answer in answers)
    assert all(storage.read(path) == data for path, data in files)


def together_in(
    monkeypatch: pytest.MonkeyPatch, storage: RemoteStorage, method: str, asked: list[str]
) -> None:
    """No call of this method goes on before eight have begun; ``asked`` has their threads."""
    ask = getattr(storage._fs, method)
    enough = asyncio.Event()

    async def together(path: str, *arguments: Any, **options: Any) -> Any:
        asked.append(threading.current_thread().name)
        if len(asked) == 8:
            enough.set()
        await enough.wait()
        return await ask(path, *arguments, **options)

    monkeypatch.setattr(storage._fs, method, together)


@pytest.mark.s3
def test_of_many_requests_the_error_of_one_keeps_back_no_other(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = S3Storages(s3_server).open()
    assert isinstance(storage, RemoteStorage)
    ask = storage._fs._pipe_file

    async def one_fails(path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("/3"):
            raise ConnectionError("no route to host")
        return await ask(path, *arguments, **options)

    monkeypatch.setattr(storage._fs, "_pipe_file", one_fails)

    answers = list(storage.ask_all(puts(10)))

    assert str(answers[3]).startswith(f"{storage.uri}/d/3: ConnectionError: no route to host; ")
    assert answers[:3] + answers[4:] == [True] * 9
    assert list(storage.list("d")) == [str(number) for number in range(10) if number != 3]


class ConditionalMemory(MemoryFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """fsspec's memory file system, made to create a file in one step."""

    protocol = "conditional"
    store: dict[str, Any] = {}  # noqa: RUF012  (shared by all instances, as upstream)
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    lock = threading.RLock()
    is_down = False

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        with self.lock:
            self._check()
            super().pipe_file(path, value, mode=mode, **options)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> Any:
        with self.lock:
            self._check()
            return super().cat_file(path, start=start, end=end, **options)

    def info(self, path: str, **options: Any) -> Any:
        with self.lock:
            self._check()
            return super().info(path, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        with self.lock:
            self._check()
            return super().ls(path, detail=detail, **options)

    def _check(self) -> None:
        if type(self).is_down:
            raise ConnectionError("no route to host")


class ConditionalStorages(RemoteStorages):
    """Handles on a file system that fsspec knows nothing special about."""

    def vanish(self) -> None:
        """It does not answer."""
        ConditionalMemory.is_down = True


class TestAnyFileSystem(StorageConformance):
    """Whatever fsspec offers, if it creates conditionally."""

    @pytest.fixture
    def storages(self) -> Iterator[Storages]:
        fsspec.register_implementation("conditional", ConditionalMemory, clobber=True)
        ConditionalMemory.is_down = False
        ConditionalMemory.store.clear()
        ConditionalMemory.pseudo_dirs[:] = [""]
        yield ConditionalStorages("conditional://root")
        ConditionalMemory.is_down = False


class FailingS3:
    """A file system that answers as S3's SDK does."""

    protocol = ("s3",)
    async_impl = False

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)

    def pipe_file(self, path: str, data: bytes, mode: str) -> None:
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer


class ClientError(Exception):
    """With the shape of botocore's."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(f"An error occurred ({status})")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


def storage_that_answers(*answers: Exception | None) -> RemoteStorage:
    storage = RemoteStorage("memory://x")
    storage._objects = Objects(FailingS3(*answers))
    return storage


def test_a_precondition_that_failed_means_that_the_name_exists() -> None:
    assert not storage_that_answers(ClientError(412)).put_if_absent("a", b"x")
    assert not storage_that_answers(FileExistsError("a")).put_if_absent("a", b"x")


def test_a_conflict_of_two_puts_is_tried_again() -> None:
    assert storage_that_answers(ClientError(409), ClientError(409), None).put_if_absent("a", b"x")


def test_a_conflict_without_end_is_unknown() -> None:
    with pytest.raises(BookieUnavailableError, match="may or may not"):
        storage_that_answers(*[ClientError(409)] * 50).put_if_absent("a", b"x")


@pytest.mark.parametrize(
    ("status", "code"),
    [(507, "InsufficientStorage"), (403, "QuotaExceeded"), (400, "XMinioAdminBucketQuotaExceeded")],
)
def test_a_quota_that_is_used_up_is_a_full_bookie(status: int, code: str) -> None:
    with pytest.raises(BookieFullError):
        storage_that_answers(ClientError(status, code)).put_if_absent("a", b"x")


def test_a_refusal_for_another_reason_is_not_a_full_bookie() -> None:
    with pytest.raises(BookieUnavailableError) as refused:
        storage_that_answers(ClientError(403, "AccessDenied")).put_if_absent("a", b"x")

    assert not isinstance(refused.value, BookieFullError)


@pytest.mark.parametrize(
    "error",
    [
        ClientError(503),
        ClientError(403, "RequestTimeTooSkewed"),
        ClientError(403, "InvalidObjectState"),
        PermissionError(errno.EACCES, "Permission denied"),
    ],
)
def test_an_error_of_the_service_is_unknown(error: Exception) -> None:
    with pytest.raises(BookieUnavailableError, match="may or may not") as caught:
        storage_that_answers(error).put_if_absent("a", b"x")

    assert NO_ACCESS not in str(caught.value)


class NoCredentialsError(Exception):
    """Of botocore."""


class ClientAuthenticationError(Exception):
    """Of Azure."""


@pytest.mark.parametrize(
    "error",
    [
        ClientError(401),
        ClientError(403, "AccessDenied"),
        PermissionError("Forbidden"),
        NoCredentialsError("Unable to locate credentials"),
        ClientAuthenticationError("DefaultAzureCredential failed to retrieve a token"),
    ],
)
def test_a_storage_that_refuses_who_asks_says_so(error: Exception) -> None:
    with pytest.raises(BookieUnavailableError, match=NO_ACCESS):
        storage_that_answers(error).put_if_absent("a", b"x")


@pytest.mark.parametrize(
    ("uri", "extra"),
    [("gs://bucket/root", "gcs"), ("abfss://container@account.dfs.core.windows.net/root", "azure")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(uri: str, extra: str) -> None:
    with pytest.raises(MissingRequirementError, match=rf"spark-bookkeeper\[{extra}\]"):
        RemoteStorage(uri)


def test_a_client_of_s3_repeats_a_request_once_unless_it_is_told_otherwise() -> None:
    told = {"retries": {"max_attempts": 2}}
    for given, retries in (({}, {"max_attempts": 1}), (told, told["retries"])):
        storage = RemoteStorage("s3://bucket/root", config_kwargs=given)
        assert storage._fs.config_kwargs["retries"] == retries


class AsyncS3:
    """An asynchronous file system that keeps nothing, and counts what is on its way."""

    protocol = ("s3",)
    async_impl, asynchronous = True, False

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.under_way = self.most = 0
        self.error: BaseException | None = None
        self.is_forked = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self.is_forked:
            raise RuntimeError("This class is not fork-safe")
        loop: asyncio.AbstractEventLoop = fsspec.asyn.get_loop()
        return loop

    def pipe_file(self, *arguments: Any, **options: Any) -> None:
        fsspec.asyn.sync(self.loop, self._pipe_file, *arguments, **options)

    def info(self, path: str) -> Any:
        return fsspec.asyn.sync(self.loop, self._info, path)

    async def _pipe_file(self, path: str, *_: Any, mode: str = "create") -> None:
        self.sent.append(path)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _turn in range(3):  # of the loop: the others begin
            await asyncio.sleep(0)
        self.under_way -= 1
        if self.error is not None:
            raise self.error

    async def _info(self, path: str) -> Any:
        await self._pipe_file(path)
        return {"type": "directory", "size": 0}


@pytest.fixture
def async_s3() -> AsyncS3:
    return AsyncS3()


@pytest.fixture
def async_storage(async_s3: AsyncS3) -> RemoteStorage:
    storage = RemoteStorage("memory://x")
    storage._objects = Objects(async_s3)
    return storage


def puts(count: int = 1_000) -> list[Request]:
    return [Request("put_if_absent", f"d/{number}", (b"x",)) for number in range(count)]


def given_up() -> BookieUnavailableError:
    """Nobody waits any more: what ``Call.goes_on`` raises then."""
    return BookieUnavailableError("it was given up", bookie_id="b:1")


def test_when_nobody_waits_any_more_nothing_more_is_sent(
    async_storage: RemoteStorage, async_s3: AsyncS3
) -> None:
    def nobody_waits() -> None:
        if len(async_s3.sent) == OF_ONE_CALL:
            raise given_up()

    with pytest.raises(BookieUnavailableError, match="it was given up"):
        async_storage.ask_all(puts(), nobody_waits)

    assert len(async_s3.sent) == OF_ONE_CALL, "what was on its way when the first one came back"
    assert async_s3.under_way == 0


def test_who_gives_up_while_waiting_for_a_place_sends_nothing() -> None:
    """Two calls hold all places, and their requests come back much later."""
    sent: list[int] = []
    is_given_up = False

    def goes_on() -> None:
        if is_given_up:
            raise given_up()

    async def send(number: int) -> None:
        sent.append(number)

    async def story() -> None:
        nonlocal is_given_up
        requests, come_back = Requests(2 * OF_ONE_CALL), asyncio.Event()
        others = [
            asyncio.create_task(requests.ask([come_back.wait] * OF_ONE_CALL, lambda: None))
            for _ in range(2)
        ]
        mine = asyncio.create_task(requests.ask([partial(send, n) for n in range(1_000)], goes_on))
        for _turn in range(3 * OF_ONE_CALL):  # of the loop: all that can be sent is
            await asyncio.sleep(0)
        assert not mine.done()
        is_given_up = True
        come_back.set()
        await asyncio.gather(*others)
        with pytest.raises(BookieUnavailableError, match="it was given up"):
            await mine

    asyncio.run(story())

    assert not sent


def test_at_an_interrupt_nothing_more_is_sent(
    async_storage: RemoteStorage, async_s3: AsyncS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody watches a call that a person makes in the main thread."""
    come_back = asyncio.Event()
    calls: list[Future[Any]] = []

    async def hang(path: str, *_: Any, mode: str) -> None:
        async_s3.sent.append(path)
        await come_back.wait()

    def interrupted(loop: asyncio.AbstractEventLoop, ask: Any, *arguments: Any) -> None:
        calls.append(asyncio.run_coroutine_threadsafe(ask(*arguments), loop))
        raise KeyboardInterrupt

    monkeypatch.setattr(async_s3, "_pipe_file", hang)
    with monkeypatch.context() as patch:
        patch.setattr(fsspec.asyn, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            async_storage.ask_all(puts())
    async_s3.loop.call_soon_threadsafe(come_back.set)
    with pytest.raises(CancelledError):
        calls[0].result(60)

    assert len(async_s3.sent) <= OF_ONE_CALL, "what was on its way"


def test_a_forked_process_is_told_that_the_bookie_is_unavailable(
    async_storage: RemoteStorage, async_s3: AsyncS3
) -> None:
    async_s3.is_forked = True
    calls: Sequence[Callable[[], object]] = (
        lambda: async_storage.put_if_absent("d/0", b"x"),
        lambda: async_storage.read("d/0"),
        lambda: async_storage.ask_all(puts()),
    )

    for call in calls:
        with pytest.raises(BookieUnavailableError, match=r"d/0: RuntimeError: .*not fork-safe"):
            call()


def test_a_request_that_is_cancelled_has_no_answer(
    async_storage: RemoteStorage, async_s3: AsyncS3
) -> None:
    async_s3.error = asyncio.CancelledError()

    answers = async_storage.ask_all(puts(3))

    for answer in answers:
        assert isinstance(answer, BookieUnavailableError)
        assert "CancelledError" in str(answer)
        assert "may or may not" in str(answer)


def test_a_call_whose_loop_ends_has_no_answer(
    async_storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec returns nothing at all then, which is not the answer that there is no file."""
    monkeypatch.setattr(fsspec.asyn, "sync", lambda *_: None)
    reads: Sequence[Callable[[], object]] = (
        lambda: async_storage.ask_all([Request("read", "d/0"), Request("list", "d")]),
        lambda: async_storage.read("d/0"),
        lambda: async_storage.exists("d/0"),
    )

    for read in reads:
        with pytest.raises(BookieUnavailableError, match="CancelledError") as caught:
            read()
        assert "taken effect" not in str(caught.value)
    with pytest.raises(BookieUnavailableError, match=r"CancelledError.*may or may not"):
        async_storage.ask_all([Request("read", "d/0"), *puts()])


def test_a_directory_is_no_file_that_could_be_relied_on(async_storage: RemoteStorage) -> None:
    with pytest.raises(BookieUnavailableError, match="memory://x/d is gone"):
        async_storage.sync("d")
    (answer,) = async_storage.ask_all([Request("sync", "d")])
    assert isinstance(answer, BookieUnavailableError)


def test_nothing_is_asked_for_nothing(async_storage: RemoteStorage, async_s3: AsyncS3) -> None:
    assert list(async_storage.ask_all([])) == []

    assert async_s3.sent == []


def test_calls_of_one_storage_share_its_connections(
    async_storage: RemoteStorage, async_s3: AsyncS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are handed to the loop before it begins the first."""
    submit, submitted, may_begin = (
        asyncio.run_coroutine_threadsafe,
        threading.Semaphore(0),
        threading.Event(),
    )

    def submitting(*arguments: Any) -> Any:
        future = submit(*arguments)
        submitted.release()
        return future

    async_s3.loop.call_soon_threadsafe(may_begin.wait, 60)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submitting)
    threads = [threading.Thread(target=async_storage.ask_all, args=(puts(100),)) for _ in range(64)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert submitted.acquire(timeout=60)
    may_begin.set()
    for thread in threads:
        thread.join(60)

    assert (len(async_s3.sent), async_s3.most) == (6_400, 64)


def test_no_call_waits_for_all_the_files_of_another() -> None:
    """The second has an answer before the first, which came earlier and has the places, ends."""
    answers: list[str] = []

    async def request(call: str) -> None:
        await asyncio.sleep(0)
        answers.append(call)

    async def both() -> None:
        requests = Requests(4)
        await asyncio.gather(
            requests.ask([partial(request, "first")] * 100, nothing),
            requests.ask([partial(request, "second")] * 100, nothing),
        )

    asyncio.run(both())

    assert len(answers) == 200
    assert "second" in answers[:8]
    assert "".join(call[0] for call in answers[8:190]).count("f" * 5) == 0, "they take turns"


def test_a_client_of_s3_with_few_connections_has_half_of_them_for_calls_of_many_files() -> None:
    few = RemoteStorage("s3://bucket/root", config_kwargs={"max_pool_connections": 10})
    most: list[int] = []

    async def request() -> None:
        most.append(most[-1] + 1 if most else 1)
        await asyncio.sleep(0)
        most.append(most[-1] - 1)

    asyncio.run(few._requests.ask([request] * 100, nothing))

    assert max(most) == 5
