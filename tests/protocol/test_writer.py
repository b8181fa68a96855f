"""The writer's machine: its stories as transcripts, and whatever order events arrive in."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.writer import (
    Acknowledge,
    AddRequested,
    BookieFailed,
    BookieFenced,
    BookieToBeLeft,
    ChangeEnsemble,
    Command,
    EnsembleChanged,
    EnsembleChangeFailed,
    EnsembleStays,
    Event,
    FailPending,
    Send,
    Stored,
    Writer,
    WriterStatus,
)
from spark_bookkeeper.testing.describe import describe_fragments

NAMES = "abcdefghijklmnopqrstuvwxyz"


def bookies(names: str) -> tuple[BookieId, ...]:
    return tuple(BookieId(name) for name in names)


def event_of(line: str, writer: Writer) -> Event:
    """An event from a line of a transcript."""
    match line.split():
        case ["add", count]:
            return AddRequested(int(count))
        case [name, "stores", through]:
            return Stored(
                writer.ensemble.index(BookieId(name)), BookieId(name), EntryId(int(through))
            )
        case [name, "at", position, "stores", through]:
            return Stored(int(position), BookieId(name), EntryId(int(through)))
        case [name, "fails"]:
            return BookieFailed(writer.ensemble.index(BookieId(name)), BookieId(name))
        case [name, "is", "readonly"]:
            at = writer.ensemble.index(BookieId(name))
            return BookieToBeLeft(at, BookieId(name), may_hold=True)
        case [name, "is", "gone"]:
            at = writer.ensemble.index(BookieId(name))
            return BookieToBeLeft(at, BookieId(name), may_hold=False)
        case ["ensemble", "stays"]:
            return EnsembleStays()
        case [name, "is", "fenced"]:
            return BookieFenced(writer.ensemble.index(BookieId(name)), BookieId(name))
        case ["ensemble", names]:
            return EnsembleChanged(bookies(names))
        case ["no", "ensemble"]:
            return EnsembleChangeFailed()
        case _:
            raise AssertionError(line)


def text_of(command: Command) -> str:
    match command:
        case Send(position, bookie, first):
            return f"send {bookie} at {position} from {first}"
        case Acknowledge(through):
            return f"ack {through}"
        case ChangeEnsemble(first, failed, may_stay):
            verb = "leave" if may_stay else "replace"
            return f"{verb} {''.join(failed.values())} from {first}"
        case FailPending():
            return "fail pending"


def told(quorum: Quorum, ensemble: str, story: str) -> str:
    """Feed the left side of a story to a writer; the story as it really goes."""
    writer = Writer(quorum, bookies(ensemble))
    writer.start()
    lines = []
    for line in story.strip().splitlines():
        said = line.split("->")[0].strip()
        commands = writer.step(event_of(said, writer))
        lines.append(f"{said:<16} -> {', '.join(map(text_of, commands)) or '-'}")
    return "\n".join(lines)


def tidy(story: str) -> str:
    pairs = [line.split("->") for line in story.strip().splitlines()]
    return "\n".join(f"{left.strip():<16} -> {right.strip()}" for left, right in pairs)


def assert_story(quorum: Quorum, ensemble: str, story: str) -> None:
    assert told(quorum, ensemble, story) == tidy(story)


def test_an_entry_is_acknowledged_by_its_ack_quorum() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 1            -> -
        a stores 0       -> -
        c stores 0       -> ack 0
        b stores 0       -> -
        """,
    )


def test_an_entry_waits_for_those_before_it() -> None:
    assert_story(
        Quorum(3, 2, 2),
        "abc",
        """
        add 3            -> -
        b stores 1       -> -
        c stores 1       -> -
        c stores 2       -> -
        a stores 0       -> ack 1
        a stores 2       -> ack 2
        """,
    )


def test_one_answer_may_acknowledge_many() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 100          -> -
        a stores 99      -> -
        b stores 41      -> ack 41
        c stores 99      -> ack 99
        """,
    )


def test_a_failed_bookie_is_replaced_from_the_first_unacknowledged_entry() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        c fails          -> replace c from 2
        ensemble abd     -> send d at 2 from 2
        d stores 3       -> -
        a stores 3       -> ack 3
        """,
    )


