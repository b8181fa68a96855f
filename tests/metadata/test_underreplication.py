"""The under-replication tree is Apache BookKeeper's, byte for byte."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, SessionExpiredError
from kazoo.protocol.serialization import GetData

from spark_bookkeeper.errors import MetadataFormatError, MetadataUnavailableError
from spark_bookkeeper.metadata.underreplication import (
    LAYOUT,
    Check,
    Holder,
    Task,
    check_layout,
    decode_delay,
    decode_lock,
    decode_task,
    decode_time,
    decode_vote,
    encode_delay,
    encode_lock,
    encode_task,
    encode_time,
    encode_vote,
)
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from tests.metadata.conftest import begin_session
from tests.support.znodes import ZNodes

_GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "reference-znodes.json").read_text()
)


_NODES = {z["path"]: bytes.fromhex(z["hex"]) for z in _GOLDEN["znodes"]}


_BASE = "/ledgers/underreplication"


_TASKS = {
    LedgerId(2): Task(LedgerId(2), ("127.0.0.1:3182", "bookie-c"), 1795253565969),
    LedgerId(2147483653): Task(LedgerId(2147483653), ("127.0.0.1:3181",), 1795253565976),
}


@pytest.mark.parametrize("ledger_id", _TASKS)
def test_a_task_is_where_and_what_bookkeeper_writes(ledger_id: LedgerId) -> None:
    path = paths.task("/ledgers", ledger_id)

    assert decode_task(_NODES[path], ledger_id, path) == _TASKS[ledger_id]
    assert encode_task(_TASKS[ledger_id]) == _NODES[path]
    assert set(paths.task_parents("/ledgers", ledger_id)) <= set(_NODES)


def test_the_other_nodes_are_what_bookkeeper_writes() -> None:
    lock = _NODES[paths.lock("/ledgers", LedgerId(2147483653))]
    assert (decode_lock(lock), encode_lock("localhost")) == ("localhost", lock)
    vote = _NODES[f"{paths.auditor_election('/ledgers')}/V_0000000000"]
    assert (decode_vote(vote), encode_vote("127.0.0.1:3181")) == ("127.0.0.1:3181", vote)
    assert _NODES[paths.auditor_election("/ledgers")] == vote
    delay = _NODES[f"{_BASE}/lostBookieRecoveryDelay"]
    assert (decode_delay(delay, ""), encode_delay(60)) == (60, delay)
    assert _NODES[f"{_BASE}/LAYOUT"] == LAYOUT
    assert _NODES[f"{_BASE}/disable"] == b""
    check_layout(LAYOUT, "")


@pytest.mark.parametrize("check", Check)
def test_when_a_check_was_done_is_what_bookkeeper_writes(check: Check) -> None:
    data = _NODES[f"{_BASE}/{check.value}"]

    assert encode_time(decode_time(data, "")) == data
    assert decode_time(data, "") // 1000 == 1_700_000_000


def test_the_largest_id_has_a_path() -> None:
    path = paths.task("/ledgers", LedgerId((1 << 63) - 1))

    assert path == f"{_BASE}/ledgers/7fff/ffff/ffff/ffff/urL9223372036854775807"


_LEAF = re.compile(rf"{_BASE}/ledgers(/[0-9a-f]{{4}}){{4}}")


def empty_leaves(znodes: ZNodes) -> set[str]:
    """Nodes that are taken for a task, as they are where the parent of one is, and have none."""
    parents = {path.rpartition("/")[0] for path in znodes.nodes}
    return {path for path in znodes.nodes if _LEAF.fullmatch(path)} - parents


@pytest.mark.parametrize("before", ["nothing", "a neighbour", "an empty leaf"])
def test_who_dies_while_a_task_comes_or_goes_leaves_no_node_that_is_taken_for_one(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Whatever request is the last one that its process has made."""
    tree, ledger_id = store.underreplication, LedgerId(7 << 40)
    if before == "a neighbour":
        assert tree.mark(LedgerId(ledger_id + (1 << 16)), ["a:1"], 1)
    if before == "an empty leaf":  # BookKeeper's auditor has died
        znodes.put(paths.task_parents("/ledgers", ledger_id)[0], b"")
    left = empty_leaves(znodes)
    carry_out, requests = znodes.carry_out, 0

    def look(request: Any, session: int) -> Any:
        nonlocal requests
        requests += 1
        answer = carry_out(request, session)
        assert empty_leaves(znodes) <= left
        return answer

    monkeypatch.setattr(znodes, "carry_out", look)
    assert tree.mark(ledger_id, ["a:1"], 1)
    assert empty_leaves(znodes) == set(), "where a leaf was left it has its task now"
    assert not tree.mark(ledger_id, ["a:1"], 2)
    assert tree.mark(ledger_id, ["b:1"], 3)
    task = tree.read(ledger_id)
    assert task is not None
    assert task.value == Task(ledger_id, ("a:1", "b:1"), 1)
    assert tree.remove(task)

    assert requests > 3
    assert ledger_id not in tree.ledger_ids()


