"""A bookie that is made read-only by hand stays so until somebody takes that back."""

from __future__ import annotations

import pytest

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.agent.cookies import forget_bookie
from spark_bookkeeper.agent.formatting import format_bookie
from spark_bookkeeper.agent.readonly import ReadOnlyOrder, read_order, set_readonly, set_writable
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.client.views import BOOKIES
from spark_bookkeeper.errors import InvalidArgumentError, MetadataUnavailableError
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.memory_storage import MemoryStorage
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore
from tests.agent.agents import STEPPED, NoLoop, half_full
from tests.worlds import there

BOOKIE = BookieId("10.0.0.3:3181")
NOW_MS = 1_700_000_000_000


class OrderedBookie:
    """A bookie in memory, whose agent is moved by ``step``, and somebody who gives orders."""

    def __init__(self) -> None:
        self.metadata = MemoryCluster()
        self.person = self.metadata.session()
        self.person.initialize_cluster()
        self.is_away = False
        """Whether the metadata store answers the agent's questions about orders no more."""
        self.disk = half_full()
        self.agent = self.new_agent()

    def new_agent(self) -> BookieAgent:
        def faults(moment: str, operation: str, subject: str) -> None:
            if self.is_away and subject.startswith("readonly/"):
                raise MetadataUnavailableError("no answer")

        store = MemoryStore(self.metadata, faults)
        return BookieAgent(store, Partition(MemoryStorage(self.disk)), BOOKIE, NoLoop(), STEPPED)

    def order(self, reason: str = "new disk") -> None:
        set_readonly(self.person, BOOKIE, reason, NOW_MS)

    @property
    def registration(self) -> Registration:
        (found,) = self.person.registrations()
        return found

    def is_readonly(self) -> bool:
        return self.registration.is_readonly


@pytest.fixture
def world() -> OrderedBookie:
    world = OrderedBookie()
    world.agent.start()
    return world


def test_an_order_is_obeyed_at_the_next_probe_and_shown_with_its_reason(
    world: OrderedBookie,
) -> None:
    world.order("new disk")
    assert not world.is_readonly()

    world.agent.step()

    assert world.is_readonly()
    assert world.registration.readonly_reason == "set by hand: new disk"
    assert world.agent.status.state == "readonly"


def test_an_order_taken_back_makes_the_bookie_writable_again(world: OrderedBookie) -> None:
    world.order()
    world.agent.step()

    assert set_writable(world.person, BOOKIE)
    world.agent.step()

    assert not world.is_readonly()
    assert world.registration.readonly_reason is None
    assert not set_writable(world.person, BOOKIE)


@pytest.mark.parametrize("given", ["before", "while"])
def test_an_order_outlives_the_agent_and_may_be_given_while_there_is_none(
    world: OrderedBookie, given: str
) -> None:
    if given == "before":
        world.order()
    world.agent.stop()
    if given == "while":
        world.order()

    world.new_agent().start()  # and is obeyed from its first moment

    assert world.is_readonly()


def test_each_reason_ends_by_itself_and_all_of_them_are_shown(world: OrderedBookie) -> None:
    world.order()
    world.disk.free_bytes = 50
    world.agent.step()
    assert world.registration.readonly_reason == "set by hand: new disk; space is short"

    set_writable(world.person, BOOKIE)
    world.agent.step()
    assert world.registration.readonly_reason == "space is short"

    world.disk.free_bytes = 500
    world.agent.step()
    assert not world.is_readonly()


def test_much_space_does_not_take_an_order_back(world: OrderedBookie) -> None:
    world.order()
    world.disk.free_bytes = 50
    world.agent.step()
    world.disk.free_bytes = 900
    world.agent.step()

    assert world.registration.readonly_reason == "set by hand: new disk"


def test_another_reason_is_published_and_the_same_one_keeps_its_time(world: OrderedBookie) -> None:
    world.order("new disk")
    world.agent.step()
    set_readonly(world.person, BOOKIE, "new disk", NOW_MS + 1)
    assert there(read_order(world.person, BOOKIE)).since_ms == NOW_MS

    world.order("moves to another rack")
    world.agent.step()

    assert world.registration.readonly_reason == "set by hand: moves to another rack"


def test_who_gives_no_reason_leaves_the_one_that_somebody_gave(world: OrderedBookie) -> None:
    first = set_readonly(world.person, BOOKIE, "new disk", NOW_MS)

    assert set_readonly(world.person, BOOKIE, None, NOW_MS + 1) == first
    assert read_order(world.person, BOOKIE) == first == ReadOnlyOrder("new disk", NOW_MS)


def test_the_first_who_gives_no_reason_is_said_to_have_given_none(world: OrderedBookie) -> None:
    assert set_readonly(world.person, BOOKIE, None, NOW_MS).reason == "no reason given"


@pytest.mark.parametrize("is_readonly", [True, False])
def test_without_an_answer_the_last_order_holds(world: OrderedBookie, is_readonly: bool) -> None:
    if is_readonly:
        world.order()
    world.agent.step()
    world.is_away = True
    if is_readonly:
        set_writable(world.person, BOOKIE)
    else:
        world.order()

    world.agent.step()
    assert world.is_readonly() is is_readonly

    world.is_away = False
    world.agent.step()
    assert world.is_readonly() is not is_readonly


def test_an_order_that_cannot_be_decoded_holds(world: OrderedBookie) -> None:
    world.person.registers.create(f"readonly/{BOOKIE}", b"\xff{")

    world.agent.step()

    assert world.is_readonly()
    assert set_writable(world.person, BOOKIE)
    world.agent.step()
    assert not world.is_readonly()


def test_orders_end_with_the_bookie(world: OrderedBookie) -> None:
    world.order()
    world.agent.stop()
    format_bookie(
        world.person, Partition(MemoryStorage(world.disk)), BOOKIE, token=ThreadRuntime().token
    )
    assert read_order(world.person, BOOKIE) is None

    world.order()
    forget_bookie(world.person, BOOKIE)
    assert read_order(world.person, BOOKIE) is None


def test_an_order_for_nobody_or_without_a_reason_is_refused(world: OrderedBookie) -> None:
    for refused in (
        lambda: set_readonly(world.person, BookieId("10.0.0.4:3181"), "new disk", NOW_MS),
        lambda: set_writable(world.person, BookieId("10.0.0.4:3181")),
    ):
        with pytest.raises(InvalidArgumentError, match=r"10\.0\.0\.4:3181 is unknown"):
            refused()
    with pytest.raises(InvalidArgumentError, match="reason"):
        set_readonly(world.person, BOOKIE, " ", NOW_MS)
    with pytest.raises(InvalidArgumentError, match="100,000 characters"):
        set_readonly(world.person, BOOKIE, "x" * 100_000, NOW_MS)
    assert world.person.registers.names("readonly") == []


def test_the_table_of_bookies_has_a_column_for_the_reason() -> None:
    assert "readonly_reason" in BOOKIES.names