def test_nothing_is_confirmed_before_the_new_ensemble_is_published() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 1            -> -
        c fails          -> replace c from 0
        a stores 0       -> -
        b stores 0       -> -
        ensemble abd     -> send d at 2 from 0, ack 0
        """,
    )


def test_answers_of_a_replaced_bookie_are_dropped() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 1            -> -
        c stores 0       -> -
        c fails          -> replace c from 0
        ensemble abd     -> send d at 2 from 0
        c at 2 stores 0  -> -
        a stores 0       -> -
        d stores 0       -> ack 0
        """,
    )


def test_a_bookie_that_fails_during_a_change_is_replaced_by_the_next_one() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 1            -> -
        c fails          -> replace c from 0
        a stores 0       -> -
        b stores 0       -> -
        b fails          -> -
        ensemble abd     -> send d at 2 from 0, replace b from 0
        d stores 0       -> -
        ensemble aed     -> send e at 1 from 0, ack 0
        """,
    )


def test_a_bookie_that_is_read_only_is_left_for_another_one() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        c stores 1       -> -
        c is readonly    -> leave c from 2
        a stores 3       -> -
        c stores 3       -> -
        c is readonly    -> -
        ensemble abd     -> send d at 2 from 2
        c at 2 stores 3  -> -
        d stores 3       -> ack 3
        """,
    )


def test_a_bookie_is_left_when_its_share_of_what_is_acknowledged_is_whole() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        c is readonly    -> -
        a stores 3       -> -
        b stores 3       -> -
        c stores 0       -> -
        c stores 1       -> leave c from 2
        ensemble abd     -> send d at 2 from 2, ack 3
        """,
    )


def test_a_bookie_that_does_not_come_to_the_end_of_its_share_holds_nobody_up_for_long() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        c is readonly    -> -
        a stores 2       -> -
        b stores 2       -> -
        c is readonly    -> ack 2
        a stores 3       -> -
        b stores 3       -> ack 3
        c is readonly    -> -
        c stores 3       -> leave c from 4
        """,
    )


def test_a_bookie_without_an_agent_holds_nobody_up_and_is_left_once_it_has_its_share() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        c is gone        -> -
        a stores 2       -> -
        b stores 2       -> ack 2
        c is gone        -> -
        a stores 3       -> -
        c stores 1       -> -
        c stores 2       -> leave c from 3
        b stores 3       -> -
        ensemble abd     -> send d at 2 from 3, ack 3
        """,
    )


def test_a_bookie_that_was_read_only_and_is_gone_holds_nobody_up_any_more() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 2            -> -
        a stores 0       -> -
        b stores 0       -> ack 0
        c is readonly    -> -
        a stores 1       -> -
        b stores 1       -> -
        c is gone        -> ack 1
        """,
    )


def test_where_nobody_takes_its_place_a_bookie_that_is_read_only_stays() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 2            -> -
        c is readonly    -> leave c from 0
        a stores 0       -> -
        c stores 0       -> -
        ensemble stays   -> ack 0
        c stores 1       -> -
        b stores 1       -> ack 1
        c is readonly    -> leave c from 2
        """,
    )


def test_a_bookie_that_fails_comes_before_one_that_is_read_only() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 2            -> -
        a stores 0       -> -
        b stores 0       -> ack 0
        c is readonly    -> -
        a fails          -> replace a from 1
        ensemble dbc     -> send d at 0 from 1
        b stores 1       -> -
        d stores 1       -> ack 1
        c stores 1       -> -
        c is readonly    -> leave c from 2
        b fails          -> -
        ensemble stays   -> replace b from 2
        ensemble dec     -> send e at 1 from 2
        """,
    )