def test_a_leaf_that_was_left_is_swept_and_one_with_a_task_is_not(
    store: ZooKeeperStore, znodes: ZNodes
) -> None:
    """By a process of BookKeeper that died; or somebody deleted a task in ZooKeeper's shell."""
    tree, there, gone, absent = store.underreplication, LedgerId(5), LedgerId(7), LedgerId(9)
    for ledger_id in (there, gone):
        assert tree.mark(ledger_id, ["a:1"], 1)
    znodes.remove(paths.task("/ledgers", gone))
    assert list(tree.ledger_ids()) == [there, gone]

    for ledger_id in (there, gone, absent):
        tree.sweep(ledger_id)

    assert list(tree.ledger_ids()) == [there]
    assert tree.read(there) is not None


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_leaf_that_goes_while_a_task_is_published_comes_again_with_it(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch, is_empty: bool
) -> None:
    """A worker takes the task away that was there; or somebody clears up what was left."""
    tree, ledger_id = store.underreplication, LedgerId(7 << 40)
    assert tree.mark(ledger_id, ["a:1"], 1)
    leaf = paths.task_parents("/ledgers", ledger_id)[0]
    if is_empty:
        znodes.remove(paths.task("/ledgers", ledger_id))
    carry_out = znodes.carry_out

    def clear(request: Any, session: int) -> Any:
        if isinstance(request, GetData):  # it looks at what is there
            monkeypatch.setattr(znodes, "carry_out", carry_out)
            znodes.remove(leaf)
        return carry_out(request, session)

    monkeypatch.setattr(znodes, "carry_out", clear)
    assert tree.mark(ledger_id, ["b:1"], 2)

    task = tree.read(ledger_id)
    assert task is not None
    assert task.value == Task(ledger_id, ("b:1",), 2)
    assert list(tree.ledger_ids()) == [ledger_id]


