"""Tests that every metadata store must pass: subclass once for each back end.

A back end's test module gives a fixture ``stores`` that returns ``Stores``, and

::

    class TestMyStore(MetadataStoreConformance):
        pass
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeVar

import pytest

from spark_bookkeeper.errors import (
    BookKeeperError,
    CookieMismatchError,
    InvalidArgumentError,
    LedgerExistsError,
    MetadataUnavailableError,
    NoClusterError,
    NoSuchLedgerError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import (
    Cookie,
    LedgerChange,
    LedgerRange,
    MetadataStore,
    Registration,
    Versioned,
)
from spark_bookkeeper.metadata.update import delete_ledger, update_ledger
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import (
    NONCE,
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from spark_bookkeeper.protocol.quorum import Quorum

T = TypeVar("T")

A, B, C = (BookieId(f"10.0.0.{n}:3181") for n in (1, 2, 3))

SHORT_LAST = LedgerId((1 << 31) - 2)
LONG_FIRST = LedgerId((1 << 31) - 1)
LAST = LedgerId((1 << 63) - 1)


class Stores(Protocol):
    """Sessions with one metadata store that has no cluster at first."""

    def session(self) -> MetadataStore:
        """Return a new session; the fixture closes it."""

    def hurry(self, store: MetadataStore) -> None:
        """Make a session stop waiting for another one's end."""

    def expire(self, store: MetadataStore) -> None:
        """End a session as a time-out does when its client sends nothing."""

    def answer_lost(self, store: MetadataStore) -> AbstractContextManager[None]:
        """Let the first change in the block take effect, but lose its answer."""

    def request_lost(self, store: MetadataStore) -> AbstractContextManager[None]:
        """Lose the request of the first change in the block."""

    def recreate(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """Delete a ledger, if it exists, and create it again, as another tool does."""


def open_ledger(**changes: object) -> LedgerMetadata:
    """Return the metadata of a ledger as its writer creates it."""
    metadata = LedgerMetadata(
        quorum=Quorum(3, 3, 2),
        state=LedgerState.OPEN,
        fragments=(Fragment(EntryId(0), (A, B, C)),),
        digest_type=DigestType.CRC32C,
        password=b"secret\x00\xff",
        ctime_ms=1_700_000_000_123,
        custom_metadata={"name": b"orders", NONCE: bytes(range(256))},
    )
    return replace(metadata, **changes)  # type: ignore[arg-type]  # the caller's own names


def registration(bookie_id: BookieId, **changes: object) -> Registration:
    """Return a bookie's registration as its agent makes it."""
    said = Registration(
        bookie_id=bookie_id,
        root_uri=f"s3://bucket/{bookie_id}",
        incarnation="0123456789abcdef",
        rack="/eu/1",
        free_bytes=10 << 40,
        total_bytes=20 << 40,
        free_inodes=0,
        total_inodes=20 << 20,
        properties={"zone": "é"},
    )
    return replace(said, **changes)  # type: ignore[arg-type]  # the caller's own names


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until other threads have made a condition true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


class MetadataStoreConformance:
    """Inherited by the tests of every back end."""

    @pytest.fixture
    def store(self, stores: Stores) -> MetadataStore:
        store = stores.session()
        store.initialize_cluster()
        return store

    # Ledgers

    @pytest.mark.parametrize("ledger_id", [0, 9_999, 10_000, SHORT_LAST, LONG_FIRST, LAST])
    def test_a_created_ledger_reads_back(self, store: MetadataStore, ledger_id: int) -> None:
        created = store.create_ledger(LedgerId(ledger_id), open_ledger())

        assert created.value == open_ledger()
        assert created.version == 0
        assert store.read_ledger(LedgerId(ledger_id)) == created

    def test_other_sessions_see_a_write(self, stores: Stores, store: MetadataStore) -> None:
        created = store.create_ledger(LedgerId(7), open_ledger())
        closed = created.value.closed(EntryId(4), 50)

        written = store.write_ledger(LedgerId(7), closed, created)

        assert written.version == 1
        assert written.value == closed
        assert stores.session().read_ledger(LedgerId(7)) == written

    def test_a_taken_id_is_refused(self, stores: Stores, store: MetadataStore) -> None:
        store.create_ledger(LedgerId(7), open_ledger())

        with pytest.raises(LedgerExistsError) as caught:
            stores.session().create_ledger(LedgerId(7), open_ledger(password=b"other"))

        assert caught.value.ledger_id == 7
        assert store.read_ledger(LedgerId(7)).value.password == open_ledger().password

    def test_a_repeated_create_is_recognised_by_its_token(self, store: MetadataStore) -> None:
        mine = open_ledger(ctoken=4711)

        first = store.create_ledger(LedgerId(7), mine)

        assert store.create_ledger(LedgerId(7), mine) == first
        with pytest.raises(LedgerExistsError):
            store.create_ledger(LedgerId(7), open_ledger(ctoken=4712))

    def test_a_create_survives_a_lost_answer(self, stores: Stores, store: MetadataStore) -> None:
        mine = open_ledger(ctoken=4711)

        with stores.answer_lost(store):
            created = _again(lambda: store.create_ledger(LedgerId(7), mine))

        assert created.value == mine
        assert store.read_ledger(LedgerId(7)) == created

    def test_a_create_survives_a_lost_request(self, stores: Stores, store: MetadataStore) -> None:
        with stores.request_lost(store):
            created = _again(lambda: store.create_ledger(LedgerId(7), open_ledger()))

        assert store.read_ledger(LedgerId(7)) == created

    def test_a_stale_write_changes_nothing(self, store: MetadataStore) -> None:
        created = store.create_ledger(LedgerId(7), open_ledger())
        recovering = store.write_ledger(LedgerId(7), created.value.in_recovery(), created)

        with pytest.raises(VersionConflictError):
            store.write_ledger(LedgerId(7), created.value.closed(NO_ENTRY, 0), created)

        assert store.read_ledger(LedgerId(7)) == recovering

    def test_a_deleted_ledger_is_never_written_again(self, store: MetadataStore) -> None:
        created = store.create_ledger(LedgerId(7), open_ledger())
        store.delete_ledger(LedgerId(7), created)

        with pytest.raises(NoSuchLedgerError):
            store.write_ledger(LedgerId(7), created.value.in_recovery(), created)

        with pytest.raises(NoSuchLedgerError) as caught:
            store.read_ledger(LedgerId(7))
        assert caught.value.ledger_id == 7
        assert list(store.ledger_ids()) == []

    def test_deleting_is_idempotent(self, stores: Stores, store: MetadataStore) -> None:
        created = store.create_ledger(LedgerId(7), open_ledger())

        with stores.answer_lost(store):
            _again(lambda: store.delete_ledger(LedgerId(7), created))
        store.delete_ledger(LedgerId(7), created)
        store.delete_ledger(LONG_FIRST, None)
        delete_ledger(store, LedgerId(7))

        assert list(store.ledger_ids()) == []

    def test_an_update_survives_a_lost_answer(self, stores: Stores, store: MetadataStore) -> None:
        store.create_ledger(LedgerId(7), open_ledger())

        with stores.answer_lost(store):
            updated = update_ledger(store, LedgerId(7), LedgerMetadata.in_recovery)

        assert updated.value.state is LedgerState.IN_RECOVERY
        assert updated.version == 1
        assert store.read_ledger(LedgerId(7)) == updated

    def test_an_update_survives_a_lost_request(self, stores: Stores, store: MetadataStore) -> None:
        store.create_ledger(LedgerId(7), open_ledger())

        with stores.request_lost(store):
            updated = update_ledger(store, LedgerId(7), LedgerMetadata.in_recovery)

        assert updated.version == 1
        assert store.read_ledger(LedgerId(7)) == updated

    def test_racing_updates_all_take_effect(self, stores: Stores, store: MetadataStore) -> None:
        store.create_ledger(LedgerId(7), open_ledger(custom_metadata={}))

        def set_keys(name: str) -> None:
            session = stores.session()
            for number in range(5):
                key = f"{name}{number}"
                update_ledger(session, LedgerId(7), partial(_with_key, key))

        _in_threads(*(partial(set_keys, name) for name in "abcd"))

        stored = store.read_ledger(LedgerId(7))
        assert set(stored.value.custom_metadata) == {f"{n}{i}" for n in "abcd" for i in range(5)}
        assert stored.version == 20

    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_metadata_keeps_its_format(self, store: MetadataStore, version: int) -> None:
        old = LedgerMetadata(
            quorum=Quorum(3, 2, 2),
            state=LedgerState.OPEN,
            fragments=(Fragment(EntryId(0), (A, B, C)),),
            format_version=version,
        )
        store.create_ledger(LedgerId(7), old)

        updated = update_ledger(store, LedgerId(7), lambda o: o.closed(EntryId(3), 9))

        assert store.read_ledger(LedgerId(7)) == updated
        assert updated.value == replace(
            old, state=LedgerState.CLOSED, last_entry_id=EntryId(3), length_bytes=9
        )

    def test_fields_of_a_newer_version_survive(self, store: MetadataStore) -> None:
        unknown = b"\xa0\x06\x2a"  # field 100, the number 42
        store.create_ledger(LedgerId(7), open_ledger(foreign=unknown))

        updated = update_ledger(store, LedgerId(7), LedgerMetadata.in_recovery)

        assert updated.value.foreign == unknown
        assert store.read_ledger(LedgerId(7)).value.foreign == unknown

    # No id has two lives

    def test_an_id_that_was_chosen_is_never_used_again(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        for ledger_id in (LedgerId(7), LONG_FIRST, LAST):
            created = store.create_ledger(ledger_id, open_ledger())
            store.delete_ledger(ledger_id, created)

            for is_generated in (False, True):
                with pytest.raises(LedgerExistsError, match="was used before") as caught:
                    stores.session().create_ledger(
                        ledger_id, open_ledger(), is_generated=is_generated
                    )
                assert caught.value.ledger_id == ledger_id
                assert "let one be generated" in caught.value.message

        assert list(store.ledger_ids()) == []

    def test_an_id_that_was_kept_for_a_ledger_is_used_once(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        kept = store.generate_ledger_id()
        store.generate_ledger_id()

        created = stores.session().create_ledger(kept, open_ledger(), is_kept=True)
        store.delete_ledger(kept, created)

        for is_kept, is_generated in ((False, False), (True, False), (False, True)):
            with pytest.raises(LedgerExistsError) as caught:
                store.create_ledger(kept, open_ledger(), is_kept=is_kept, is_generated=is_generated)
            assert caught.value.facts.get("was_used")

    def test_an_id_that_was_used_up_is_for_no_ledger_and_one_that_is_there_stays(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        kept = store.generate_ledger_id()
        store.create_ledger(LedgerId(7), open_ledger())
        assert [store.has_used(LedgerId(i)) for i in (kept, 7, 9)] == [True, True, False]
        assert not store.has_used(kept, is_kept=True)
        for ledger_id in (kept, LedgerId(7), LedgerId(9), LedgerId(9)):
            stores.session().use_up_ledger_id(ledger_id)

        assert store.has_used(LedgerId(9))
        assert store.has_used(kept, is_kept=True)
        assert store.read_ledger(LedgerId(7)).value.quorum == open_ledger().quorum
        for ledger_id in (kept, LedgerId(9)):
            for is_kept, is_generated in ((False, False), (True, False), (False, True)):
                with pytest.raises(LedgerExistsError):
                    store.create_ledger(
                        ledger_id, open_ledger(), is_kept=is_kept, is_generated=is_generated
                    )

    def test_a_create_that_was_deleted_again_does_not_repeat_itself(
        self, store: MetadataStore
    ) -> None:
        mine = open_ledger(ctoken=4711)
        store.delete_ledger(LedgerId(7), store.create_ledger(LedgerId(7), mine))

        with pytest.raises(LedgerExistsError) as caught:
            store.create_ledger(LedgerId(7), mine)
        assert caught.value.facts.get("was_used")

    def test_an_id_that_was_given_out_cannot_be_chosen(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        used, unused, there = (store.generate_ledger_id() for _ in range(3))
        created = store.create_ledger(used, open_ledger(), is_generated=True)
        store.delete_ledger(used, created)
        store.create_ledger(there, open_ledger(), is_generated=True)

        for ledger_id in (used, unused):
            with pytest.raises(LedgerExistsError, match="given out by the cluster's counter"):
                stores.session().create_ledger(ledger_id, open_ledger())
        with pytest.raises(LedgerExistsError, match="exists already"):
            stores.session().create_ledger(there, open_ledger())
        store.create_ledger(LedgerId(there + 1), open_ledger())

    def test_a_generated_id_passes_over_those_that_were_chosen(self, store: MetadataStore) -> None:
        deleted, there = LedgerId(1), LedgerId(2)
        store.delete_ledger(deleted, store.create_ledger(deleted, open_ledger()))
        store.create_ledger(there, open_ledger())

        made: list[LedgerId] = []
        for _ in range(4):
            ledger_id = store.generate_ledger_id()
            with suppress(LedgerExistsError):
                store.create_ledger(ledger_id, open_ledger(), is_generated=True)
                made.append(ledger_id)

        assert made == [0, 3]

    @pytest.mark.parametrize("nonce", [b"other", None])
    @pytest.mark.parametrize("writes", [0, 1, 2])
    def test_what_another_tool_made_again_is_never_taken_for_its_predecessor(
        self, stores: Stores, store: MetadataStore, nonce: bytes | None, writes: int
    ) -> None:
        first = store.create_ledger(LedgerId(7), open_ledger())
        for number in range(writes):
            changed = first.value.with_custom(n=b"%d" % number)
            first = store.write_ledger(LedgerId(7), changed, first)
        made_again = _with_nonce(nonce)
        stores.recreate(LedgerId(7), made_again)
        second = store.read_ledger(LedgerId(7))
        for number in range(writes):  # so that both have the same version
            changed = second.value.with_custom(m=b"%d" % number)
            second = store.write_ledger(LedgerId(7), changed, second)
        assert second.version == first.version

        with pytest.raises(VersionConflictError):
            store.write_ledger(LedgerId(7), first.value.in_recovery(), first)
        with pytest.raises(VersionConflictError):
            store.delete_ledger(LedgerId(7), first)
        with pytest.raises(NoSuchLedgerError, match="created another with the same id"):
            update_ledger(store, LedgerId(7), LedgerMetadata.in_recovery, known=first)
        delete_ledger(store, LedgerId(7), known=first)

        assert store.read_ledger(LedgerId(7)) == second
        delete_ledger(store, LedgerId(7))
        assert list(store.ledger_ids()) == []

    def test_a_delete_whose_answer_was_lost_does_not_reach_the_next_ledger(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        first = store.create_ledger(LedgerId(7), open_ledger())

        with stores.answer_lost(store), suppress(MetadataUnavailableError):
            store.delete_ledger(LedgerId(7), first)
        stores.recreate(LedgerId(7), _with_nonce(b"other"))
        delete_ledger(store, LedgerId(7), known=first)

        assert store.read_ledger(LedgerId(7)).value.nonce == b"other"

    def test_a_ledger_that_another_tool_restored_goes_on(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        first = store.create_ledger(LedgerId(7), open_ledger())
        stores.recreate(LedgerId(7), open_ledger())

        updated = update_ledger(store, LedgerId(7), LedgerMetadata.in_recovery, known=first)

        assert store.read_ledger(LedgerId(7)) == updated

    # Listing and ids

    def test_ledgers_are_listed_in_order(self, store: MetadataStore) -> None:
        ids = [1, 2, 9_999, 10_000, 123_456_789, SHORT_LAST, LONG_FIRST, 1 << 33, LAST]
        store.register(registration(A))
        store.write_cookie(_cookie(A), None)
        store.generate_ledger_id()
        for ledger_id in reversed(ids):
            store.create_ledger(LedgerId(ledger_id), open_ledger())

        assert list(store.ledger_ids()) == ids

    def test_ledgers_are_listed_range_by_range(self, store: MetadataStore) -> None:
        """The ranges contain every ledger once, including new ones."""
        ids = [0, 1, 9_999, 10_000, 25_000, 25_001, SHORT_LAST, LONG_FIRST, 1 << 33, LAST]
        for ledger_id in ids:
            store.create_ledger(LedgerId(ledger_id), open_ledger())

        for ledgers in (1, 4, 1_000_000):
            ranges = list(store.ledger_ranges(ledgers))
            listed = [list(store.ledger_ids(each)) for each in ranges]

            assert (ranges[0].first, ranges[-1].end) == (0, LAST + 1)
            assert all(one.end == next_.first for one, next_ in pairwise(ranges))
            assert [ledger_id for some in listed for ledger_id in some] == ids
            assert [each.ledgers for each in ranges] == [len(some) for some in listed]
            assert (len(ranges) == 1) == (ledgers > len(ids))
        store.create_ledger(LedgerId(777_777), open_ledger())
        store.create_ledger(LedgerId(25_002), open_ledger())
        found = [i for each in store.ledger_ranges(4) for i in store.ledger_ids(each)]
        assert found == sorted([*ids, 777_777, 25_002])
        between = LedgerRange(LedgerId(9_999), 25_002, 0)
        assert list(store.ledger_ids(between)) == [9_999, 10_000, 25_000, 25_001]

    def test_without_ledgers_there_is_one_range(self, store: MetadataStore) -> None:
        assert list(store.ledger_ranges(5)) == [LedgerRange(LedgerId(0), LAST + 1, 0)]

    def test_many_ledgers_are_read_at_once(self, store: MetadataStore) -> None:
        ids = [LedgerId(n) for n in range(40)]
        created = {i: store.create_ledger(i, open_ledger()) for i in ids if i % 3}

        read = list(store.read_ledgers(iter(ids)))

        assert read == [(i, created.get(i)) for i in ids]

    def test_many_ledgers_are_looked_through_for_some_bookies(self, store: MetadataStore) -> None:
        other = BookieId("10.0.0.4:3181")
        old, new = open_ledger(), open_ledger().with_new_ensemble(EntryId(4), (A, B, other))
        created = {
            LedgerId(n): store.create_ledger(LedgerId(n), new if n % 3 == 0 else old)
            for n in range(1, 40)
        }
        ids = [LedgerId(n) for n in range(41)]
        gone = [(LedgerId(0), None), (LedgerId(40), None)]

        def look(*bookies: BookieId) -> list[tuple[LedgerId, object]]:
            return list(store.read_ledgers(iter(ids), naming=set(bookies)))

        changed = [(i, found) for i, found in created.items() if i % 3 == 0]
        assert look(other) == [gone[0], *changed, gone[1]], "not only in the first ensemble"
        assert look(other, A) == [gone[0], *created.items(), gone[1]]
        assert look(BookieId("nobody:3181")) == look() == gone

    def test_many_ledgers_are_written_at_once_each_by_itself(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        ids = [LedgerId(n) for n in range(150)]
        found = {i: store.create_ledger(i, open_ledger()) for i in ids}
        changed, deleted = ids[3], ids[70]
        other = stores.session()
        newer = other.write_ledger(changed, found[changed].value.in_recovery(), found[changed])
        other.delete_ledger(deleted, found[deleted])

        answers = store.write_ledgers(
            [LedgerChange(i, found[i].value.in_recovery(), found[i]) for i in ids]
        )

        assert len(answers) == len(ids)
        for ledger_id, answer in zip(ids, answers, strict=True):
            if ledger_id in (changed, deleted):
                assert isinstance(answer, BookKeeperError)
            else:
                assert answer == store.read_ledger(ledger_id)
                assert isinstance(answer, Versioned)
                assert answer.value.state is LedgerState.IN_RECOVERY
        assert store.read_ledger(changed) == newer
        assert [found for _, found in store.read_ledgers([deleted])] == [None]
        again = [a for a in answers if isinstance(a, Versioned)]
        assert store.write_ledgers([]) == []
        closing = LedgerChange(ids[0], again[0].value.closed(EntryId(-1), 0), again[0])
        assert store.write_ledgers([closing]) == [store.read_ledger(ids[0])]

    def test_generated_ids_are_unique(self, stores: Stores, store: MetadataStore) -> None:
        given: list[LedgerId] = []

        def generate() -> None:
            session = stores.session()
            given.extend(session.generate_ledger_id() for _ in range(20))

        _in_threads(generate, generate, generate, generate)

        assert len(set(given)) == 80
        assert list(store.ledger_ids()) == []

    # Writers

    def test_a_writer_is_seen_until_it_closes_its_ledger(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        writer, reader = stores.session(), stores.session()
        created = writer.create_ledger(LedgerId(7), open_ledger(), writer="ab12")
        store.create_ledger(LedgerId(8), open_ledger())  # no writer is shown
        assert reader.writers() == {(7, "ab12")}
        assert reader.has_writer(LedgerId(7), "ab12")
        assert not reader.has_writer(LedgerId(7), "ab13"), "of another life of the id"
        assert not reader.has_writer(LedgerId(8), "ab12")

        changed = writer.write_ledger(LedgerId(7), created.value.with_custom(more=b""), created)
        assert reader.has_writer(LedgerId(7), "ab12")
        writer.write_ledger(LedgerId(7), changed.value.closed(EntryId(4), 50), changed)

        assert not reader.has_writer(LedgerId(7), "ab12")
        assert reader.writers() == frozenset()
        writer.leave_ledger(LedgerId(7))
        writer.leave_ledger(LedgerId(8))

    def test_a_writer_that_leaves_is_gone(self, stores: Stores, store: MetadataStore) -> None:
        store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")

        store.leave_ledger(LedgerId(7))
        store.leave_ledger(LedgerId(7))

        eventually(lambda: not stores.session().has_writer(LedgerId(7), "ab12"))

    def test_a_writer_goes_with_its_session(self, stores: Stores, store: MetadataStore) -> None:
        writer = stores.session()
        for ledger_id in (7, 8):
            writer.create_ledger(LedgerId(ledger_id), open_ledger(), writer="ab12")
        assert len(store.writers()) == 2

        writer.close()

        assert store.writers() == frozenset()

    def test_a_writer_whose_session_was_lost_is_seen_again(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        writer = stores.session()
        for ledger_id in (7, 8, 9):
            writer.create_ledger(LedgerId(ledger_id), open_ledger(), writer="ab12")
        writer.leave_ledger(LedgerId(9))
        lost = threading.Event()
        writer.on_session_lost(lost.set)

        stores.expire(writer)
        assert lost.wait(60)

        eventually(lambda: store.writers() == {(7, "ab12"), (8, "ab12")})

    def test_who_asked_to_hear_of_lost_sessions_no_more_hears_nothing(self, stores: Stores) -> None:
        session = stores.session()
        heard: list[str] = []
        lost = threading.Event()
        stop = session.on_session_lost(lambda: heard.append("not any more"))
        session.on_session_lost(lambda: heard.append("still"))
        session.on_session_lost(lost.set)
        stop()
        stop()

        stores.expire(session)
        assert lost.wait(60)

        eventually(lambda: heard == ["still"])

    def test_who_is_refused_a_ledger_does_not_write_it(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")

        with pytest.raises(LedgerExistsError):
            stores.session().create_ledger(LedgerId(7), open_ledger(), writer="cd34")

        eventually(lambda: store.writers() == {(7, "ab12")})

    def test_a_second_create_of_an_id_takes_nothing_from_the_first_writer_of_the_session(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        created = store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")

        with pytest.raises(LedgerExistsError):
            store.create_ledger(LedgerId(7), open_ledger(), writer="cd34")

        eventually(lambda: store.writers() == {(7, "ab12")})
        store.write_ledger(LedgerId(7), created.value.closed(EntryId(4), 50), created)
        assert store.writers() == frozenset()

    def test_a_writer_is_seen_after_a_lost_answer(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        for losing, ledger_id in ((stores.answer_lost, 7), (stores.request_lost, 8)):
            mine = open_ledger(ctoken=4711)
            with losing(store):
                _again(partial(store.create_ledger, LedgerId(ledger_id), mine, writer="ab12"))

        eventually(lambda: stores.session().writers() == {(7, "ab12"), (8, "ab12")})

    def test_a_writer_hears_that_its_ledger_was_deleted(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        heard: list[int] = []
        writer = stores.session()
        for ledger_id in (7, 8, 9):
            created = writer.create_ledger(LedgerId(ledger_id), open_ledger(), writer="ab12")
            writer.watch_ledger(LedgerId(ledger_id), partial(heard.append, ledger_id))
            written = writer.write_ledger(
                LedgerId(ledger_id), created.value.with_custom(more=b""), created
            )
            store.write_ledger(LedgerId(ledger_id), created.value, written)
        writer.leave_ledger(LedgerId(8))

        store.delete_ledger(LedgerId(8), None)
        store.delete_ledger(LedgerId(7), None)
        eventually(lambda: heard != [])
        stores.expire(writer)
        store.delete_ledger(LedgerId(9), None)

        eventually(lambda: len(heard) > 1)
        assert heard == [7, 9]

    # Registers of ours

    def test_a_register_changes_by_compare_and_swap(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        registers, others = store.registers, stores.session().registers
        assert registers.read("logs/orders") is None

        created = registers.create("logs/orders", b"one")
        written = others.write("logs/orders", b"two", created.version)

        assert (created.value, written.value) == (b"one", b"two")
        assert registers.read("logs/orders") == written
        with pytest.raises(VersionConflictError):
            registers.write("logs/orders", b"three", created.version)
        with pytest.raises(VersionConflictError):
            registers.create("logs/orders", b"three")
        with pytest.raises(VersionConflictError):
            registers.write("logs/nothing", b"three", 0)
        assert registers.read("logs/orders") == written

    def test_a_register_that_holds_the_same_bytes_counts_as_created(
        self, store: MetadataStore
    ) -> None:
        first = store.registers.create("a/b/c", b"one")

        assert store.registers.create("a/b/c", b"one") == first

    def test_a_register_that_was_changed_since_it_was_read_is_not_deleted(
        self, store: MetadataStore
    ) -> None:
        registers = store.registers
        first = registers.create("consumers/orders/etl", b"one")
        second = registers.write("consumers/orders/etl", b"two", first.version)

        with pytest.raises(VersionConflictError):
            registers.delete("consumers/orders/etl", first.version)
        assert registers.read("consumers/orders/etl") == second
        for _ in range(2):
            registers.delete("consumers/orders/etl", second.version)
        assert registers.read("consumers/orders/etl") is None

    def test_registers_are_listed_by_the_last_part_of_their_names(
        self, store: MetadataStore
    ) -> None:
        for name in ("logs/b", "logs/a", "logs/a/chunk", "other/c"):
            store.registers.create(name, b"x")

        assert store.registers.names("logs") == ["a", "b"]
        assert store.registers.names("logs/a") == ["chunk"]
        assert store.registers.names("nothing") == []
        store.registers.delete("logs/a/chunk")
        store.registers.delete("logs/a/chunk")
        assert store.registers.names("logs/a") == []

    def test_many_registers_are_read_in_order(self, store: MetadataStore) -> None:
        names = [f"autorecovery/notes/0/{number}" for number in range(150)]
        written = {name: store.registers.create(name, name.encode()) for name in names[::2]}

        found = list(store.registers.read_many(reversed(names)))

        assert found == [(name, written.get(name)) for name in reversed(names)]
        assert list(store.registers.read_many([])) == []

    def test_who_watches_a_register_knows_without_asking_whether_it_is_as_it_was(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        others = stores.session().registers
        at_first = store.registers.watch("logs/orders")
        assert at_first()
        others.create("logs/another", b"x")
        created = others.create("logs/orders", b"one")
        eventually(lambda: not at_first())

        made = store.registers.watch("logs/orders")
        assert store.registers.read("logs/orders") == created
        assert made()
        others.write("logs/orders", b"two", created.version)
        eventually(lambda: not made())
        written = store.registers.watch("logs/orders")
        others.delete("logs/orders")
        eventually(lambda: not written())

    def test_who_watches_metadata_knows_without_asking_whether_they_are_as_they_were(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        other = stores.session()
        absent = store.watch_metadata(LedgerId(7))
        known = other.create_ledger(LedgerId(7), open_ledger())
        eventually(lambda: not absent())

        there = store.watch_metadata(LedgerId(7))
        other.create_ledger(LedgerId(8), open_ledger())
        assert there()
        other.write_ledger(LedgerId(7), known.value, known)
        eventually(lambda: not there())
        changed = store.watch_metadata(LedgerId(7))
        other.delete_ledger(LedgerId(7), None)
        eventually(lambda: not changed())

    def test_what_became_of_something_watched_while_the_session_ended_is_known(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        created = store.registers.create("logs/orders", b"one")
        unchanged = store.registers.watch("logs/orders")
        stores.expire(store)
        stores.session().registers.write("logs/orders", b"two", created.version)

        eventually(lambda: not unchanged())

    def test_a_change_of_a_register_whose_answer_was_lost_is_made_once(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        def add_one(old: int) -> int:
            return old + 1

        def change() -> int:
            return change_register(
                store.registers,
                "counter",
                lambda found: 0 if found is None else int(found.value),
                lambda value: b"%d" % value,
                add_one,
            )

        with stores.answer_lost(store):
            assert change() == 1
        with stores.answer_lost(store):
            assert change() == 2
        with stores.request_lost(store):
            assert change() == 3

    # Bookies

    def test_a_cookie_is_created_once(self, stores: Stores, store: MetadataStore) -> None:
        assert store.read_cookie(A) is None
        store.write_cookie(_cookie(A), None)

        with pytest.raises(VersionConflictError):
            stores.session().write_cookie(_cookie(A, incarnation="other"), None)

        found = store.read_cookie(A)
        assert found is not None
        assert (found.value, found.version) == (_cookie(A), 0)

    def test_a_cookie_is_replaced_by_its_version(self, store: MetadataStore) -> None:
        with pytest.raises(VersionConflictError):
            store.write_cookie(_cookie(A), 0)
        store.write_cookie(_cookie(A), None)
        store.write_cookie(_cookie(A, incarnation="second"), 0)

        with pytest.raises(VersionConflictError):
            store.write_cookie(_cookie(A, incarnation="third"), 0)

        found = store.read_cookie(A)
        assert found is not None
        assert (found.value.incarnation, found.version) == ("second", 1)

    def test_a_cookie_survives_lost_answers(self, stores: Stores, store: MetadataStore) -> None:
        with stores.answer_lost(store):
            _unless_there(lambda: store.write_cookie(_cookie(A), None))
        with stores.answer_lost(store):
            _unless_there(lambda: store.write_cookie(_cookie(A, incarnation="second"), 0))

        found = store.read_cookie(A)
        assert found is not None
        assert (found.value.incarnation, found.version) == ("second", 1)

    def test_a_cookie_is_deleted_by_its_version(self, store: MetadataStore) -> None:
        assert store.cookie_version(A) is None
        store.write_cookie(_cookie(A), None)
        store.write_cookie(_cookie(A), 0)
        assert store.cookie_version(A) == 1

        with pytest.raises(VersionConflictError):
            store.delete_cookie(A, 0)
        store.delete_cookie(A, 1)
        store.delete_cookie(A, 1)

        assert store.read_cookie(A) is None
        assert store.cookie_version(A) is None

    def test_cookies_are_listed_in_order(self, store: MetadataStore) -> None:
        for bookie_id in (C, A, B):
            store.write_cookie(_cookie(bookie_id), None)

        assert [found.value for found in store.cookies()] == [_cookie(b) for b in (A, B, C)]

    def test_a_cookie_may_lack_what_foreign_ones_lack(self, store: MetadataStore) -> None:
        bare = Cookie(A, "/data/a b/é#1", incarnation="", instance_id=None)
        store.write_cookie(bare, None)

        assert [found.value for found in store.cookies()] == [bare]

    def test_registered_bookies_are_seen_by_all(self, stores: Stores, store: MetadataStore) -> None:
        writable, readonly = registration(B), registration(A, is_readonly=True)
        store.register(writable)
        store.register(readonly)

        assert stores.session().registrations() == [readonly, writable]

    def test_an_answer_is_preceded_by_what_became_of_bookies(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        agent = stores.session()
        changes: list[Callable[[], None]] = [
            lambda: agent.register(registration(A)),
            lambda: agent.register(registration(A, free_bytes=5)),
            lambda: agent.register(registration(A, is_readonly=True)),
            lambda: agent.register(registration(B)),
            lambda: agent.unregister(A),
            agent.close,
        ]
        for change in changes:
            store.last_registrations()
            change()
            store.generate_ledger_id()

            assert store.last_registrations() == stores.session().registrations()

    def test_a_bookie_changes_its_mode_and_its_properties(self, store: MetadataStore) -> None:
        for changed in (
            registration(A),
            registration(A, free_bytes=5),
            registration(A, is_readonly=True, free_bytes=0),
            registration(A, properties={}),
        ):
            store.register(changed)

            assert store.registrations() == [changed]

    def test_unregistering_takes_away_only_ones_own(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        store.register(registration(A))
        other = stores.session()
        other.unregister(A)
        assert [r.bookie_id for r in store.registrations()] == [A]

        store.unregister(A)
        store.unregister(A)

        assert store.registrations() == []

    @pytest.mark.parametrize("is_readonly", [False, True])
    @pytest.mark.parametrize("is_other_readonly", [False, True])
    def test_a_registration_is_held_by_one_session(
        self, stores: Stores, store: MetadataStore, is_readonly: bool, is_other_readonly: bool
    ) -> None:
        held = registration(A, is_readonly=is_readonly)
        store.register(held)
        other = stores.session()
        stores.hurry(other)

        with pytest.raises(CookieMismatchError) as caught:
            other.register(registration(A, incarnation="other", is_readonly=is_other_readonly))

        assert caught.value.bookie_id == A
        assert store.registrations() == [held]

    def test_a_registration_goes_when_its_session_closes(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        other = stores.session()
        other.register(registration(A))
        other.register(registration(B, is_readonly=True))

        other.close()
        other.close()

        assert store.registrations() == []

    def test_a_registration_goes_when_its_session_is_lost(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        lost = threading.Event()
        agent = stores.session()
        agent.register(registration(A))
        agent.on_session_lost(lost.set)

        stores.expire(agent)

        assert lost.wait(60)
        eventually(lambda: store.registrations() == [])
        agent.register(registration(A))
        assert store.registrations() == [registration(A)]

    def test_a_watcher_hears_of_every_coming_and_going(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        heard = threading.Semaphore(0)
        agent = stores.session()
        stop = store.watch_registrations(heard.release)

        agent.register(registration(A))
        assert heard.acquire(timeout=60)
        agent.register(registration(A, is_readonly=True))
        assert heard.acquire(timeout=60)
        while heard.acquire(timeout=0.3):  # some stores report a change of mode twice
            pass
        stores.expire(agent)
        assert heard.acquire(timeout=60)
        stop()
        eventually(lambda: store.registrations() == [])

        # A later watcher shows when the stopped one would have been called. A call that was on its
        # way at the stop may still arrive, and no other.
        heard_later: list[int] = []
        stop_later = store.watch_registrations(lambda: heard_later.append(len(heard_later)))
        store.register(registration(B))
        eventually(lambda: len(heard_later) > 0)
        while heard.acquire(blocking=False):
            pass
        so_far = len(heard_later)
        store.register(registration(C))
        eventually(lambda: len(heard_later) > so_far)
        assert not heard.acquire(blocking=False)
        stop_later()

    # The cluster

    def test_a_cluster_is_made_once(self, stores: Stores, store: MetadataStore) -> None:
        store.create_ledger(LedgerId(7), open_ledger())

        with pytest.raises(InvalidArgumentError):
            stores.session().initialize_cluster()

        assert store.instance_id() == stores.session().instance_id()
        assert list(store.ledger_ids()) == [7]

    def test_a_cluster_that_is_formatted_begins_again_under_another_name(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        before = store.instance_id()
        _fill(store)

        after = store.format_cluster()

        other = stores.session()
        assert other.instance_id() == store.instance_id() == after != before
        assert list(other.ledger_ids()) == []
        assert other.cookies() == []
        assert other.registers.read("r") is None
        assert list(other.underreplication.ledger_ids()) == []
        other.create_ledger(LedgerId(7), open_ledger())  # its id was used in the former cluster
        store.write_cookie(_cookie(A), None)
        assert [cookie.value.bookie_id for cookie in other.cookies()] == [A]

    def test_a_cluster_that_is_removed_is_none_and_can_be_made_again(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        before = store.instance_id()
        _fill(store)

        store.remove_cluster()

        with pytest.raises(NoClusterError):
            stores.session().instance_id()
        with pytest.raises(NoClusterError):
            list(store.ledger_ids())
        made = stores.session().initialize_cluster()
        assert made != before
        assert list(stores.session().ledger_ids()) == []

    def test_making_a_cluster_survives_a_lost_answer(self, stores: Stores) -> None:
        store = stores.session()

        with stores.answer_lost(store):
            _unless_there(store.initialize_cluster)

        assert len(store.instance_id()) == 36
        assert store.cookies() == []

    def test_without_a_cluster_everything_says_so(self, stores: Stores) -> None:
        store = stores.session()
        calls: list[Callable[[], object]] = [
            store.instance_id,
            store.generate_ledger_id,
            store.registrations,
            store.cookies,
            lambda: store.create_ledger(LedgerId(1), open_ledger()),
            lambda: store.read_ledger(LedgerId(1)),
            lambda: store.delete_ledger(LedgerId(1), None),
            store.writers,
            lambda: store.has_writer(LedgerId(1), "ab12"),
            lambda: list(store.ledger_ids()),
            lambda: list(store.ledger_ranges(5)),
            lambda: list(store.read_ledgers([LedgerId(1)])),
            lambda: store.register(registration(A)),
            lambda: store.write_cookie(_cookie(A), None),
        ]

        for call in calls:
            with pytest.raises(NoClusterError, match="cluster init"):
                call()

        store.initialize_cluster()
        assert store.registrations() == []

    def test_a_closed_store_refuses(self, store: MetadataStore) -> None:
        store.close()
        store.close()

        with pytest.raises(MetadataUnavailableError, match="closed"):
            store.read_ledger(LedgerId(1))


def _cookie(bookie_id: BookieId, incarnation: str = "first") -> Cookie:
    return Cookie(
        bookie_id=bookie_id,
        root_uri=f"file:///data/{bookie_id}",
        incarnation=incarnation,
        instance_id="ccb3dcc6-6bca-47a5-bd1a-18b99e6345e7",
    )


def _with_nonce(nonce: bytes | None) -> LedgerMetadata:
    return open_ledger(custom_metadata={} if nonce is None else {NONCE: nonce})


def _with_key(key: str, old: LedgerMetadata) -> LedgerMetadata:
    return old.with_custom(**{key: b""})


def _again(call: Callable[[], T]) -> T:
    """Repeat a call whose outcome is unknown; some stores resolve it themselves."""
    try:
        return call()
    except MetadataUnavailableError:
        return call()


def _unless_there(call: Callable[[], object]) -> None:
    """Make a change that raises when it is made twice."""
    with suppress(MetadataUnavailableError):
        call()


def _in_threads(*calls: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  (raised below, in the test's thread)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _fill(store: MetadataStore) -> None:
    """Store one of each kind of thing that a cluster has."""
    for ledger_id in (LedgerId(7), LedgerId(70_000), LedgerId(1 << 40)):
        made = store.create_ledger(ledger_id, open_ledger())
        store.write_ledger(ledger_id, made.value.in_recovery(), made)
    store.generate_ledger_id()
    store.write_cookie(_cookie(A), None)
    store.registers.create("r", b"x")
    store.underreplication.mark(LedgerId(7), [A], 1)