def test_a_bookie_that_fails_while_it_is_left_is_replaced_all_the_same() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 1            -> -
        c is readonly    -> leave c from 0
        c fails          -> -
        ensemble stays   -> replace c from 0
        no ensemble      -> fail pending
        """,
    )


def test_a_fence_ends_the_writing() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 2            -> -
        a stores 0       -> -
        b is fenced      -> fail pending
        c stores 1       -> -
        a stores 1       -> -
        """,
    )


def test_a_fence_of_a_bookie_that_was_replaced_says_nothing() -> None:
    writer = Writer(Quorum(3, 3, 2), bookies("abc"))
    writer.step(AddRequested(1))
    writer.step(BookieFailed(2, BookieId("c")))
    writer.step(EnsembleChanged(bookies("abd")))

    assert writer.step(BookieFenced(2, BookieId("c"))) == []
    assert writer.status is WriterStatus.WRITING


def test_without_an_ensemble_the_writer_gives_up() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 1            -> -
        a fails          -> replace a from 0
        no ensemble      -> fail pending
        b stores 0       -> -
        c stores 0       -> -
        """,
    )


def test_the_first_commands_open_a_lane_for_each_bookie() -> None:
    commands = Writer(Quorum(3, 2, 2), bookies("abc")).start()

    assert [text_of(c) for c in commands] == [
        "send a at 0 from 0",
        "send b at 1 from 0",
        "send c at 2 from 0",
    ]


# Whatever order events arrive in


@dataclass
class World:
    """Bookies that store prefixes, answers on their way, and the metadata's ensembles."""

    quorum: Quorum
    writer: Writer = field(init=False)
    truth: dict[BookieId, set[EntryId]] = field(default_factory=dict)
    lanes: dict[int, tuple[BookieId, EntryId]] = field(default_factory=dict)
    answers: list[Event] = field(default_factory=list)
    fragments: list[tuple[EntryId, tuple[BookieId, ...]]] = field(default_factory=list)
    change: ChangeEnsemble | None = None
    is_published: bool = False
    acknowledged: EntryId = NO_ENTRY
    named: int = 0

    def __post_init__(self) -> None:
        ensemble = tuple(self.new_bookie() for _ in range(self.quorum.ensemble_size))
        self.fragments.append((EntryId(0), ensemble))
        self.writer = Writer(self.quorum, ensemble)
        self.carry_out(self.writer.start())

    def new_bookie(self) -> BookieId:
        self.named += 1
        bookie = BookieId(f"b{self.named}")
        self.truth[bookie] = set()
        return bookie

    def step(self, event: Event) -> None:
        self.carry_out(self.writer.step(event))

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(position, bookie, first):
                    assert self.fragments[-1][1][position] == bookie, "sent before it is published"
                    assert first == self.acknowledged + 1, "a lane begins behind the LAC"
                    self.lanes[position] = (bookie, first)
                case Acknowledge(through):
                    self.acknowledge(through)
                case ChangeEnsemble(first, failed):
                    assert self.change is None, "one change at a time"
                    assert first == self.acknowledged + 1
                    assert failed
                    self.change = command
                case FailPending():
                    raise AssertionError("nobody fenced, and there are always bookies")

    def acknowledge(self, through: EntryId) -> None:
        assert self.change is None, "ec_cas_first: confirmed during a change"
        assert through > self.acknowledged, "acknowledgements are in entry order"
        self.acknowledged = through
        self.check()

    def check(self) -> None:
        """Every acknowledged entry is on an ack quorum of the ensemble the metadata names."""
        for entry_id in map(EntryId, range(self.acknowledged + 1)):
            ensemble = next(e for first, e in reversed(self.fragments) if first <= entry_id)
            holders = [
                p for p in self.quorum.write_set(entry_id) if entry_id in self.truth[ensemble[p]]
            ]
            assert len(holders) >= self.quorum.ack_quorum_size, (
                f"acked-entries-are-readable: entry {entry_id} is on {len(holders)} bookies"
                + describe_fragments(self.quorum, self.fragments, self.truth, self.acknowledged)
            )

    def store(self, position: int, count: int) -> None:
        """A bookie stores the next entries; its answer is on its way."""
        bookie, following = self.lanes[position]
        last = EntryId(min(following + count - 1, self.writer.last_add_pushed))
        if last < following:
            return
        self.truth[bookie].update(
            EntryId(e)
            for e in range(following, last + 1)
            if self.quorum.holds(position, EntryId(e))
        )
        self.lanes[position] = (bookie, EntryId(last + 1))
        self.answers.append(Stored(position, bookie, last))

    def fail(self, position: int) -> None:
        """A bookie is lost to the writer; what it stored is there, its answers may still come."""
        bookie, _ = self.lanes.pop(position)
        self.answers.append(BookieFailed(position, bookie))

    def publish(self) -> None:
        assert self.change is not None
        since, before = self.fragments[-1]
        ensemble = list(before)
        for position, bookie in self.change.failed.items():
            ensemble[position] = self.new_bookie()
            if self.change.may_stay:
                share = {e for e in range(since, self.change.first) if self.holds(position, e)}
                assert share <= self.truth[bookie], "left before its share was whole"
        if self.fragments[-1][0] == self.change.first:
            self.fragments.pop()
        self.fragments.append((self.change.first, tuple(ensemble)))
        self.is_published = True
        self.check()

    def holds(self, position: int, entry_id: int) -> bool:
        return self.quorum.holds(position, EntryId(entry_id))

    def stay(self) -> None:
        """Nobody could take the place of a bookie that is to be left."""
        self.change = None
        self.step(EnsembleStays())

    def finish_change(self) -> None:
        self.change, self.is_published = None, False
        self.step(EnsembleChanged(self.fragments[-1][1]))