def test_while_a_lock_is_released_no_other_caller_of_the_client_takes_it_and_loses_it_by_that(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, ledger_id = store.underreplication, LedgerId(7)
    one, two = Holder("worker"), Holder("worker")
    tree.set_delay_seconds(0)
    create, carry_out = store._zk.create, znodes.carry_out
    taken: list[bool] = []

    def lost(*given: Any, **more: Any) -> None:
        create(*given, **more)
        raise MetadataUnavailableError("the answer was lost")

    with monkeypatch.context() as patch, suppress(MetadataUnavailableError):
        patch.setattr(store._zk, "create", lost)
        tree.lock(ledger_id, one)

    def meanwhile(request: Any, session: int) -> Any:
        monkeypatch.setattr(znodes, "carry_out", carry_out)
        taken.append(tree.lock(ledger_id, two))
        monkeypatch.setattr(znodes, "carry_out", meanwhile)
        return carry_out(request, session)

    monkeypatch.setattr(znodes, "carry_out", meanwhile)
    tree.unlock(one)
    monkeypatch.setattr(znodes, "carry_out", carry_out)

    assert len(taken) > 1
    assert len(tree.locks()) == (True in taken)
    assert tree.lock(ledger_id, two) is (True not in taken)


@pytest.mark.parametrize("is_answered", [True, False])
def test_who_takes_a_lock_in_a_new_session_keeps_it_from_a_call_of_the_old_one(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """Two callers of a client, and one of them waits for its answer since before."""
    tree, ledger_id = store.underreplication, LedgerId(7)
    one, two = Holder("worker"), Holder("collector")
    tree.set_delay_seconds(0)
    create = store._zk.create
    taken: list[bool] = []

    def wait(*given: Any, **more: Any) -> None:
        begin_session(znodes, store)
        monkeypatch.setattr(store._zk, "create", create)
        if is_answered:  # it was repeated in the new session
            create(*given, **more)
        taken.append(tree.lock(ledger_id, two))
        if not is_answered:
            raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(store._zk, "create", wait)
    if is_answered:
        assert tree.lock(ledger_id, one) is False
    else:
        with pytest.raises(MetadataUnavailableError):
            tree.lock(ledger_id, one)
    tree.unlock(one)

    assert taken == [True]
    assert list(tree.locks()) == [ledger_id]
    tree.unlock(two)
    assert not tree.locks()


def test_a_lock_that_was_taken_when_nobody_wants_it_any_more_is_released(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call waits since the session before; another caller has taken and released it since."""
    tree, ledger_id = store.underreplication, LedgerId(7)
    one, two = Holder("worker"), Holder("collector")
    tree.set_delay_seconds(0)
    create = store._zk.create

    def wait(*given: Any, **more: Any) -> None:
        begin_session(znodes, store)
        monkeypatch.setattr(store._zk, "create", create)
        assert tree.lock(ledger_id, two)
        tree.unlock(two)
        create(*given, **more)

    monkeypatch.setattr(store._zk, "create", wait)

    assert tree.lock(ledger_id, one) is False
    assert not tree.locks()
    assert tree.lock(ledger_id, two)


@pytest.mark.parametrize("ends", [True, False])
def test_a_release_that_is_sent_again_leaves_the_lock_that_another_process_has_by_then(
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    znodes: ZNodes,
    monkeypatch: pytest.MonkeyPatch,
    ends: bool,
) -> None:
    """The session has ended before the first request got there; or its answer was lost."""
    tree, ledger_id, holder = store.underreplication, LedgerId(7), Holder("worker")
    tree.set_delay_seconds(0)
    assert tree.lock(ledger_id, holder)
    carry_out = znodes.carry_out

    def lose(request: Any, session: int) -> Any:
        if ends:
            begin_session(znodes, store)
        else:
            carry_out(request, session)
        monkeypatch.setattr(znodes, "carry_out", carry_out)
        assert other.underreplication.lock(ledger_id, Holder("another"))
        raise SessionExpiredError if ends else ConnectionLoss

    monkeypatch.setattr(znodes, "carry_out", lose)
    tree.unlock(holder)

    assert znodes.carry_out is carry_out, "the answer was lost"
    assert tree.locks() == {ledger_id: "another"}
    assert not tree.lock(ledger_id, holder)
    other.close()
    assert tree.lock(ledger_id, holder)


def test_a_release_that_nobody_answered_deletes_later_only_what_is_its_own(
    store: ZooKeeperStore, other: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, ledger_id, holder = store.underreplication, LedgerId(7), Holder("worker")
    tree.set_delay_seconds(0)
    assert tree.lock(ledger_id, holder)
    delete = store._zk.delete

    def lose(*given: Any, **more: Any) -> None:
        delete(*given, **more)
        raise MetadataUnavailableError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(store._zk, "delete", lose)
        tree.unlock(holder)
    assert other.underreplication.lock(ledger_id, Holder("another"))

    assert not tree.lock(ledger_id, holder)

    assert tree.locks() == {ledger_id: "another"}
    other.close()
    assert tree.lock(ledger_id, holder)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_task_that_comes_before_a_removal_is_sent_again_stays(
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    znodes: ZNodes,
    monkeypatch: pytest.MonkeyPatch,
    is_alone: bool,
) -> None:
    """The answer to the removal was lost, and the new task has the version of the one that went."""
    ledger_id = LedgerId(7 << 40)
    assert other.underreplication.mark(ledger_id, ["a:1"], 1)
    path = paths.task("/ledgers", ledger_id)
    if not is_alone:
        znodes.put(f"{path.rpartition('/')[0]}/foreign", b"")
    task = store.underreplication.read(ledger_id)
    assert task is not None
    carry_out = znodes.carry_out

    def lose(request: Any, session: int) -> Any:
        answer = carry_out(request, session)
        if path not in znodes.nodes:
            monkeypatch.setattr(znodes, "carry_out", carry_out)
            assert other.underreplication.mark(ledger_id, ["b:1"], 2)
            raise ConnectionLoss
        return answer

    monkeypatch.setattr(znodes, "carry_out", lose)
    store.underreplication.remove(task)

    assert znodes.carry_out is carry_out, "the answer was lost"
    now = other.underreplication.read(ledger_id)
    assert now is not None
    assert now.value.missing == ("b:1",)
    assert now.version == task.version
    other.close()


def test_a_lock_that_goes_with_no_session_is_nobodys_and_is_taken(
    store: ZooKeeperStore, znodes: ZNodes
) -> None:
    ledger_id, holder = LedgerId(7), Holder("a")
    assert store.underreplication.mark(ledger_id, ["a:1"], 1)
    path = paths.lock("/ledgers", ledger_id)
    znodes.put(path, encode_lock("of a tree that was copied"))

    assert store.underreplication.locks() == {}
    assert store.underreplication.lock(ledger_id, holder)
    assert store.underreplication.locks() == {ledger_id: "a"}
    assert not store.underreplication.lock(ledger_id, Holder("b"))
    store.underreplication.unlock(holder)
    assert path not in znodes.nodes


def test_who_takes_a_lock_of_nobody_has_it_although_the_answer_was_lost(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id = LedgerId(7)
    path = paths.lock("/ledgers", ledger_id)
    znodes.put(path, encode_lock("of a tree that was copied"))
    carry_out = znodes.carry_out

    def lose(request: Any, session: int) -> Any:
        answer = carry_out(request, session)
        if not znodes.nodes[path].owner:
            return answer
        monkeypatch.setattr(znodes, "carry_out", carry_out)
        raise ConnectionLoss

    monkeypatch.setattr(znodes, "carry_out", lose)

    assert store.underreplication.lock(ledger_id, Holder("a"))
    assert znodes.carry_out is carry_out, "the answer was lost"


def test_a_vote_that_goes_with_no_session_elects_nobody(
    store: ZooKeeperStore, znodes: ZNodes
) -> None:
    election = paths.auditor_election("/ledgers")
    znodes.put(election, b"")
    znodes.put(f"{election}/V_000", encode_vote("of a tree that was copied"))

    assert store.underreplication.auditor() is None
    assert store.underreplication.stand("a", lambda: None)
    assert store.underreplication.candidates() == ["a"]


@pytest.mark.parametrize("data", [b"\xff", b"replica", b'other: "x"', b'replica: "\\377"'])
def test_junk_is_no_task_and_says_what_to_do(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match=r"urL0000000002.*audit"):
        decode_task(data, LedgerId(2), paths.task("/ledgers", LedgerId(2)))


@pytest.mark.parametrize("ctime", ["", " ctime: 0", " ctime: -5"])
def test_of_a_task_without_a_time_that_can_be_nobody_knows_since_when(ctime: str) -> None:
    assert decode_task(f'replica: "a"{ctime}'.encode(), LedgerId(2), "p").marked_at_ms is None


@pytest.mark.parametrize("data", [b"", b"-1", b"1.5", b"99999999999", "²".encode()])
def test_junk_is_no_delay(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="lostBookieRecoveryDelay"):
        decode_delay(data, "lostBookieRecoveryDelay")


def test_another_layout_is_refused() -> None:
    with pytest.raises(MetadataFormatError, match="BASIC"):
        check_layout(LAYOUT.replace(b"1", b"2"), "LAYOUT")


def test_junk_in_a_vote_or_a_lock_stops_nobody() -> None:
    assert decode_vote(b"\xff") == decode_lock(b"\xff") == "?"
