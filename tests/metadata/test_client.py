"""Which of kazoo's requests can still be given up."""

from __future__ import annotations

import pytest
from kazoo.protocol.serialization import Exists

from spark_bookkeeper.metadata.zookeeper.client import Awaited, Client, Handler


@pytest.fixture
def client() -> Client:
    return Client(handler=Handler())


def asked(client: Client) -> Awaited:
    """The same request each time."""
    answer: Awaited = client.handler.async_result()
    client._queue.append((Exists("/one", None), answer))
    return answer


def test_a_request_is_given_up_until_it_is_looked_at_to_be_sent(client: Client) -> None:
    first, second, third = [asked(client) for _ in range(3)]

    assert client._queue[0][1] is first
    assert not first.give_up()
    assert second.give_up()
    assert client._queue.popleft()[1] is first
    assert not first.give_up()
    assert client._queue[0][1] is third
    assert not third.give_up()
    client._queue.popleft()
    with pytest.raises(IndexError):
        client._queue[0]


def test_requests_of_the_next_session_can_be_given_up_too(client: Client) -> None:
    client._reset()

    assert asked(client).give_up()
    assert not client._queue
