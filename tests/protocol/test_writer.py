"""The writer's machine: its stories as transcripts."""

from __future__ import annotations

import re

from spark_bookkeeper.protocol.ids import BookieId, EntryId
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


def assert_story(story: str) -> None:
    """A writer to whom the left side happens says the right side.

    It writes to a, b and c, each entry to all three of them, two of which acknowledge it, unless
    the first line says something else.
    """
    first, *rest = lines = [line.strip() for line in story.strip().splitlines()]
    sizes = re.fullmatch(r"(\w+), each entry on (\d), acknowledged by (\d)", first)
    names, copies, acks = sizes.groups() if sizes else ("abc", 3, 2)
    writer = Writer(Quorum(len(names), int(copies), int(acks)), bookies(names))
    writer.start()
    for line in rest if sizes else lines:
        happens, said = map(str.strip, line.split("->"))
        commands = writer.step(event_of(happens, writer))
        assert (", ".join(map(text_of, commands)) or "-") == said, line


def test_an_entry_is_acknowledged_by_its_ack_quorum() -> None:
    assert_story("""
        add 1            -> -
        a stores 0       -> -
        c stores 0       -> ack 0
        b stores 0       -> -
    """)


def test_an_entry_waits_for_those_before_it() -> None:
    assert_story("""
        abc, each entry on 2, acknowledged by 2
        add 3            -> -
        b stores 1       -> -
        c stores 1       -> -
        c stores 2       -> -
        a stores 0       -> ack 1
        a stores 2       -> ack 2
    """)


def test_one_answer_may_acknowledge_many() -> None:
    assert_story("""
        add 100          -> -
        a stores 99      -> -
        b stores 41      -> ack 41
        c stores 99      -> ack 99
    """)


def test_a_failed_bookie_is_replaced_from_the_first_unacknowledged_entry() -> None:
    assert_story("""
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        c fails          -> replace c from 2
        ensemble abd     -> send d at 2 from 2
        d stores 3       -> -
        a stores 3       -> ack 3
    """)


def test_nothing_is_confirmed_before_the_new_ensemble_is_published() -> None:
    assert_story("""
        add 1            -> -
        c fails          -> replace c from 0
        a stores 0       -> -
        b stores 0       -> -
        ensemble abd     -> send d at 2 from 0, ack 0
    """)


def test_answers_of_a_replaced_bookie_are_dropped() -> None:
    assert_story("""
        add 1            -> -
        c stores 0       -> -
        c fails          -> replace c from 0
        ensemble abd     -> send d at 2 from 0
        c at 2 stores 0  -> -
        a stores 0       -> -
        d stores 0       -> ack 0
    """)


def test_a_bookie_that_fails_during_a_change_is_replaced_by_the_next_one() -> None:
    assert_story("""
        add 1            -> -
        c fails          -> replace c from 0
        a stores 0       -> -
        b stores 0       -> -
        b fails          -> -
        ensemble abd     -> send d at 2 from 0, replace b from 0
        d stores 0       -> -
        ensemble aed     -> send e at 1 from 0, ack 0
    """)


def test_a_bookie_that_is_read_only_is_left_for_another_one() -> None:
    assert_story("""
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
    """)


def test_a_bookie_is_left_when_its_share_of_what_is_acknowledged_is_whole() -> None:
    assert_story("""
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly  -> -
        a stores 3       -> -
        b stores 3       -> -
        c stores 0       -> -
        c stores 1       -> leave c from 2
        ensemble abd     -> send d at 2 from 2, ack 3
    """)


def test_a_bookie_that_does_not_come_to_the_end_of_its_share_holds_nobody_up_for_long() -> None:
    assert_story("""
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
    """)


def test_two_bookies_that_hang_hold_nobody_up_for_longer_than_one() -> None:
    assert_story("""
        abcd, each entry on 4, acknowledged by 2
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
    """)


def test_bookies_that_are_read_only_are_left_one_after_the_other() -> None:
    assert_story("""
        abcd, each entry on 4, acknowledged by 2
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
    """)


def test_what_was_held_goes_on_at_a_look_that_finds_nobody_to_be_left() -> None:
    assert_story("""
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
    """)


def test_nothing_is_held_while_a_look_is_under_way() -> None:
    """It may take as long as the metadata store does."""
    assert_story("""
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
    """)


def test_what_was_held_goes_on_after_a_change_though_a_look_fell_into_it() -> None:
    """A writer that is being closed says in such a look that nobody is left any more."""
    assert_story("""
        abcd, each entry on 4, acknowledged by 2
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
    """)


