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
    BookiesLookedAt,
    ChangeEnsemble,
    Command,
    EnsembleChanged,
    EnsembleChangeFailed,
    EnsembleStays,
    Event,
    FailPending,
    LookBegins,
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
        case ["look", *found] if found != ["begins"]:  # look b=readonly d=gone
            named = [one.split("=") for one in found]
            of = {
                why: {p: b for p, b in enumerate(writer.ensemble) if [b, why] in named}
                for why in ("readonly", "gone")
            }
            return BookiesLookedAt(of["readonly"], of["gone"])
        case ["look", "begins"]:
            return LookBegins()
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
        look c=readonly  -> leave c from 2
        a stores 3       -> -
        c stores 3       -> -
        look c=readonly  -> -
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
        look c=readonly  -> -
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
        add 5            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly  -> -
        a stores 2       -> -
        b stores 2       -> -
        look c=readonly  -> ack 2
        a stores 3       -> -
        b stores 3       -> ack 3
        look c=readonly  -> -
        c stores 2       -> -
        a stores 4       -> -
        b stores 4       -> ack 4
        c stores 4       -> leave c from 5
        """,
    )


def test_two_bookies_that_hang_hold_nobody_up_for_longer_than_one() -> None:
    assert_story(
        Quorum(4, 4, 2),
        "abcd",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly d=readonly -> -
        a stores 2       -> -
        b stores 2       -> -
        look c=readonly d=readonly -> ack 2
        a stores 3       -> -
        b stores 3       -> ack 3
        look c=readonly d=readonly -> -
        """,
    )


def test_bookies_that_are_read_only_are_left_one_after_the_other() -> None:
    assert_story(
        Quorum(4, 4, 2),
        "abcd",
        """
        add 3            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly d=readonly -> -
        a stores 2       -> -
        b stores 2       -> -
        d stores 1       -> leave d from 2
        ensemble abce    -> send e at 3 from 2
        c stores 1       -> leave c from 2
        ensemble abfe    -> send f at 2 from 2, ack 2
        """,
    )


def test_what_was_held_goes_on_at_a_look_that_finds_nobody_to_be_left() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly  -> -
        a stores 2       -> -
        b stores 2       -> -
        look             -> ack 2
        a stores 3       -> -
        b stores 3       -> ack 3
        c stores 3       -> -
        """,
    )


def test_nothing_is_held_while_a_look_is_under_way() -> None:
    """It may take as long as the metadata store does."""
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly  -> -
        a stores 2       -> -
        b stores 2       -> -
        look begins      -> ack 2
        a stores 3       -> -
        b stores 3       -> ack 3
        c stores 3       -> -
        look c=readonly  -> leave c from 4
        """,
    )


def test_what_was_held_goes_on_after_a_change_though_a_look_fell_into_it() -> None:
    """A writer that is being closed says in such a look that nobody is left any more."""
    assert_story(
        Quorum(4, 4, 2),
        "abcd",
        """
        add 3            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly d=readonly -> -
        a stores 2       -> -
        b stores 2       -> -
        d stores 1       -> leave d from 2
        look             -> -
        ensemble abce    -> send e at 3 from 2, ack 2
        c stores 2       -> -
        """,
    )


def test_a_bookie_that_had_its_share_and_stayed_is_waited_for_again() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly  -> -
        a stores 2       -> -
        b stores 2       -> -
        c stores 1       -> leave c from 2
        ensemble stays   -> ack 2
        look c=readonly  -> -
        a stores 3       -> -
        b stores 3       -> -
        c stores 2       -> leave c from 3
        ensemble abd     -> send d at 2 from 3, ack 3
        """,
    )


def test_a_bookie_that_was_not_to_be_left_meanwhile_is_waited_for_again() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly  -> -
        look             -> -
        look c=readonly  -> -
        a stores 2       -> -
        b stores 2       -> -
        c stores 1       -> leave c from 2
        """,
    )


