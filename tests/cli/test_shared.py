"""Saying what bookies share with others, some of whose roots may hang."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from spark_bookkeeper.cli.bookie import shared
from spark_bookkeeper.cli.bookie import start as bookie_start
from spark_bookkeeper.cli.bookie.shared import what_is_shared
from spark_bookkeeper.cli.shell.termination import STOPPING, Stopping
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.doctor.failure_domains import Place
from spark_bookkeeper.metadata.store import Cookie
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore

OWN = {BookieId(f"10.0.0.1:{port}"): f"file:///own/{port}" for port in (1, 2, 3)}
OTHERS = {BookieId(f"10.0.1.{n}:1"): f"file:///other-{n}" for n in range(40)}


class Opening:
    """How roots are reached, as far as it matters here."""

    def __init__(self, timeout_ms: int = 60_000) -> None:
        self.conf = SimpleNamespace(client=ClientConfig(bookie_timeout_ms=timeout_ms))
        self.opened: list[str] = []
        self.all_are_asked = threading.Barrier(len(OWN) + len(OTHERS))
        self.hangs: set[str] = set()
        self.goes_on = threading.Event()

    def open_root(self, uri: str, runtime: ThreadRuntime) -> Any:
        self.opened.append(uri)
        if uri in self.hangs:
            self.goes_on.wait(60)
        elif not self.hangs:
            self.all_are_asked.wait(60)
        return SimpleNamespace(uri=uri, marker=lambda: None, close=lambda: None)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryCluster().session()
    store.initialize_cluster()
    for bookie_id, root in {**OWN, **OTHERS}.items():
        store.write_cookie(Cookie(bookie_id, root, "i", "c"), None)
    return store


def test_all_roots_are_looked_at_once_and_side_by_side(store: MemoryStore) -> None:
    """None is told where it is before all are asked."""
    access: Any = Opening()

    said = what_is_shared(access, store, OWN)

    assert sorted(access.opened) == sorted([*OWN.values(), *OTHERS.values()])
    (line,) = said
    assert line.startswith(f"{' and '.join(OWN)} share the machine 10.0.0.1:")


def test_who_looks_waits_no_longer_than_for_one_bookie(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_OPENING_SECONDS", 0.0)
    access: Any = Opening(timeout_ms=300)
    access.hangs = {*OTHERS.values()}

    said = what_is_shared(access, store, OWN)
    is_over = access.goes_on.is_set()
    access.goes_on.set()

    assert not is_over
    assert len(said) == 1


def test_where_a_bookie_is_that_was_seen_is_not_looked_for(store: MemoryStore) -> None:
    access: Any = Opening()
    access.hangs = {"nothing"}
    name = next(iter(OWN))
    store.write_cookie(Cookie(BookieId("10.0.2.1:1"), "s3://one/1", "i", "c"), None)

    said = what_is_shared(access, store, {name: "file:///d"}, seen={name: Place("s3://one/2")})

    assert len(access.opened) == len(OWN) + len(OTHERS) - 1
    (line,) = said
    assert line.startswith("10.0.0.1:1 and 10.0.2.1:1 share the bucket s3://one:")


def test_only_what_can_be_on_a_disk_is_opened(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What opens a bucket may lack its package, its account or anything."""
    ended: list[object] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    roots = {BookieId(f"10.0.0.{n}:1"): "hdfs://one/d" for n in (2, 3)}
    access: Any = Opening()
    access.hangs = {"nothing"}

    said = what_is_shared(access, store, roots)

    assert not any(uri.startswith("hdfs") for uri in access.opened)
    assert [line.partition(":1 share")[0] for line in said] == ["10.0.0.2:1 and 10.0.0.3"]
    assert not ended


def test_an_error_of_the_system_is_a_root_that_is_not_seen(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[object] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)

    def refuse(uri: str, runtime: ThreadRuntime) -> Any:
        raise OSError(f"{uri}: no such device")

    access: Any = Opening()
    access.open_root = refuse

    (line,) = what_is_shared(access, store, OWN)
    assert "share the machine 10.0.0.1" in line
    assert not ended


def test_the_roots_that_are_asked_about_are_looked_at_first(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of others that hang leave no place for more."""
    monkeypatch.setattr(shared, "_LOOKS_AT_ONCE", len(OWN))
    monkeypatch.setattr(shared, "_OPENING_SECONDS", 0.0)
    access: Any = Opening(timeout_ms=1_000)
    access.hangs = {*OTHERS.values()}
    newest = {BookieId("10.9.9.9:1"): "file:///newest"}

    what_is_shared(access, store, newest)
    access.goes_on.set()

    assert access.opened[0] == "file:///newest"


def test_a_look_that_hangs_keeps_neither_autorecovery_nor_the_end_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on, told = threading.Event(), threading.Event()
    happened: list[str] = []

    def hanging(*_: object, **__: object) -> list[str]:
        goes_on.wait(60)
        told.set()
        return ["a line that nobody waits for"]

    @contextmanager
    def beside(_settings: object, _access: object, name: str, *_: object) -> Iterator[None]:
        happened.append(f"autorecovery of {name}, {told.is_set()}")
        yield

    monkeypatch.setattr(bookie_start, "what_is_shared", hanging)
    monkeypatch.setattr(bookie_start, "_autorecovery", beside)
    monkeypatch.setattr(bookie_start, "note_warning", lambda *_: None)
    partition = SimpleNamespace(
        bookie_id="10.0.0.1:1",
        is_started=True,
        status=SimpleNamespace(root_uri="s3://one/1", incarnation="i"),
    )
    settings: Any = SimpleNamespace(output=SimpleNamespace(note=happened.append))
    bk: Any = SimpleNamespace(context=SimpleNamespace(store=None))
    served: Any = SimpleNamespace(partitions=[partition])
    stopping = Stopping()
    stopping.set()

    bookie_start._serve(
        settings,
        Opening(),  # type: ignore[arg-type]  # what is needed of it
        ThreadRuntime(),
        bk,
        served,
        SimpleNamespace(address=None),  # type: ignore[arg-type]  # the same
        stopping,
        with_autorecovery=True,
    )
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "sharing":
            thread.join(60)

    assert happened[1:] == ["autorecovery of 10.0.0.1:1, False", STOPPING]