def test_a_bookie_that_had_its_share_and_stayed_is_waited_for_again() -> None:
    assert_story("""
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
    """)


def test_a_bookie_that_was_not_to_be_left_meanwhile_is_waited_for_again() -> None:
    assert_story("""
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly  -> -
        look             -> -
        look c=readonly  -> -
        a stores 2       -> -
        b stores 2       -> -
        c stores 1       -> leave c from 2
    """)


def test_who_takes_the_place_of_a_bookie_is_waited_for_anew() -> None:
    assert_story("""
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
    """)


def test_who_takes_the_place_of_a_bookie_is_late_at_two_looks_of_its_own() -> None:
    assert_story("""
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
    """)


def test_bookies_without_agents_that_hang_are_left_at_the_same_look() -> None:
    assert_story("""
        abcd, each entry on 4, acknowledged by 2
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=gone d=gone -> -
        look c=gone d=gone -> leave c from 2
        a stores 2       -> -
        b stores 2       -> -
        ensemble abed    -> send e at 2 from 2, leave d from 2
        ensemble abef    -> send f at 3 from 2, ack 2
    """)


def test_one_that_has_its_share_is_left_before_one_that_hangs() -> None:
    assert_story("""
        abcd, each entry on 4, acknowledged by 2
        add 4            -> -
        a stores 1       -> -
        b stores 1       -> ack 1
        look c=gone      -> -
        d stores 1       -> -
        look c=gone d=readonly -> leave d from 2
        ensemble abce    -> send e at 3 from 2, leave c from 2
        ensemble stays   -> -
    """)


def test_a_bookie_that_was_behind_has_one_look_of_its_own_to_catch_up() -> None:
    """It caught up in between, during a change, and lags anew."""
    assert_story("""
        abcd, each entry on 4, acknowledged by 2
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
    """)


def test_a_bookie_without_an_agent_that_lags_is_waited_for_once_and_left() -> None:
    assert_story("""
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
    """)


def test_a_bookie_without_an_agent_that_is_still_behind_at_the_next_look_is_given_up() -> None:
    assert_story("""
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
    """)


def test_a_bookie_without_an_agent_that_hangs_holds_nobody_up_and_is_given_up() -> None:
    assert_story("""
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
    """)


def test_a_bookie_without_an_agent_that_hangs_is_left_when_it_has_its_share_after_all() -> None:
    assert_story("""
        add 4            -> -
        a stores 2       -> -
        b stores 2       -> ack 2
        look c=gone      -> -
        a stores 3       -> -
        c stores 1       -> -
        c stores 2       -> leave c from 3
        b stores 3       -> -
        ensemble abd     -> send d at 2 from 3, ack 3
    """)


def test_a_bookie_that_was_read_only_and_is_gone_holds_nobody_up_any_more() -> None:
    assert_story("""
        add 2            -> -
        a stores 0       -> -
        b stores 0       -> ack 0
        look c=readonly  -> -
        a stores 1       -> -
        b stores 1       -> -
        look c=gone      -> ack 1
    """)


def test_where_nobody_takes_its_place_a_bookie_that_is_read_only_stays() -> None:
    assert_story("""
        add 2            -> -
        look c=readonly  -> leave c from 0
        a stores 0       -> -
        c stores 0       -> -
        ensemble stays   -> ack 0
        c stores 1       -> -
        b stores 1       -> ack 1
        look c=readonly  -> leave c from 2
    """)


def test_a_bookie_that_fails_comes_before_one_that_is_read_only() -> None:
    assert_story("""
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
    """)


def test_a_bookie_that_fails_while_it_is_left_is_replaced_all_the_same() -> None:
    assert_story("""
        add 1            -> -
        look c=readonly  -> leave c from 0
        c fails          -> -
        ensemble stays   -> replace c from 0
        no ensemble      -> fail pending
    """)


def test_a_fence_ends_the_writing() -> None:
    assert_story("""
        add 2            -> -
        a stores 0       -> -
        b is fenced      -> fail pending
        c stores 1       -> -
        a stores 1       -> -
    """)


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
    assert_story("""
        add 1            -> -
        a fails          -> replace a from 0
        no ensemble      -> fail pending
        b stores 0       -> -
        c stores 0       -> -
    """)


def test_the_first_commands_open_a_lane_for_each_bookie() -> None:
    commands = Writer(Quorum(3, 2, 2), bookies("abc")).start()

    assert [text_of(c) for c in commands] == [
        "send a at 0 from 0",
        "send b at 1 from 0",
        "send c at 2 from 0",
    ]