def test_who_takes_the_place_of_a_bookie_is_waited_for_anew() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly  -> -
        look c=gone      -> -
        look c=gone      -> leave c from 2
        ensemble abd     -> send d at 2 from 2
        a stores 2       -> -
        b stores 2       -> ack 2
        look d=readonly  -> -
        a stores 3       -> -
        b stores 3       -> -
        d stores 2       -> leave d from 3
        """,
    )


def test_who_takes_the_place_of_a_bookie_is_late_at_two_looks_of_its_own() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=gone      -> -
        look c=gone      -> leave c from 2
        ensemble abd     -> send d at 2 from 2
        a stores 2       -> -
        b stores 2       -> ack 2
        look d=gone      -> -
        look d=gone      -> leave d from 3
        """,
    )


def test_bookies_without_agents_that_hang_are_left_at_the_same_look() -> None:
    assert_story(
        Quorum(4, 4, 2),
        "abcd",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=gone d=gone -> -
        look c=gone d=gone -> leave c from 2
        a stores 2       -> -
        b stores 2       -> -
        ensemble abed    -> send e at 2 from 2, leave d from 2
        ensemble abef    -> send f at 3 from 2, ack 2
        """,
    )


def test_one_that_has_its_share_is_left_before_one_that_hangs() -> None:
    assert_story(
        Quorum(4, 4, 2),
        "abcd",
        """
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=gone      -> -
        d stores 1       -> -
        look c=gone d=readonly -> leave d from 2
        ensemble abce    -> send e at 3 from 2, leave c from 2
        ensemble stays   -> -
        """,
    )


def test_a_bookie_that_was_behind_has_one_look_of_its_own_to_catch_up() -> None:
    """It caught up in between, during a change, and lags anew."""
    assert_story(
        Quorum(4, 4, 2),
        "abcd",
        """
        add 5            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        d stores 1       -> -
        look c=gone      -> -
        look c=gone d=readonly -> leave d from 2
        c stores 1       -> -
        look c=gone d=readonly -> -
        ensemble stays   -> -
        a stores 2       -> -
        b stores 2       -> ack 2
        look c=gone      -> -
        a stores 3       -> -
        b stores 3       -> ack 3
        look c=gone      -> leave c from 4
        """,
    )


def test_a_bookie_without_an_agent_that_lags_is_waited_for_once_and_left() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 2       -> -
        b stores 2       -> ack 2
        look             -> -
        c stores 1       -> -
        look c=gone      -> -
        a stores 3       -> -
        b stores 3       -> -
        c stores 2       -> leave c from 3
        ensemble abd     -> send d at 2 from 3, ack 3
        """,
    )


def test_a_bookie_without_an_agent_that_is_still_behind_at_the_next_look_is_given_up() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 2       -> -
        b stores 2       -> ack 2
        c stores 0       -> -
        look c=gone      -> -
        a stores 3       -> -
        b stores 3       -> -
        c stores 1       -> -
        look c=gone      -> leave c from 3
        c stores 2       -> -
        ensemble abd     -> send d at 2 from 3, ack 3
        """,
    )


def test_a_bookie_without_an_agent_that_hangs_holds_nobody_up_and_is_given_up() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 5            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=gone      -> -
        a stores 2       -> -
        b stores 2       -> ack 2
        look c=gone      -> leave c from 3
        a stores 3       -> -
        b stores 3       -> -
        ensemble stays   -> ack 3
        look c=gone      -> leave c from 4
        ensemble abd     -> send d at 2 from 4
        """,
    )


