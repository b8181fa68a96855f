"""The writer's machine: its stories as transcripts."""

from __future__ import annotations

import re

import pytest

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
    lines = [line.strip() for line in story.strip().splitlines()]
    first, *rest = lines = [line for line in lines if not line.startswith("#")]
    sizes = re.fullmatch(r"(\w+), each entry on (\d), acknowledged by (\d)", first)
    names, copies, acks = sizes.groups() if sizes else ("abc", 3, 2)
    writer = Writer(Quorum(len(names), int(copies), int(acks)), bookies(names))
    writer.start()
    for line in rest if sizes else lines:
        happens, said = map(str.strip, line.split("->"))
        commands = writer.step(event_of(happens, writer))
        assert (", ".join(map(text_of, commands)) or "-") == said, line


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


STORIES = """
an entry is acknowledged by its ack quorum
    add 1            -> -
    a stores 0       -> -
    c stores 0       -> ack 0
    b stores 0       -> -

one answer may acknowledge many
    add 100          -> -
    a stores 99      -> -
    b stores 41      -> ack 41
    c stores 99      -> ack 99

a failed bookie is replaced from the first unacknowledged entry
    add 4            -> -
    a stores 1       -> -
    b stores 1       -> ack 1
    c fails          -> replace c from 2
    ensemble abd     -> send d at 2 from 2
    d stores 3       -> -
    a stores 3       -> ack 3

nothing is confirmed before the new ensemble is published
    add 1            -> -
    c fails          -> replace c from 0
    a stores 0       -> -
    b stores 0       -> -
    ensemble abd     -> send d at 2 from 0, ack 0

answers of a replaced bookie are dropped
    add 1            -> -
    c stores 0       -> -
    c fails          -> replace c from 0
    ensemble abd     -> send d at 2 from 0
    c at 2 stores 0  -> -
    a stores 0       -> -
    d stores 0       -> ack 0

a bookie that fails during a change is replaced by the next one
    add 1            -> -
    c fails          -> replace c from 0
    a stores 0       -> -
    b stores 0       -> -
    b fails          -> -
    ensemble abd     -> send d at 2 from 0, replace b from 0
    d stores 0       -> -
    ensemble aed     -> send e at 1 from 0, ack 0

a bookie that is read only is left for another one
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

a bookie is left when its share of what is acknowledged is whole
    add 4            -> -
    a stores 1       -> -
    b stores 1       -> ack 1
    look c=readonly  -> -
    a stores 3       -> -
    b stores 3       -> -
    c stores 0       -> -
    c stores 1       -> leave c from 2
    ensemble abd     -> send d at 2 from 2, ack 3

a bookie that does not come to the end of its share holds nobody up for long
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

two bookies that hang hold nobody up for longer than one
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

bookies that are read only are left one after the other
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

what was held goes on at a look that finds nobody to be left
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

nothing is held while a look is under way
# It may take as long as the metadata store does.
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

what was held goes on after a change though a look fell into it
# A writer that is being closed says in such a look that nobody is left any more.
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

a bookie that had its share and stayed is waited for again
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

a bookie that was not to be left meanwhile is waited for again
    add 4            -> -
    a stores 1       -> -
    b stores 1       -> ack 1
    look c=readonly  -> -
    look             -> -
    look c=readonly  -> -
    a stores 2       -> -
    b stores 2       -> -
    c stores 1       -> leave c from 2

who takes the place of a bookie is waited for anew
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

who takes the place of a bookie is late at two looks of its own
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

bookies without agents that hang are left at the same look
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

one that has its share is left before one that hangs
    abcd, each entry on 4, acknowledged by 2
    add 4            -> -
    a stores 1       -> -
    b stores 1       -> ack 1
    look c=gone      -> -
    d stores 1       -> -
    look c=gone d=readonly -> leave d from 2
    ensemble abce    -> send e at 3 from 2, leave c from 2
    ensemble stays   -> -

a bookie that was behind has one look of its own to catch up
# It caught up in between, during a change, and lags anew.
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

a bookie without an agent that lags is waited for once and left
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

a bookie without an agent that is still behind at the next look is given up
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

a bookie without an agent that hangs holds nobody up and is given up
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

a bookie without an agent that hangs is left when it has its share after all
    add 4            -> -
    a stores 2       -> -
    b stores 2       -> ack 2
    look c=gone      -> -
    a stores 3       -> -
    c stores 1       -> -
    c stores 2       -> leave c from 3
    b stores 3       -> -
    ensemble abd     -> send d at 2 from 3, ack 3

a bookie that was read only and is gone holds nobody up any more
    add 2            -> -
    a stores 0       -> -
    b stores 0       -> ack 0
    look c=readonly  -> -
    a stores 1       -> -
    b stores 1       -> -
    look c=gone      -> ack 1

where nobody takes its place a bookie that is read only stays
    add 2            -> -
    look c=readonly  -> leave c from 0
    a stores 0       -> -
    c stores 0       -> -
    ensemble stays   -> ack 0
    c stores 1       -> -
    b stores 1       -> ack 1
    look c=readonly  -> leave c from 2

a bookie that fails comes before one that is read only
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

a bookie that fails while it is left is replaced all the same
    add 1            -> -
    look c=readonly  -> leave c from 0
    c fails          -> -
    ensemble stays   -> replace c from 0
    no ensemble      -> fail pending

a fence ends the writing
    add 2            -> -
    a stores 0       -> -
    b is fenced      -> fail pending
    c stores 1       -> -
    a stores 1       -> -

without an ensemble the writer gives up
    add 1            -> -
    a fails          -> replace a from 0
    no ensemble      -> fail pending
    b stores 0       -> -
    c stores 0       -> -
"""
"""A blank line before each story; its name, and what happens with what the writer does."""


TOLD = [story.split("\n", 1) for story in STORIES.strip().split("\n\n")]


@pytest.mark.parametrize("story", [pytest.param(lines, id=name) for name, lines in TOLD])
def test_a_story(story: str) -> None:
    assert_story(story)


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


def test_the_first_commands_open_a_channel_for_each_bookie() -> None:
    commands = Writer(Quorum(3, 2, 2), bookies("abc")).start()

    assert [text_of(c) for c in commands] == [
        "send a at 0 from 0",
        "send b at 1 from 0",
        "send c at 2 from 0",
    ]
