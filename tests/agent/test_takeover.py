"""Which partitions are served, which are formatted, and which are refused, with what text."""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.agent.cookies import forget_bookie, has_cookie, restore_cookie, touch_cookie
from spark_bookkeeper.agent.formatting import format_bookie
from spark_bookkeeper.agent.identity import Claims, Judgement, judge
from spark_bookkeeper.agent.readonly import read_order, set_readonly
from spark_bookkeeper.agent.takeover import check_claim, claim_partition
from spark_bookkeeper.bookie.marker import Marker, read_marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.client.ledger import custom_metadata
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
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.storage.roots import open_storage
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore
from tests.worlds import failing, there

BOOKIE, OTHER = BookieId("10.0.0.3:3181"), BookieId("10.0.0.9:3181")
ROOT = "file:///srv/bookie"

MARKER = Marker(bookie_id=BOOKIE, incarnation="i1", instance_id="c1", format_version=1)
COOKIE = Cookie(bookie_id=BOOKIE, root_uri=ROOT, incarnation="i1", instance_id="c1")
AGREED = Claims(BOOKIE, ROOT, "c1", COOKIE, MARKER, has_content=True)


def claimed(**otherwise: Any) -> Claims:
    """What agrees, but for something."""
    return replace(AGREED, **otherwise)


NOTHING: Any = {"cookie": None, "marker": None, "has_content": False}


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        (AGREED, Judgement.ACCEPT),
        (claimed(has_content=False), Judgement.ACCEPT),
        (claimed(root_uri=ROOT + "/"), Judgement.ACCEPT),
        (claimed(**NOTHING), Judgement.FORMAT),
        (claimed(cookie=None, has_content=False), Judgement.WRITE_COOKIE),
        (claimed(root_uri="file:///mnt/bookie"), Judgement.MOVE),
    ],
)
def test_what_may_be_served(claims: Claims, verdict: Judgement) -> None:
    assert judge(claims) is verdict


WIPED = ("not mounted, or it was wiped", "bookie recover 10.0.0.3")
OF_ANOTHER = replace(MARKER, bookie_id=BookieId("10.0.0.4:3181"))
CREATE = f"bookie cookie create --bookie-id {BOOKIE} --root {ROOT}"
OLD_COOKIE = replace(COOKIE, instance_id="c0")


