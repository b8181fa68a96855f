"""A ledger that takes the counter's next id in the transaction that creates it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, MarshallingError, NoAuthError
from kazoo.protocol.serialization import GetData

from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.lifecycle import make_ledger
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    MetadataUnavailableError,
    NotEnoughBookiesError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.multi_write import MultiWrite
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.conformance.metadata import open_ledger
from spark_bookkeeper.testing.znodes import ZNodes
from tests.metadata.conftest import begin_session

ROOT = "/ledgers"
BOOKIES = [BookieId(f"10.0.0.{n}:3181") for n in range(1, 6)]


@pytest.fixture
def store(store: ZooKeeperStore) -> ZooKeeperStore:
    """With four bookies."""
    for bookie in BOOKIES[:4]:
        store.register(registration(bookie))
    return store


def registration(bookie: BookieId, incarnation: str = "3f2a") -> Registration:
    return Registration(bookie, "file:///somewhere", incarnation)


def context(store: ZooKeeperStore, writer: WriterInfo | None = None) -> ClientContext:
    runtime = ThreadRuntime()

    def opener(*_: object) -> Any:
        raise AssertionError("no bookie is asked")

    return ClientContext(
        store, Bookies(store, opener, runtime), runtime, ClientConfig(), writer=writer
    )


def ids_given(store: ZooKeeperStore) -> int:
    return next(n for n in range(1_000) if not store._ids.has_given(LedgerId(n)))


def in_a_row(store: ZooKeeperStore) -> None:
    """Somebody makes one ledger after the other: 0 and 1."""
    for number in range(2):
        assert not store.knows_next_ledger_id()
        assert store.generate_ledger_id() == number
        store.create_ledger(LedgerId(number), open_ledger(), is_generated=True)


def test_from_the_third_ledger_in_a_row_the_id_is_taken_with_its_creation(
    store: ZooKeeperStore, other: ZooKeeperStore
) -> None:
    in_a_row(store)

    for number in range(2, 6):
        assert store.knows_next_ledger_id()
        made = store.create_next_ledger(open_ledger())
        assert made == (number, store.read_ledger(LedgerId(number)))
        assert ids_given(other) == number + 1, "and none is left out"
    assert other.generate_ledger_id() == 6
    assert list(store.ledger_ids()) == [0, 1, 2, 3, 4, 5]


def test_nothing_is_written_where_somebody_else_has_asked_meanwhile(
    store: ZooKeeperStore, other: ZooKeeperStore, znodes: ZNodes
) -> None:
    in_a_row(store)
    assert store.knows_next_ledger_id()
    assert other.generate_ledger_id() == 2
    before = sorted(znodes.nodes)

    assert store.create_next_ledger(open_ledger(), writer="a0") is None

    assert sorted(znodes.nodes) == before
    assert ids_given(other) == 3
    other.create_ledger(LedgerId(2), open_ledger(), is_generated=True)
    assert not store.knows_next_ledger_id()
    for number in (3, 4):
        assert store.generate_ledger_id() == number
        assert not store.knows_next_ledger_id()
    assert store.generate_ledger_id() == 5
    assert store.knows_next_ledger_id(), "after a wrong guess one more in a row than before"


@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_expected_id_that_was_chosen_is_not_used(
    store: ZooKeeperStore, other: ZooKeeperStore, is_deleted: bool
) -> None:
    in_a_row(store)
    chosen = other.create_ledger(LedgerId(2), open_ledger())
    if is_deleted:
        other.delete_ledger(LedgerId(2), chosen)

    assert store.create_next_ledger(open_ledger()) is None

    assert ids_given(other) == 2
    assert make_ledger(context(store), Quorum(3, 3, 2))[0].ledger_id == 3


def test_threads_that_make_ledgers_side_by_side_take_one_id_each(store: ZooKeeperStore) -> None:
    in_a_row(store)
    makes = context(store, WriterInfo("here", 1, "me", "test"))

    def make(_: int) -> LedgerId:
        return make_ledger(makes, Quorum(3, 3, 2))[0].ledger_id

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(make, range(40)))

    assert sorted(made) == list(range(2, 42)), "and none is left out"
    assert sorted(ledger_id for ledger_id, _ in store.writers()) == sorted(made)


def test_short_ids_that_run_out_are_not_expected(store: ZooKeeperStore, znodes: ZNodes) -> None:
    znodes.nodes[paths.short_ids(ROOT)].made_below = paths.LONG_ID_FIRST - 2

    for number in (2, 1):
        assert store.generate_ledger_id() == paths.LONG_ID_FIRST - number
    assert store.create_next_ledger(open_ledger()) is None


def test_parents_that_nobody_has_made_yet_are_made(store: ZooKeeperStore, znodes: ZNodes) -> None:
    znodes.nodes[paths.short_ids(ROOT)].made_below = 9_998
    made = [make_ledger(context(store), Quorum(3, 3, 2))[0].ledger_id for _ in range(5)]

    assert made == [9_998, 9_999, 10_000, 10_001, 10_002]


@pytest.mark.parametrize("becomes", ["gone", "read-only", "formatted again"])
def test_a_ledger_whose_bookies_changed_before_it_was_there_is_made_again(
    store: ZooKeeperStore, other: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    makes = context(store)
    quorum = Quorum(4, 4, 2)
    for _ in range(2):
        make_ledger(makes, quorum)
    create = store.create_next_ledger

    def meanwhile(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(store, "create_next_ledger", create)
        lost = BOOKIES[0]
        store.unregister(lost)
        if becomes == "read-only":
            other.register(Registration(lost, "file:///somewhere", "3f2a", is_readonly=True))
        elif becomes == "formatted again":
            other.register(registration(lost, "b7c1"))
        other.register(registration(BOOKIES[4]))
        return create(*arguments, **named)

    monkeypatch.setattr(store, "create_next_ledger", meanwhile)
    ledger, _ = make_ledger(makes, quorum)

    alive = {each.bookie_id: each for each in other.registrations() if not each.is_readonly}
    assert ledger.ledger_id == 3
    assert all(alive[b].incarnation == i for b, i in ledger.incarnations.items())
    assert list(other.ledger_ids()) == [0, 1, 3]
    assert make_ledger(makes, quorum)[0].ledger_id == 4


@pytest.mark.parametrize("fails", [None, "delete_ledger", "last_registrations"])
@pytest.mark.parametrize(
    "error", [MetadataUnavailableError, VersionConflictError, KeyboardInterrupt]
)
def test_nobody_is_shown_as_the_writer_of_a_ledger_that_was_given_up(
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    monkeypatch: pytest.MonkeyPatch,
    fails: str | None,
    error: type[BaseException],
) -> None:
    makes = context(store, WriterInfo("here", 1, "me", "test"))
    for _ in range(2):
        make_ledger(makes, Quorum(4, 4, 2))
    shown = other.writers()
    assert {ledger_id for ledger_id, _ in shown} == {0, 1}
    create = store.create_next_ledger

    def fail(*_: object) -> Any:
        raise error("just now")

    def meanwhile(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(store, "create_next_ledger", create)
        store.unregister(BOOKIES[0])
        created = create(*arguments, **named)
        assert {ledger_id for ledger_id, _ in other.writers()} == {0, 1, 2}
        if fails is not None:
            monkeypatch.setattr(store, fails, fail)
        return created

    monkeypatch.setattr(store, "create_next_ledger", meanwhile)
    with pytest.raises(NotEnoughBookiesError if fails is None else error):
        make_ledger(makes, Quorum(4, 4, 2))

    assert other.writers() == shown


def test_access_rules_that_keep_a_number_from_being_taken_keep_nobody_from_creating(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    znodes.kept_below.add(paths.short_ids(ROOT))
    makes = context(store, WriterInfo("here", 1, "me", "test"))
    tried: list[object] = []
    create = store.create_next_ledger

    def noted(*arguments: Any, **named: Any) -> Any:
        tried.append(create(*arguments, **named))
        return tried[-1]

    monkeypatch.setattr(store, "create_next_ledger", noted)

    made = [make_ledger(makes, Quorum(3, 3, 2))[0].ledger_id for _ in range(6)]

    assert made == [0, 1, 2, 3, 4, 5]
    assert tried == [None], "and not again"
    assert sorted(ledger_id for ledger_id, _ in store.writers()) == made


def test_ids_are_taken_again_after_a_refusal_that_is_not_of_access_rules(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_row(store)
    carry_out = znodes.carry_out

    def refused(request: Any, session: int) -> Any:
        monkeypatch.setattr(znodes, "carry_out", carry_out)
        raise MarshallingError

    monkeypatch.setattr(znodes, "carry_out", refused)
    assert store.create_next_ledger(open_ledger()) is None
    for number in (2, 3):
        assert store.generate_ledger_id() == number
    assert store.knows_next_ledger_id()

    made = store.create_next_ledger(open_ledger())

    assert made is not None
    assert made[0] == 4


def test_a_ledger_that_may_be_there_is_not_made_again_when_access_rules_hide_it(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_row(store)
    carry_out = znodes.carry_out

    def lost(request: Any, session: int) -> Any:
        if isinstance(request, MultiWrite):
            carry_out(request, session)
            raise ConnectionLoss
        if isinstance(request, GetData):
            raise NoAuthError
        return carry_out(request, session)

    monkeypatch.setattr(znodes, "carry_out", lost)

    with pytest.raises(MetadataUnavailableError, match="may or may not have been made"):
        store.create_next_ledger(open_ledger())


def test_the_ledger_that_another_client_made_where_a_request_was_lost_is_its_own(
    store: ZooKeeperStore, other: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_row(store)
    carry_out = znodes.carry_out

    def lost(request: Any, session: int) -> Any:
        monkeypatch.setattr(znodes, "carry_out", carry_out)
        assert other.generate_ledger_id() == 2
        other.create_ledger(LedgerId(2), open_ledger(), is_generated=True, writer="b1")
        raise ConnectionLoss

    monkeypatch.setattr(znodes, "carry_out", lost)
    assert store.create_next_ledger(open_ledger(), writer="a0") is None

    assert znodes.carry_out == carry_out, "the request was lost"
    assert list(other.ledger_ids()) == [0, 1, 2]
    assert other.writers() == {(2, "b1")}


@pytest.mark.parametrize("ends", ["at the request", "before it is read"])
def test_the_time_is_told_though_the_session_ends_while_it_is_asked_for(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Its node may still be there for a while, as another session's, or be gone already."""
    makes = context(store, WriterInfo("here", 1, "me", "test"))
    make_ledger(makes, Quorum(3, 3, 2))
    make_ledger(makes, Quorum(3, 3, 2))
    carry_out = znodes.carry_out
    clock = paths.clock(ROOT, "")
    ended: list[object] = []

    def lost(request: Any, session: int) -> Any:
        client = store._zk._client
        is_read = isinstance(request, GetData) and request.path.startswith(clock)
        if is_read and ends == "before it is read" and not ended:
            ended.append(request)
            begin_session(znodes, store)
        is_asked = isinstance(request, MultiWrite) and clock.encode() in request.serialize()
        if is_asked and ends == "at the request" and not ended:
            ended.append(request)
            carry_out(request, session)
            client._session = next(znodes.sessions)
            raise ConnectionLoss
        return carry_out(request, session)

    monkeypatch.setattr(znodes, "carry_out", lost)

    assert store.clock_ms() is not None
    assert ended
    left = [path for path in znodes.nodes if path.startswith(clock)]
    assert len(left) == (ends == "at the request"), "it goes with the session that has ended"