QUORUMS = st.sampled_from(
    [Quorum(*q) for q in [(3, 3, 2), (4, 3, 2), (5, 2, 2), (3, 3, 3), (2, 2, 1), (3, 2, 1)]]
)


@settings(max_examples=400)
@given(QUORUMS, st.data())
def test_in_whatever_order_events_arrive_no_promise_is_broken(
    quorum: Quorum, data: st.DataObject
) -> None:
    world = World(quorum)
    failures = 0
    for _ in range(data.draw(st.integers(5, 60), "events")):
        can = ["add"]
        can += ["store", "store"] if world.lanes else []
        can += ["answer", "answer"] if world.answers else []
        can += ["fail"] if world.lanes and failures < 6 else []
        can += ["to be left"] if world.lanes else []
        can += ["publish"] if world.change is not None and not world.is_published else []
        may_stay = world.change is not None and world.change.may_stay
        can += ["stay"] if may_stay and not world.is_published else []
        can += ["finish"] if world.is_published else []
        match data.draw(st.sampled_from(can), "what"):
            case "add":
                world.step(AddRequested(data.draw(st.integers(1, 4), "count")))
            case "store":
                position = data.draw(st.sampled_from(sorted(world.lanes)), "position")
                world.store(position, data.draw(st.integers(1, 4), "entries"))
            case "answer":
                index = data.draw(st.integers(0, len(world.answers) - 1), "answer")
                world.step(world.answers.pop(index))
            case "fail":
                world.fail(data.draw(st.sampled_from(sorted(world.lanes)), "position"))
                failures += 1
            case "to be left":
                position = data.draw(st.sampled_from(sorted(world.lanes)), "position")
                may_hold = data.draw(st.booleans(), "may hold")
                world.step(BookieToBeLeft(position, world.lanes[position][0], may_hold))
            case "stay":
                world.stay()
            case "publish":
                world.publish()
            case _:
                world.finish_change()
        assert world.writer.last_add_confirmed == world.acknowledged
        world.check()

    writer = world.writer
    while world.answers or world.change or writer.last_add_confirmed < writer.last_add_pushed:
        for position in sorted(world.lanes):
            world.store(position, 1 << 20)
        while world.answers:
            world.step(world.answers.pop(0))
        if world.change is not None:
            if not world.is_published:
                world.publish()
            world.finish_change()

    assert world.acknowledged == world.writer.last_add_pushed, (
        "everything is acknowledged"
        + describe_fragments(quorum, world.fragments, world.truth, world.writer.last_add_pushed)
    )
    world.check()
