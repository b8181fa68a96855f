"""Which partitions are served, which are formatted, and which are refused, with what text."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.marker import Marker, read_marker
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.bookie.storage.local import LocalStorage
from spark_bookkeeper.bookie.storage.roots import open_storage
from spark_bookkeeper.client.ledger import custom_metadata
from spark_bookkeeper.cluster.claims import Claims, Judgement, judge
from spark_bookkeeper.cluster.cookies import (
    forget_bookie,
    has_cookie,
    restore_cookie,
    touch_cookie,
)
from spark_bookkeeper.cluster.formatting import format_bookie
from spark_bookkeeper.cluster.ownership import check_claim, claim_partition
from spark_bookkeeper.cluster.readonly import read_order, set_readonly
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.connection import open_root
from spark_bookkeeper.errors import (
    BookKeeperError,
    CookieMismatchError,
    InvalidArgumentError,
    MetadataFormatError,
    MetadataUnavailableError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.store import Cookie, Registration
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore

BOOKIE = BookieId("10.0.0.3:3181")
ROOT = "file:///srv/bookie"

MARKER = Marker(bookie_id=BOOKIE, incarnation="i1", instance_id="c1", format_version=1)
COOKIE = Cookie(bookie_id=BOOKIE, root_uri=ROOT, incarnation="i1", instance_id="c1")
AGREED = Claims(BOOKIE, ROOT, "c1", COOKIE, MARKER, has_content=True)


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        (AGREED, Judgement.ACCEPT),
        (replace(AGREED, has_content=False), Judgement.ACCEPT),
        (replace(AGREED, root_uri=ROOT + "/"), Judgement.ACCEPT),
        (replace(AGREED, cookie=None, marker=None, has_content=False), Judgement.FORMAT),
        (replace(AGREED, cookie=None, has_content=False), Judgement.WRITE_COOKIE),
        (replace(AGREED, root_uri="file:///mnt/bookie"), Judgement.MOVE),
    ],
)
def test_what_may_be_served(claims: Claims, verdict: Judgement) -> None:
    assert judge(claims) is verdict


@pytest.mark.parametrize(
    ("claims", "meaning", "remedy"),
    [
        (replace(AGREED, marker=None), "not mounted, or it was wiped", "bookie recover 10.0.0.3"),
        (
            replace(AGREED, marker=None, has_content=False),
            "not mounted, or it was wiped",
            "bookie recover 10.0.0.3",
        ),
        (
            replace(AGREED, marker=replace(MARKER, incarnation="i2")),
            "formatted at another time",
            "bookie recover",
        ),
        (
            replace(AGREED, marker=replace(MARKER, instance_id="c2")),
            "another cluster",
            "use an empty directory",
        ),
        (
            replace(AGREED, marker=replace(MARKER, bookie_id=BookieId("10.0.0.4:3181"))),
            "that of bookie 10.0.0.4:3181",
            "--bookie-id 10.0.0.4:3181",
        ),
        (
            replace(AGREED, cookie=None),
            "the storage holds its data",
            "bookie cookie create --bookie-id 10.0.0.3:3181 --root file:///srv/bookie",
        ),
        (
            replace(AGREED, cookie=None, marker=None),
            "the storage holds data",
            "use an empty directory",
        ),
        (
            replace(AGREED, cookie=replace(COOKIE, instance_id="c0")),
            "before this cluster was formatted",
            "bookie format",
        ),
    ],
)
def test_a_refusal_shows_what_is_stored_expected_and_found(
    claims: Claims, meaning: str, remedy: str
) -> None:
    with pytest.raises(CookieMismatchError) as refused:
        judge(claims)

    text = str(refused.value)
    assert meaning in text
    assert remedy in text
    assert text.index("stored in") < text.index("expected:") < text.index("found on")
    assert refused.value.facts["nothing_changed"]


@pytest.fixture
def metadata() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.session().initialize_cluster()
    return cluster


@pytest.fixture
def token() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"{next(numbers):032x}"


def make_storage(path: Path) -> LocalStorage:
    path.mkdir(parents=True, exist_ok=True)
    return LocalStorage(path)


def test_a_new_partition_is_formatted_once(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store, storage = metadata.session(), make_storage(tmp_path / "b")

    first = claim_partition(store, storage, BOOKIE, token=token)
    second = claim_partition(store, storage, BOOKIE, token=token)

    assert first == second == read_marker(storage)
    cookie = store.read_cookie(BOOKIE)
    assert cookie is not None
    assert cookie.value.incarnation == first.incarnation
    assert cookie.value.instance_id == first.instance_id == store.instance_id()


def test_a_formatting_that_lost_the_metadata_store_is_finished_later(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    storage = make_storage(tmp_path / "b")

    def refuse(moment: str, operation: str, subject: str) -> None:
        if operation == "write_cookie" and moment == "before":
            raise MetadataUnavailableError("no answer")

    with pytest.raises(MetadataUnavailableError):
        claim_partition(metadata.session(refuse), storage, BOOKIE, token=token)
    half = read_marker(storage)
    whole = claim_partition(metadata.session(), storage, BOOKIE, token=token)

    assert half == whole
    assert whole is not None


def test_a_directory_with_other_files_in_it_is_not_formatted(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    storage = make_storage(tmp_path / "b")
    (tmp_path / "b" / "thesis.txt").write_text("years of work")

    with pytest.raises(BookKeeperError):
        claim_partition(metadata.session(), storage, BOOKIE, token=token)

    assert [p.name for p in (tmp_path / "b").iterdir()] == ["thesis.txt"]


def test_a_wiped_partition_is_refused_and_stays_empty(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    claim_partition(store, make_storage(tmp_path / "b"), BOOKIE, token=token)
    empty = make_storage(tmp_path / "other disk")

    with pytest.raises(CookieMismatchError, match="wiped"):
        claim_partition(store, empty, BOOKIE, token=token)

    assert list((tmp_path / "other disk").iterdir()) == []


def test_a_moved_partition_needs_to_be_called_moved(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    before = claim_partition(store, make_storage(tmp_path / "b"), BOOKIE, token=token)
    (tmp_path / "b").rename(tmp_path / "c")
    moved = make_storage(tmp_path / "c")

    with pytest.raises(CookieMismatchError, match="--moved"):
        claim_partition(store, moved, BOOKIE, token=token)
    after = claim_partition(store, moved, BOOKIE, token=token, moved_from=open_storage)

    assert after == before
    cookie = store.read_cookie(BOOKIE)
    assert cookie is not None
    assert cookie.value.root_uri == moved.uri


def test_a_partition_that_an_agent_still_serves_is_not_called_moved(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    """What is elsewhere is a copy then, and lacks what is stored where the agent is."""
    store, of_the_agent = metadata.session(), metadata.session()
    served = make_storage(tmp_path / "b")
    before = claim_partition(of_the_agent, served, BOOKIE, token=token)
    of_the_agent.register(Registration(BOOKIE, served.uri, before.incarnation))
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    copied = make_storage(tmp_path / "c")

    with pytest.raises(CookieMismatchError, match="alive; nothing was changed"):
        claim_partition(store, copied, BOOKIE, token=token, moved_from=open_storage)

    assert read_marker(served) == before
    cookie = store.read_cookie(BOOKIE)
    assert cookie is not None
    assert cookie.value.root_uri == served.uri
    of_the_agent.unregister(BOOKIE)
    claim_partition(store, copied, BOOKIE, token=token, moved_from=open_storage)
    assert store.registrations() == []  # whoever claims it registers it when it was looked at


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_move_that_is_given_up_leaves_no_registration(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str], moment: str
) -> None:
    """The answer to its registration was lost, and the session lives on."""
    store = metadata.session()
    claim_partition(store, make_storage(tmp_path / "b"), BOOKIE, token=token)
    (tmp_path / "b").rename(tmp_path / "c")

    def lose(now: str, operation: str, subject: str) -> None:
        if (now, operation) == (moment, "register"):
            raise MetadataUnavailableError("no answer")

    moving = metadata.session(lose)
    moved = make_storage(tmp_path / "c")
    with pytest.raises(MetadataUnavailableError):
        claim_partition(moving, moved, BOOKIE, token=token, moved_from=open_storage)

    assert store.registrations() == []


def test_what_is_left_at_the_old_root_of_a_moved_partition_answers_nothing_any_more(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    before = claim_partition(store, make_storage(tmp_path / "b"), BOOKIE, token=token)
    shutil.copytree(tmp_path / "b", tmp_path / "c")

    after = claim_partition(
        store, make_storage(tmp_path / "c"), BOOKIE, token=token, moved_from=open_storage
    )

    assert after == before
    assert read_marker(make_storage(tmp_path / "b")) is None
    assert read_marker(make_storage(tmp_path / "c")) == before


def test_a_partition_under_a_second_name_keeps_its_marker(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    before = claim_partition(store, make_storage(tmp_path / "b"), BOOKIE, token=token)
    (tmp_path / "c").symlink_to(tmp_path / "b")

    same = make_storage(tmp_path / "c")
    claim_partition(store, same, BOOKIE, token=token, moved_from=open_storage)

    assert read_marker(same) == before


def test_a_partition_moved_from_a_root_that_hangs_is_served_all_the_same(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    before = claim_partition(store, make_storage(tmp_path / "b"), BOOKIE, token=token)
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    (tmp_path / "b" / MARKER_PATH).unlink()
    os.mkfifo(tmp_path / "b" / MARKER_PATH)  # nobody ever writes to it
    impatient = ClientConfig(bookie_timeout_ms=300)

    after = claim_partition(
        store,
        make_storage(tmp_path / "c"),
        BOOKIE,
        token=token,
        moved_from=lambda uri: open_root(uri, ThreadRuntime(), impatient),
    )

    assert after == before


def test_a_claim_ends_when_the_cookie_is_deleted(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store, storage = metadata.session(), make_storage(tmp_path / "b")
    marker = claim_partition(store, storage, BOOKIE, token=token)
    check_claim(store, storage, BOOKIE, marker)
    cookie = store.read_cookie(BOOKIE)
    assert cookie is not None
    store.delete_cookie(BOOKIE, cookie.version)

    with pytest.raises(CookieMismatchError, match="given up"):
        check_claim(store, storage, BOOKIE, marker)

    assert store.read_cookie(BOOKIE) is None


def add_ledger(store: MemoryStore, *ensemble: BookieId, incarnation: str | None = None) -> None:
    """One that names these bookies; with an incarnation it is one of our own."""
    custom = {}
    if incarnation is not None:
        meant = dict.fromkeys(ensemble, incarnation)
        custom = custom_metadata("0" * 32, pa.schema([("n", pa.int64())]), None, 1, meant)
    store.create_ledger(
        store.generate_ledger_id(),
        LedgerMetadata(
            quorum=Quorum(len(ensemble), 1, 1),
            state=LedgerState.OPEN,
            fragments=(Fragment(EntryId(0), ensemble),),
            custom_metadata=custom,
        ),
        is_generated=True,
    )


# A cookie that is gone


def served(store: MemoryStore, path: Path, token: Callable[[], str]) -> tuple[LocalStorage, Marker]:
    """A bookie that held something and is down now."""
    storage = make_storage(path)
    marker = claim_partition(store, storage, BOOKIE, token=token)
    storage.make_directory("ledgers/7-x")
    return storage, marker


def lose_cookie(store: MemoryStore) -> None:
    cookie = store.read_cookie(BOOKIE)
    assert cookie is not None
    store.delete_cookie(BOOKIE, cookie.version)


def test_a_cookie_that_was_lost_is_written_again_and_the_bookie_is_served(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    storage, marker = served(store, tmp_path / "b", token)
    add_ledger(store, BOOKIE, incarnation=marker.incarnation)
    before = store.read_cookie(BOOKIE)
    assert before is not None
    lose_cookie(store)
    with pytest.raises(CookieMismatchError, match="cookie create"):
        claim_partition(store, storage, BOOKIE, token=token)
    with pytest.raises(InvalidArgumentError, match="cookie create"):
        format_bookie(store, storage, BOOKIE, token=token)

    assert restore_cookie(store, storage, BOOKIE) == before.value

    assert claim_partition(store, storage, BOOKIE, token=token) == marker
    assert restore_cookie(store, storage, BOOKIE) == before.value, "repeating it changes nothing"


def test_a_bookie_that_was_given_up_may_come_back(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    storage, marker = served(store, tmp_path / "b", token)
    add_ledger(store, BookieId("10.0.0.9:3181"), incarnation="i9")
    forget_bookie(store, BOOKIE)

    restore_cookie(store, storage, BOOKIE)

    assert claim_partition(store, storage, BOOKIE, token=token) == marker


def test_a_partition_that_the_ledgers_do_not_mean_gets_no_cookie(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    storage, _ = served(store, tmp_path / "b", token)
    lose_cookie(store)
    add_ledger(store, BOOKIE, incarnation="another")

    with pytest.raises(CookieMismatchError, match="ledger 0 counts on another formatting"):
        restore_cookie(store, storage, BOOKIE)

    assert store.read_cookie(BOOKIE) is None


def test_a_partition_that_lost_its_cookie_and_what_it_held_gets_no_cookie(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    """It would say "no such entry" of what it held (SLOT-LOG rule R5)."""
    store = metadata.session()
    storage, marker = served(store, tmp_path / "b", token)
    lose_cookie(store)
    storage.delete_directory("ledgers")
    add_ledger(store, BOOKIE, incarnation=marker.incarnation)

    for attempt in (
        lambda: restore_cookie(store, storage, BOOKIE),
        lambda: claim_partition(store, storage, BOOKIE, token=token),
    ):
        with pytest.raises(CookieMismatchError, match="it is empty"):
            attempt()

    assert store.read_cookie(BOOKIE) is None


def test_a_bookie_that_is_served_from_elsewhere_gets_no_cookie_here(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    storage, marker = served(store, tmp_path / "b", token)
    shutil.copytree(tmp_path / "b", tmp_path / "copy")
    lose_cookie(store)
    store.register(Registration(BOOKIE, storage.uri, marker.incarnation))

    with pytest.raises(CookieMismatchError, match="an agent serves the bookie from"):
        restore_cookie(store, make_storage(tmp_path / "copy"), BOOKIE)
    restore_cookie(store, storage, BOOKIE)


def test_no_cookie_is_made_of_nothing(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    empty = make_storage(tmp_path / "empty")
    with pytest.raises(CookieMismatchError, match="holds no BOOKIE marker"):
        restore_cookie(store, empty, BOOKIE)
    served(store, tmp_path / "b", token)
    with pytest.raises(CookieMismatchError, match="a bookie has one root"):
        restore_cookie(store, empty, BOOKIE)
    (tmp_path / "b").rename(tmp_path / "c")
    with pytest.raises(CookieMismatchError, match="--moved"):
        restore_cookie(store, make_storage(tmp_path / "c"), BOOKIE)


def test_only_a_bookie_that_is_down_and_that_nobody_counts_on_is_forgotten(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    with pytest.raises(InvalidArgumentError, match="has no cookie"):
        forget_bookie(store, BOOKIE)
    storage, marker = served(store, tmp_path / "b", token)
    assert has_cookie(store, marker)
    store.register(Registration(BOOKIE, storage.uri, marker.incarnation))
    with pytest.raises(InvalidArgumentError, match="is alive"):
        forget_bookie(store, BOOKIE)
    store.unregister(BOOKIE)
    add_ledger(store, BOOKIE, incarnation=marker.incarnation)
    with pytest.raises(InvalidArgumentError, match="ledger 0 still counts"):
        forget_bookie(store, BOOKIE)
    assert has_cookie(store, marker)
    store.delete_ledger(LedgerId(0), None)

    forget_bookie(store, BOOKIE)

    assert not has_cookie(store, marker)


@pytest.mark.parametrize("stays", [True, False], ids=["and stays", "and goes again"])
def test_a_bookie_that_starts_while_it_is_about_to_be_forgotten_keeps_its_cookie(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str], stays: bool
) -> None:
    """Reading the metadata of all ledgers takes minutes, and a new ledger may count on it."""
    store = metadata.session()
    storage, marker = served(store, tmp_path / "b", token)
    add_ledger(store, BookieId("10.0.0.9:3181"))
    agent = metadata.session()
    happened: list[str] = []

    def start(moment: str, operation: str, subject: str) -> None:
        if (moment, operation) == ("before", "read_ledger") and not happened:
            happened.append(subject)
            agent.register(Registration(BOOKIE, storage.uri, marker.incarnation))
            touch_cookie(agent, BOOKIE)
            add_ledger(agent, BOOKIE, incarnation=marker.incarnation)
            if not stays:
                agent.unregister(BOOKIE)

    refusal = InvalidArgumentError if stays else VersionConflictError
    with pytest.raises(refusal):
        forget_bookie(metadata.session(start), BOOKIE)

    assert happened
    assert has_cookie(store, marker)


def test_an_order_that_outlived_its_bookie_does_not_make_the_next_one_read_only(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    claim_partition(store, make_storage(tmp_path / "old"), BOOKIE, token=token)
    set_readonly(store, BOOKIE, "its disk is old", 1)

    def die(moment: str, operation: str, subject: str) -> None:
        if operation == "delete_register":
            raise MetadataUnavailableError("no answer")

    with pytest.raises(MetadataUnavailableError):
        forget_bookie(metadata.session(die), BOOKIE)
    assert store.read_cookie(BOOKIE) is None
    claim_partition(store, make_storage(tmp_path / "new"), BOOKIE, token=token)

    assert read_order(store, BOOKIE) is None


def test_a_bookie_that_nobody_can_say_who_counts_on_is_neither_forgotten_nor_formatted(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    storage, marker = served(store, tmp_path / "b", token)
    for _ in range(2):
        add_ledger(store, BookieId("10.0.0.9:3181"))

    def garbage(moment: str, operation: str, subject: str) -> None:
        if (moment, operation, subject) == ("before", "read_ledger", "1"):
            raise MetadataFormatError("L0001 holds garbage", path="L0001")

    blind = metadata.session(garbage)
    with pytest.raises(InvalidArgumentError, match=r"ledger 1 .* may count.*garbage") as refused:
        forget_bookie(blind, BOOKIE)
    with pytest.raises(InvalidArgumentError, match=r"ledger 1 .* may count.*garbage"):
        format_bookie(blind, storage, BOOKIE, token=token)

    assert refused.value.facts["ledger_ids"] == (1,)
    assert f"bookie cookie delete {BOOKIE} --even-if-unreadable" in refused.value.message
    assert has_cookie(store, marker)
    forget_bookie(blind, BOOKIE, even_if_unreadable=True)
    assert not has_cookie(store, marker)


def test_who_insists_forgets_no_bookie_that_is_counted_on(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store = metadata.session()
    _, marker = served(store, tmp_path / "b", token)
    add_ledger(store, BOOKIE, incarnation=marker.incarnation)

    with pytest.raises(InvalidArgumentError, match="ledger 0 still counts"):
        forget_bookie(store, BOOKIE, even_if_unreadable=True)

    assert has_cookie(store, marker)


def test_a_bookie_that_a_ledger_counts_on_is_not_formatted(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store, storage = metadata.session(), make_storage(tmp_path / "b")
    before = claim_partition(store, storage, BOOKIE, token=token)
    add_ledger(store, BookieId("10.0.0.9:3181"))
    add_ledger(store, BookieId("10.0.0.9:3181"), BOOKIE)

    with pytest.raises(InvalidArgumentError, match="last good copy") as refused:
        format_bookie(store, storage, BOOKIE, token=token)

    assert refused.value.facts["ledger_ids"] == (1,)
    assert read_marker(storage) == before


def test_a_bookie_that_is_alive_is_not_formatted(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store, storage = metadata.session(), make_storage(tmp_path / "b")
    marker = claim_partition(store, storage, BOOKIE, token=token)
    store.register(Registration(BOOKIE, storage.uri, marker.incarnation))

    with pytest.raises(InvalidArgumentError, match="alive"):
        format_bookie(store, storage, BOOKIE, token=token)


@pytest.mark.parametrize("stays", [True, False])
def test_a_bookie_that_starts_while_it_is_about_to_be_formatted_keeps_what_it_has(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str], stays: bool
) -> None:
    """Reading the metadata of all ledgers takes minutes, and a new ledger may count on it."""
    store = metadata.session()
    storage, marker = served(store, tmp_path / "b", token)
    add_ledger(store, BookieId("10.0.0.9:3181"))
    agent = metadata.session()
    happened: list[str] = []

    def start(moment: str, operation: str, subject: str) -> None:
        if (moment, operation) == ("before", "read_ledger") and not happened:
            happened.append(subject)
            agent.register(Registration(BOOKIE, storage.uri, marker.incarnation))
            touch_cookie(agent, BOOKIE)
            storage.make_directory("ledgers/7-x")
            if not stays:
                agent.unregister(BOOKIE)

    refusal = CookieMismatchError if stays else VersionConflictError
    with pytest.raises(refusal):
        format_bookie(metadata.session(start), storage, BOOKIE, token=token)

    assert happened
    assert read_marker(storage) == marker
    assert "7-x" in storage.list("ledgers")
    assert has_cookie(store, marker)
    assert len(store.registrations()) == stays


def test_no_agent_serves_a_bookie_while_it_is_formatted(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store, agent = metadata.session(), metadata.session()
    storage, marker = served(store, tmp_path / "b", token)
    refused: list[CookieMismatchError] = []

    def start(check: str) -> None:
        with pytest.raises(CookieMismatchError) as caught:
            agent.register(Registration(BOOKIE, storage.uri, marker.incarnation))
        refused.append(caught.value)

    after = format_bookie(store, storage, BOOKIE, token=token, on_check=start)

    assert refused
    assert store.registrations() == []
    assert claim_partition(agent, storage, BOOKIE, token=token) == after


def test_a_bookie_that_nobody_counts_on_begins_anew(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store, storage = metadata.session(), make_storage(tmp_path / "b")
    before = claim_partition(store, storage, BOOKIE, token=token)
    (tmp_path / "b" / "ledgers" / "7-x").mkdir(parents=True)
    (tmp_path / "b" / "probe-0123").write_text("left by an agent that was killed")

    after = format_bookie(store, storage, BOOKIE, token=token)

    assert after.incarnation != before.incarnation
    assert not storage.list("ledgers")
    assert claim_partition(store, storage, BOOKIE, token=token) == after


def test_files_that_are_not_a_bookies_are_never_removed(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    store, storage = metadata.session(), make_storage(tmp_path / "b")
    before = claim_partition(store, storage, BOOKIE, token=token)
    (tmp_path / "b" / "thesis.txt").write_text("years of work")

    with pytest.raises(InvalidArgumentError, match=r"thesis\.txt"):
        format_bookie(store, storage, BOOKIE, token=token)

    assert read_marker(storage) == before
    assert (tmp_path / "b" / "thesis.txt").read_text() == "years of work"


def test_the_partition_of_another_cluster_is_not_formatted(
    metadata: MemoryCluster, tmp_path: Path, token: Callable[[], str]
) -> None:
    storage = make_storage(tmp_path / "b")
    other = MemoryCluster()
    other.number()  # so that its instance id is another one
    other.session().initialize_cluster()
    theirs = claim_partition(other.session(), storage, BOOKIE, token=token)

    with pytest.raises(InvalidArgumentError, match="belongs to"):
        format_bookie(metadata.session(), storage, BOOKIE, token=token)
    with pytest.raises(CookieMismatchError, match="another cluster"):
        claim_partition(metadata.session(), storage, BOOKIE, token=token)

    assert read_marker(storage) == theirs
