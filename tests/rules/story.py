"""A rule, the story that needs it, and what the stories begin with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.testing.ground import Ground
from tests.support.slotlog import log_of

Story = Callable[[Ground], None]
TakeOut = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Rule:
    """A rule, the story that needs it, and how to take it out."""

    name: str
    story: Story
    take_out: TakeOut
    bookies: int
    """Of the ground on which the story is told."""


RULES: list[Rule] = []


def needs(name: str, take_out: TakeOut, *, bookies: int = 4) -> Callable[[Story], Story]:
    """Register the story that is decorated, of a rule, and what takes the rule out."""

    def register(story: Story) -> Story:
        RULES.append(Rule(name, story, take_out, bookies))
        return story

    return register


def without(owner: object, name: str, value: object) -> TakeOut:
    """Have something else in its place. Under a wrong name the story would go well."""
    return lambda patch: patch.setattr(owner, name, value, raising=False)


def put(ground: Ground, writer: LedgerWriter, position: int, slot: int, entry_id: int) -> None:
    """One more entry on one bookie, as the writer would have put it there."""
    ledger = writer._pipeline.ledger
    log = log_of(ground.context, writer.metadata.last_fragment.ensemble[position], ledger)
    log.prepare()
    entry = NewEntry(entry_id, entry_id + 1, b"x")
    log.add(
        slot, encode_add(log.key, log.encoding, writer._pipeline._channels.token, slot, -1, [entry])
    )
