"""Bookies can be in the object store of the benchmarks, and it counts what it is asked."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from typing_extensions import override

from spark_bookkeeper.storage.remote import RemoteStorage
from spark_bookkeeper.storage.storage import Storage
from spark_bookkeeper.testing.conformance.storage import StorageConformance, Storages, ThreadRace

pytest.importorskip("s3fs")
from tests.benchmarks.object_store import Asked, FarStore
from tests.benchmarks.plain_s3 import MOST, ask_the_same, at_once

pytestmark = pytest.mark.s3


class _FarStorages(ThreadRace):
    """Handles on a prefix of a bucket of its own."""

    def __init__(self, store: FarStore) -> None:
        self._store = store
        self._uri = f"s3://{store.make_bucket()}/root"

    @override
    def open(self) -> Storage:
        return RemoteStorage(self._uri, **self._store.storage_options)

    def vanish(self) -> None:
        self._store.stop()


@pytest.fixture(scope="module")
def far_store() -> Iterator[FarStore]:
    with FarStore() as store:
        yield store


@pytest.mark.slow  # each of them makes clients of its own, half a second of the processor
class TestFarStore(StorageConformance):
    """As the S3 server of the tests."""

    @pytest.fixture
    def storages(self, request: pytest.FixtureRequest) -> Iterator[Storages]:
        if "does_not_answer" in request.node.name:
            with FarStore() as store:
                yield _FarStorages(store)
        else:
            yield _FarStorages(request.getfixturevalue("far_store"))


def test_what_a_store_is_asked_is_counted_by_kind_and_by_ledger(far_store: FarStore) -> None:
    bucket = far_store.make_bucket()
    slots = "bookie/ledgers/7-0a/slots"
    far_store.count(delay_seconds=0)

    def ask(method: str, path: str, data: bytes | None = None, **headers: str) -> bytes | None:
        wanted = urllib.request.Request(
            f"{far_store.address}/{bucket}{path}", data, headers, method=method
        )
        try:
            with urllib.request.urlopen(wanted) as answer:
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return None

    new = {"If-None-Match": "*"}
    assert ask("PUT", f"/{slots}/0.arrow", b"1234", **new) == b""
    assert ask("PUT", f"/{slots}/0.arrow", b"56", **new) is None
    assert b"0.arrow" in (ask("GET", f"?list-type=2&prefix={slots}/") or b"")
    assert ask("GET", f"/{slots}/0.arrow") == b"1234"
    assert ask("GET", "/bookie/BOOKIE") is None
    asked = far_store.asked()

    assert asked.kinds == {"PUT": 1, "PUT, refused": 1, "LIST": 1, "GET": 1, "GET, refused": 1}
    assert (asked.requests, asked.rounds, asked.most) == (5, 4, 1)
    assert (asked.put_bytes, asked.read_bytes) == (4, 4)


def test_plain_code_has_so_many_requests_on_their_way_and_no_more() -> None:
    under_way = most = answered = 0

    async def send() -> None:
        nonlocal under_way, most, answered
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        answered += 1

    asyncio.run(at_once(send for _ in range(3 * MOST + 1)))

    assert (most, answered) == (MOST, 3 * MOST + 1)


def test_plain_code_asks_for_as_much_of_each_kind_and_a_round_waits_for_the_one_before(
    far_store: FarStore,
) -> None:
    kinds = {"PUT": 9, "PUT, refused": 2, "GET": 8, "GET, refused": 3, "HEAD": 7, "LIST": 5}
    asked = Asked({**kinds, "HEAD, refused": 4}, rounds=4, most=1, put_bytes=100, read_bytes=50)

    assert ask_the_same(far_store, asked, delay_seconds=0.05) >= asked.rounds * 0.05