def test_too_few_bookies_by_what_was_told_last_are_asked_for_once_more(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes = context(store)
    for _ in range(2):
        make_ledger(makes, Quorum(4, 4, 2))
    told = store.last_registrations
    monkeypatch.setattr(store, "last_registrations", lambda: told()[:2])
    generate = store.generate_ledger_id

    def and_then_all_are_told() -> LedgerId:
        monkeypatch.setattr(store, "last_registrations", told)
        return generate()

    monkeypatch.setattr(store, "generate_ledger_id", and_then_all_are_told)

    assert make_ledger(makes, Quorum(4, 4, 2))[0].ledger_id == 2


def test_a_writer_whose_session_ended_with_the_creation_is_shown_by_the_next_one(
    store: ZooKeeperStore, other: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes = context(store, WriterInfo("here", 1, "me", "test"))
    for _ in range(2):
        make_ledger(makes, Quorum(3, 3, 2))
    create = store._zk.create_numbered

    def and_then_the_session_ends(*arguments: Any) -> int:
        number = create(*arguments)
        begin_session(znodes, store)
        return number

    monkeypatch.setattr(store._zk, "create_numbered", and_then_the_session_ends)
    made = store.create_next_ledger(open_ledger(), writer="a0")

    assert made is not None
    assert (made[0], "a0") in other.writers()
    store.leave_ledger(made[0])
    assert (made[0], "a0") not in other.writers()