@pytest.mark.parametrize(
    ("claims", "meaning", "remedy"),
    [
        (claimed(marker=None), *WIPED),
        (claimed(marker=None, has_content=False), *WIPED),
        (claimed(marker=replace(MARKER, incarnation="i2")), "at another time", "bookie recover"),
        (claimed(marker=replace(MARKER, instance_id="c2")), "another cluster", "use an empty dir"),
        (claimed(marker=OF_ANOTHER), "that of bookie 10.0.0.4:3181", "--bookie-id 10.0.0.4:3181"),
        (claimed(cookie=None), "the storage holds its data", CREATE),
        (claimed(cookie=None, marker=None), "the storage holds data", "use an empty directory"),
        (claimed(cookie=OLD_COOKIE), "before this cluster was formatted", "bookie format"),
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


class Site:
    """The metadata of a cluster, and places for the partition of one bookie.

    ``store`` is the session of whoever asks, ``storage`` the partition in the directory ``b``.
    """

    def __init__(self, directory: Path) -> None:
        numbers = itertools.count(1)
        self.directory = directory
        self.token = lambda: f"{next(numbers):032x}"
        self.metadata = MemoryCluster()
        self.store = self.metadata.session()
        self.store.initialize_cluster()
        self.storage = self.place("b")

    def place(self, name: str) -> LocalStorage:
        """The directory of another partition, or of the same one that was moved."""
        path = self.directory / name
        path.mkdir(exist_ok=True)
        return LocalStorage(path)

    def claim(self, storage: LocalStorage | None = None, *, moved: bool = False) -> Marker:
        """What an agent does that is started there."""
        return claim_partition(
            self.store,
            Partition(storage or self.storage),
            BOOKIE,
            token=self.token,
            moved_from=(lambda uri: Partition(open_storage(uri))) if moved else None,
        )

    def format(self, store: MemoryStore | None = None) -> Marker:
        return format_bookie(store or self.store, Partition(self.storage), BOOKIE, token=self.token)

    def served(self) -> Marker:
        """The bookie held something and is down now."""
        marker = self.claim()
        self.storage.make_directory("ledgers/7-x")
        return marker

    def register(self, marker: Marker, store: MemoryStore | None = None) -> None:
        registration = Registration(BOOKIE, self.storage.uri, marker.incarnation)
        (store or self.store).register(registration)

    def cookie(self) -> Cookie:
        return there(self.store.read_cookie(BOOKIE)).value

    def lose_cookie(self) -> None:
        self.store.delete_cookie(BOOKIE, there(self.store.cookie_version(BOOKIE)))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_new_partition_is_formatted_once(site: Site) -> None:
    first = site.claim()
    second = site.claim()

    assert first == second == read_marker(site.storage)
    assert site.cookie().incarnation == first.incarnation
    assert site.cookie().instance_id == first.instance_id == site.store.instance_id()


def test_a_formatting_that_lost_the_metadata_store_is_finished_later(site: Site) -> None:
    refuse = failing("write_cookie", MetadataUnavailableError)
    with pytest.raises(MetadataUnavailableError):
        claim_partition(
            site.metadata.session(refuse), Partition(site.storage), BOOKIE, token=site.token
        )
    half = read_marker(site.storage)
    whole = site.claim()

    assert half == whole
    assert whole is not None


def test_a_directory_with_other_files_in_it_is_not_formatted(site: Site) -> None:
    (site.directory / "b" / "thesis.txt").write_text("years of work")

    with pytest.raises(BookKeeperError):
        site.claim()

    assert [p.name for p in (site.directory / "b").iterdir()] == ["thesis.txt"]


def test_a_moved_partition_needs_to_be_called_moved(site: Site) -> None:
    before = site.claim()
    (site.directory / "b").rename(site.directory / "c")
    moved = site.place("c")

    with pytest.raises(CookieMismatchError, match="--moved"):
        site.claim(moved)
    after = site.claim(moved, moved=True)

    assert after == before
    assert site.cookie().root_uri == moved.uri


def test_a_partition_that_an_agent_still_serves_is_not_called_moved(site: Site) -> None:
    """What is elsewhere is a copy then, and lacks what is stored where the agent is."""
    of_the_agent = site.metadata.session()
    served = site.storage
    before = claim_partition(of_the_agent, Partition(served), BOOKIE, token=site.token)
    site.register(before, of_the_agent)
    shutil.copytree(site.directory / "b", site.directory / "c")
    copied = site.place("c")

    with pytest.raises(CookieMismatchError, match="alive; nothing was changed"):
        site.claim(copied, moved=True)

    assert read_marker(served) == before
    assert site.cookie().root_uri == served.uri
    of_the_agent.unregister(BOOKIE)
    site.claim(copied, moved=True)
    assert site.store.registrations() == []  # whoever claims it registers it when it was looked at


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_move_that_is_given_up_leaves_no_registration(site: Site, moment: str) -> None:
    """The answer to its registration was lost, and the session lives on."""
    site.claim()
    (site.directory / "b").rename(site.directory / "c")

    def lose(now: str, operation: str, subject: str) -> None:
        if (now, operation) == (moment, "register"):
            raise MetadataUnavailableError("no answer")

    moving = site.metadata.session(lose)
    moved = site.place("c")
    with pytest.raises(MetadataUnavailableError):
        claim_partition(
            moving,
            Partition(moved),
            BOOKIE,
            token=site.token,
            moved_from=lambda uri: Partition(open_storage(uri)),
        )

    assert site.store.registrations() == []


def test_what_is_left_at_the_old_root_of_a_moved_partition_answers_nothing_any_more(
    site: Site,
) -> None:
    before = site.claim()
    shutil.copytree(site.directory / "b", site.directory / "c")

    after = site.claim(site.place("c"), moved=True)

    assert after == before
    assert read_marker(site.storage) is None
    assert read_marker(site.place("c")) == before


def test_a_partition_under_a_second_name_keeps_its_marker(site: Site) -> None:
    before = site.claim()
    (site.directory / "c").symlink_to(site.directory / "b")

    same = site.place("c")
    site.claim(same, moved=True)

    assert read_marker(same) == before


def test_a_partition_moved_from_a_root_that_hangs_is_served_all_the_same(site: Site) -> None:
    before = site.claim()
    shutil.copytree(site.directory / "b", site.directory / "c")
    (site.directory / "b" / MARKER_PATH).unlink()
    os.mkfifo(site.directory / "b" / MARKER_PATH)  # nobody ever writes to it
    impatient = ClientConfig(bookie_timeout_ms=300)

    after = claim_partition(
        site.store,
        Partition(site.place("c")),
        BOOKIE,
        token=site.token,
        moved_from=lambda uri: open_root(uri, ThreadRuntime(), impatient),
    )

    assert after == before


def test_a_claim_ends_when_the_cookie_is_deleted(site: Site) -> None:
    marker = site.claim()
    check_claim(site.store, Partition(site.storage), BOOKIE, marker)
    site.lose_cookie()

    with pytest.raises(CookieMismatchError, match="given up"):
        check_claim(site.store, Partition(site.storage), BOOKIE, marker)

    assert site.store.read_cookie(BOOKIE) is None


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


def test_a_cookie_that_was_lost_is_written_again_and_the_bookie_is_served(site: Site) -> None:
    marker = site.served()
    add_ledger(site.store, BOOKIE, incarnation=marker.incarnation)
    before = site.cookie()
    site.lose_cookie()
    with pytest.raises(CookieMismatchError, match="cookie create"):
        site.claim()
    with pytest.raises(InvalidArgumentError, match="cookie create"):
        site.format()

    assert restore_cookie(site.store, Partition(site.storage), BOOKIE) == before

    assert site.claim() == marker
    assert restore_cookie(site.store, Partition(site.storage), BOOKIE) == before, (
        "again: nothing changes"
    )


def test_a_bookie_that_was_given_up_may_come_back(site: Site) -> None:
    marker = site.served()
    add_ledger(site.store, OTHER, incarnation="i9")
    forget_bookie(site.store, BOOKIE)

    restore_cookie(site.store, Partition(site.storage), BOOKIE)

    assert site.claim() == marker


def test_a_partition_that_the_ledgers_do_not_mean_gets_no_cookie(site: Site) -> None:
    site.served()
    site.lose_cookie()
    add_ledger(site.store, BOOKIE, incarnation="another")

    with pytest.raises(CookieMismatchError, match="ledger 0 counts on another formatting"):
        restore_cookie(site.store, Partition(site.storage), BOOKIE)

    assert site.store.read_cookie(BOOKIE) is None


def test_a_partition_that_lost_its_cookie_and_what_it_held_gets_no_cookie(site: Site) -> None:
    """It would say "no such entry" of what it held (SLOT-LOG rule R5)."""
    marker = site.served()
    site.lose_cookie()
    site.storage.delete_directory("ledgers")
    add_ledger(site.store, BOOKIE, incarnation=marker.incarnation)

    for attempt in (
        lambda: restore_cookie(site.store, Partition(site.storage), BOOKIE),
        site.claim,
    ):
        with pytest.raises(CookieMismatchError, match="it is empty"):
            attempt()

    assert site.store.read_cookie(BOOKIE) is None


def test_a_bookie_that_is_served_from_elsewhere_gets_no_cookie_here(site: Site) -> None:
    marker = site.served()
    shutil.copytree(site.directory / "b", site.directory / "copy")
    site.lose_cookie()
    site.register(marker)

    with pytest.raises(CookieMismatchError, match="an agent serves the bookie from"):
        restore_cookie(site.store, Partition(site.place("copy")), BOOKIE)
    restore_cookie(site.store, Partition(site.storage), BOOKIE)


def test_no_cookie_is_made_of_nothing(site: Site) -> None:
    empty = site.place("empty")
    with pytest.raises(CookieMismatchError, match="holds no BOOKIE marker"):
        restore_cookie(site.store, Partition(empty), BOOKIE)
    site.served()
    with pytest.raises(CookieMismatchError, match="a bookie has one root"):
        restore_cookie(site.store, Partition(empty), BOOKIE)
    (site.directory / "b").rename(site.directory / "c")
    with pytest.raises(CookieMismatchError, match="--moved"):
        restore_cookie(site.store, Partition(site.place("c")), BOOKIE)


def test_only_a_bookie_that_is_down_and_that_nobody_counts_on_is_forgotten(site: Site) -> None:
    with pytest.raises(InvalidArgumentError, match="has no cookie"):
        forget_bookie(site.store, BOOKIE)
    marker = site.served()
    assert has_cookie(site.store, marker)
    site.register(marker)
    with pytest.raises(InvalidArgumentError, match="is alive"):
        forget_bookie(site.store, BOOKIE)
    site.store.unregister(BOOKIE)
    add_ledger(site.store, BOOKIE, incarnation=marker.incarnation)
    for who_insists in (False, True):
        with pytest.raises(InvalidArgumentError, match="ledger 0 still counts"):
            forget_bookie(site.store, BOOKIE, even_if_unreadable=who_insists)
    assert has_cookie(site.store, marker)
    site.store.delete_ledger(LedgerId(0), None)

    forget_bookie(site.store, BOOKIE)

    assert not has_cookie(site.store, marker)


@pytest.mark.parametrize("stays", [True, False], ids=["and stays", "and goes again"])
@pytest.mark.parametrize("is_formatted", [False, True], ids=["forgotten", "formatted"])
def test_a_bookie_that_starts_while_it_is_about_to_be_forgotten_or_formatted_keeps_what_it_has(
    site: Site, is_formatted: bool, stays: bool
) -> None:
    """Reading the metadata of all ledgers takes minutes, and a new ledger may count on it."""
    marker = site.served()
    add_ledger(site.store, OTHER)
    agent = site.metadata.session()
    happened: list[str] = []

    def start(moment: str, operation: str, subject: str) -> None:
        if (moment, operation) == ("before", "read_ledger") and not happened:
            happened.append(subject)
            site.register(marker, agent)
            touch_cookie(agent, BOOKIE)
            add_ledger(agent, BOOKIE, incarnation=marker.incarnation)
            if not stays:
                agent.unregister(BOOKIE)

    alive = CookieMismatchError if is_formatted else InvalidArgumentError
    begin: Any = site.format if is_formatted else partial(forget_bookie, bookie_id=BOOKIE)
    with pytest.raises(alive if stays else VersionConflictError):
        begin(site.metadata.session(start))

    assert happened
    assert read_marker(site.storage) == marker
    assert "7-x" in site.storage.list("ledgers")
    assert has_cookie(site.store, marker)
    assert len(site.store.registrations()) == stays


def test_an_order_that_outlived_its_bookie_does_not_make_the_next_one_read_only(site: Site) -> None:
    site.claim(site.place("old"))
    set_readonly(site.store, BOOKIE, "its disk is old", 1)
    die = failing("delete_register", MetadataUnavailableError)
    with pytest.raises(MetadataUnavailableError):
        forget_bookie(site.metadata.session(die), BOOKIE)
    assert site.store.read_cookie(BOOKIE) is None
    site.claim(site.place("new"))

    assert read_order(site.store, BOOKIE) is None


def test_a_bookie_that_nobody_can_say_who_counts_on_is_neither_forgotten_nor_formatted(
    site: Site,
) -> None:
    marker = site.served()
    for _ in range(2):
        add_ledger(site.store, OTHER)

    def garbage(moment: str, operation: str, subject: str) -> None:
        if (moment, operation, subject) == ("before", "read_ledger", "1"):
            raise MetadataFormatError("L0001 holds garbage", path="L0001")

    blind = site.metadata.session(garbage)
    with pytest.raises(InvalidArgumentError, match=r"ledger 1 .* may count.*garbage") as refused:
        forget_bookie(blind, BOOKIE)
    with pytest.raises(InvalidArgumentError, match=r"ledger 1 .* may count.*garbage"):
        site.format(blind)

    assert refused.value.facts["ledger_ids"] == (1,)
    assert f"bookie cookie delete {BOOKIE} --even-if-unreadable" in refused.value.message
    assert has_cookie(site.store, marker)
    forget_bookie(blind, BOOKIE, even_if_unreadable=True)
    assert not has_cookie(site.store, marker)


def test_a_bookie_that_is_alive_or_that_a_ledger_counts_on_is_not_formatted(site: Site) -> None:
    before = site.claim()
    site.register(before)
    with pytest.raises(InvalidArgumentError, match="alive"):
        site.format()
    site.store.unregister(BOOKIE)
    add_ledger(site.store, OTHER)
    add_ledger(site.store, OTHER, BOOKIE)

    with pytest.raises(InvalidArgumentError, match="last good copy") as refused:
        site.format()

    assert refused.value.facts["ledger_ids"] == (1,)
    assert read_marker(site.storage) == before


def test_no_agent_serves_a_bookie_while_it_is_formatted(site: Site) -> None:
    agent = site.metadata.session()
    marker = site.served()
    refused: list[CookieMismatchError] = []

    def start(check: str) -> None:
        with pytest.raises(CookieMismatchError) as caught:
            site.register(marker, agent)
        refused.append(caught.value)

    after = format_bookie(
        site.store, Partition(site.storage), BOOKIE, token=site.token, on_check=start
    )

    assert refused
    assert site.store.registrations() == []
    assert claim_partition(agent, Partition(site.storage), BOOKIE, token=site.token) == after


def test_a_bookie_that_nobody_counts_on_begins_anew(site: Site) -> None:
    before = site.claim()
    (site.directory / "b" / "ledgers" / "7-x").mkdir(parents=True)
    (site.directory / "b" / "probe-0123").write_text("left by an agent that was killed")

    after = site.format()

    assert after.incarnation != before.incarnation
    assert not site.storage.list("ledgers")
    assert site.claim() == after


def test_files_that_are_not_a_bookies_are_never_removed(site: Site) -> None:
    before = site.claim()
    (site.directory / "b" / "thesis.txt").write_text("years of work")

    with pytest.raises(InvalidArgumentError, match=r"thesis\.txt"):
        site.format()

    assert read_marker(site.storage) == before
    assert (site.directory / "b" / "thesis.txt").read_text() == "years of work"


def test_the_partition_of_another_cluster_is_not_formatted(site: Site) -> None:
    other = MemoryCluster()
    other.number()  # so that its instance id is another one
    other.session().initialize_cluster()
    theirs = claim_partition(other.session(), Partition(site.storage), BOOKIE, token=site.token)

    with pytest.raises(InvalidArgumentError, match="belongs to"):
        format_bookie(site.metadata.session(), Partition(site.storage), BOOKIE, token=site.token)
    with pytest.raises(CookieMismatchError, match="another cluster"):
        site.claim()

    assert read_marker(site.storage) == theirs
