"""A bookie's registration goes with its session, and with no other."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, SessionExpiredError

from spark_bookkeeper.metadata.service_info import encode_registration
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.testing.sessions import wait_no_longer_for_another
from spark_bookkeeper.testing.znodes import ZNodes

BOOKIE = BookieId("10.0.0.3:3181")


@pytest.mark.parametrize("ends", [True, False])
def test_who_unregisters_twice_as_the_answer_was_lost_leaves_its_successor(
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    znodes: ZNodes,
    monkeypatch: pytest.MonkeyPatch,
    ends: bool,
) -> None:
    """The session has ended before the first request got there; or its answer was lost."""
    store.register(Registration(BOOKIE, "file:///a", "3f2a"))
    path = paths.registration("/ledgers", BOOKIE, readonly=False)
    carry_out = znodes.carry_out

    def lose(request: Any, of: int) -> Any:
        before = path in znodes.nodes
        answer = carry_out(request, of)
        if path in znodes.nodes or not before:
            return answer
        monkeypatch.setattr(znodes, "carry_out", carry_out)
        if ends:
            store._zk._link.client._session = next(znodes.sessions)
        other.register(Registration(BOOKIE, "file:///b", "3f2a"))
        raise SessionExpiredError if ends else ConnectionLoss

    monkeypatch.setattr(znodes, "carry_out", lose)
    store.unregister(BOOKIE)

    assert znodes.carry_out is carry_out, "the answer was lost"
    assert [each.root_uri for each in other.registrations()] == ["file:///b"]


@pytest.mark.parametrize("is_readonly", [False, True])
@pytest.mark.parametrize("was_readonly", [False, True])
def test_a_registration_that_goes_with_no_session_is_nobodys(
    store: ZooKeeperStore, znodes: ZNodes, was_readonly: bool, is_readonly: bool
) -> None:
    wait_no_longer_for_another(store)
    copied = Registration(BOOKIE, "file:///a", "3f2a", is_readonly=was_readonly)
    path = paths.registration("/ledgers", BOOKIE, readonly=was_readonly)
    znodes.put(path, encode_registration(copied))

    assert store.registrations() == []
    store.register(Registration(BOOKIE, "file:///b", "3f2a", is_readonly=is_readonly))

    (found,) = store.registrations()
    assert (found.root_uri, found.is_readonly) == ("file:///b", is_readonly)
    store.unregister(BOOKIE)
    assert store.registrations() == []