def test_a_bookie_without_an_agent_that_hangs_is_left_when_it_has_its_share_after_all() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 4            -> -
        a stores 2       -> -
        b stores 2       -> ack 2
        look c=gone      -> -
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
        look c=readonly  -> -
        a stores 1       -> -
        b stores 1       -> -
        look c=gone      -> ack 1
        """,
    )


def test_where_nobody_takes_its_place_a_bookie_that_is_read_only_stays() -> None:
    assert_story(
        Quorum(3, 3, 2),
        "abc",
        """
        add 2            -> -
        look c=readonly  -> leave c from 0
        a stores 0       -> -
        c stores 0       -> -
        ensemble stays   -> ack 0
        c stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly  -> leave c from 2
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
        look c=readonly  -> -
        a fails          -> replace a from 1
        ensemble dbc     -> send d at 0 from 1
        b stores 1       -> -
        d stores 1       -> ack 1
        c stores 1       -> -
        look c=readonly  -> leave c from 2
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
        look c=readonly  -> leave c from 0
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


def test_a_look_at_a_bookie_that_was_replaced_says_nothing() -> None:
    writer = Writer(Quorum(3, 3, 2), bookies("abc"))
    writer.step(BookieFailed(2, BookieId("c")))
    writer.step(EnsembleChanged(bookies("abd")))

    assert writer.step(BookiesLookedAt({2: BookieId("c")}, {})) == []


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
    left: set[BookieId] = field(default_factory=set)
    late: set[BookieId] = field(default_factory=set)
    """Bookies that had no agent and were behind at the last look."""
    given_up: set[BookieId] = field(default_factory=set)
    """Those that were at the last two."""
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
                case ChangeEnsemble(first, failed, may_stay):
                    assert self.change is None, "one change at a time"
                    assert first == self.acknowledged + 1
                    assert failed
                    for position, bookie in failed.items() if may_stay else ():
                        share = self.share(position)
                        is_whole = share <= self.truth[bookie]
                        assert is_whole or bookie in self.given_up, "left-bookies-are-whole"
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

    def look(self, readonly: dict[int, BookieId], gone: dict[int, BookieId]) -> None:
        late, self.late = self.late, {b for p, b in gone.items() if self.writer._is_behind(p)}
        self.given_up = late & self.late
        self.step(BookiesLookedAt(readonly, gone))

    def publish(self, is_back: bool = False) -> None:
        """Others take the places of the bookies that are replaced: ones that were left, or new."""
        assert self.change is not None
        ensemble = list(self.fragments[-1][1])
        back = self.may_be_gone_back_to() if is_back else []
        for position, bookie in self.change.failed.items():
            ensemble[position] = back.pop() if back else self.new_bookie()
            if self.change.may_stay:
                self.left.add(bookie)
        if self.fragments[-1][0] == self.change.first:
            self.fragments.pop()
        self.fragments.append((self.change.first, tuple(ensemble)))
        self.is_published = True
        self.check()

    def may_be_gone_back_to(self) -> list[BookieId]:
        """Bookies that were left, whose last answer came and of which all is acknowledged."""
        return [
            bookie
            for bookie in sorted(self.left - set(self.fragments[-1][1]))
            if max(self.truth[bookie], default=NO_ENTRY) <= self.acknowledged
            and all(not isinstance(a, Stored) or a.bookie != bookie for a in self.answers)
        ]

    def share(self, position: int) -> set[EntryId]:
        """What the bookie at a position is to have of what is acknowledged."""
        entries = map(EntryId, range(self.fragments[-1][0], self.acknowledged + 1))
        return {e for e in entries if self.quorum.holds(position, e)}

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
        can += ["look", "look begins"]
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
            case "look":
                lanes = {p: bookie for p, (bookie, _) in world.lanes.items()}
                found = {p: data.draw(st.sampled_from(["", "readonly", "gone"])) for p in lanes}
                readonly = {p: b for p, b in lanes.items() if found[p] == "readonly"}
                gone = {p: b for p, b in lanes.items() if found[p] == "gone"}
                world.look(readonly, gone)
            case "look begins":
                world.step(LookBegins())
            case "stay":
                world.stay()
            case "publish":
                world.publish(data.draw(st.booleans(), "back"))
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
