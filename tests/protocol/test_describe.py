"""The pictures that failing tests draw."""

from __future__ import annotations

from textwrap import dedent

from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from tests.support.describe import (
    describe_answers,
    describe_fragments,
    describe_prefixes,
)


def picture(text: str) -> str:
    return dedent(text).rstrip()


def test_an_ensemble_is_drawn_with_who_stores_what() -> None:
    assert describe_prefixes(Quorum(3, 2, 2), (2, 0, -1), 3) == picture(
        """
        E=3 Qw=2 Qa=2
        entry   0  1  2  3
        a       #  .  #  -  through 2
        b       #  -  .  -  through 0
        c       .  -  -  .  through -1
        copies  2* 0  1  0
        """
    )


def test_answers_are_drawn_by_write_sets() -> None:
    assert describe_answers(Quorum(3, 2, 1), {0}) == picture(
        """
        E=3 Qw=2 Qa=1
        entry   0  1  2
        a       #  .  #  answered
        b       ?  ?  .  silent
        c       .  ?  ?  silent
        copies  1* 0  1*
        2 answers of each write set are needed
        """
    )


def test_a_ledger_of_two_ensembles_is_drawn_by_bookies() -> None:
    a, b, c = map(BookieId, "abc")
    fragments = [(EntryId(0), (a, b)), (EntryId(2), (a, c))]
    stored = {a: {EntryId(0), EntryId(1), EntryId(2)}, b: {EntryId(0)}}

    assert describe_fragments(Quorum(2, 2, 2), fragments, stored, 2) == picture(
        """
        E=2 Qw=2 Qa=2
        entry   0  1  2
        a       #  #  #
        b       #  -  .
        c       .  .  -
        copies  2* 1  1
        ensembles from 0: a b; from 2: a c
        """
    )
