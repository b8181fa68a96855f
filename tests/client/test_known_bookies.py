"""Which bookies may be chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.errors import NotEnoughBookiesError
from spark_bookkeeper.metadata.store import Cookie, Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.hooks import NO_ANSWER, At


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path, bookies=4, runtime=InlineRuntime())


def say(
    ground: Ground, bookie: BookieId, root_uri: str | None = None, incarnation: str | None = None
) -> Cookie:
    """Its cookie says something else from now on; returns what it said."""
    known = ground.context.store.read_cookie(bookie)
    assert known is not None
    said = known.value
    other = replace(
        said,
        root_uri=said.root_uri if root_uri is None else root_uri,
        incarnation=said.incarnation if incarnation is None else incarnation,
    )
    ground.context.store.write_cookie(other, known.version)
    return said


def test_a_bookie_has_a_host_unless_its_files_are_in_a_bucket(ground: Ground) -> None:
    context, (first, *others) = ground.context, ground.bookie_ids
    ground.stop(first)
    context.store.register(Registration(first, "s3://bucket/root", "1"))
    assert context.bookies.hosts() == {each: each.rpartition(":")[0] for each in others}


@pytest.mark.parametrize(
    ("other", "is_chosen"),
    [
        ({}, True),
        ({"root_uri": "file:///elsewhere"}, False),
        ({"incarnation": "another"}, False),
        ({"incarnation": "", "root_uri": "whatever BookKeeper wrote"}, True),
    ],
)
def test_a_bookie_that_is_registered_with_another_storage_than_its_cookie_names_gets_no_new_ledger(
    ground: Ground, other: dict[str, str], is_chosen: bool
) -> None:
    bookie = ground.bookie_ids[0]
    right = say(ground, bookie, **other)
    everywhere = Quorum(4, 3, 2)

    if is_chosen:
        lifecycle.create_ledger(ground.context, everywhere).close()
        return
    with pytest.raises(NotEnoughBookiesError, match="another storage than its registration"):
        lifecycle.create_ledger(ground.context, everywhere)
    lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)).close()

    say(ground, bookie, root_uri=right.root_uri, incarnation=right.incarnation)
    lifecycle.create_ledger(ground.context, everywhere).close()


def test_cookies_are_asked_for_once_for_each_registration(ground: Ground) -> None:
    counts = []
    for _ in range(3):
        lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)).close()
        counts.append(ground.count()["cookies"])
        if len(counts) == 2:
            ground.format(ground.bookie_ids[3])

    assert counts == [1, 1, 2]


@pytest.mark.parametrize(
    ("root_uri", "incarnation", "is_readonly", "reason"),
    [
        ("", "", False, "its registration names none"),
        ("file:///elsewhere", "another", True, "read-only"),
    ],
)
def test_cookies_are_not_asked_for_on_account_of_a_bookie_that_is_not_chosen_anyway(
    ground: Ground, root_uri: str, incarnation: str, is_readonly: bool, reason: str
) -> None:
    bookie = ground.bookie_ids[0]
    said = Registration(bookie, root_uri, incarnation, is_readonly=is_readonly)
    ground.end_agent(bookie)
    ground.context.store.register(said)

    for _ in range(3):
        lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)).close()

    assert ground.count()["cookies"] == 1
    with pytest.raises(NotEnoughBookiesError, match=reason):
        lifecycle.create_ledger(ground.context, Quorum(4, 3, 2))


def test_without_an_answer_about_cookies_nothing_speaks_against_a_bookie(ground: Ground) -> None:
    ground.before.append(At("cookies", NO_ANSWER))

    lifecycle.create_ledger(ground.context, Quorum(4, 3, 2)).close()


@pytest.mark.parametrize("least", [16 << 30, None])
def test_bookies_are_preferred_as_often_as_their_free_space_says(
    ground: Ground, least: int | None
) -> None:
    told = (least, 32 << 30, 64 << 30, 16 << 30)
    for bookie, free_bytes in zip(ground.bookie_ids, told, strict=True):
        ground.start(bookie, free_bytes=free_bytes)
    bookies = ground.context.bookies
    few = bookies.registrations()[ground.bookie_ids[3]]  # of inodes; it is 16 GiB all the same
    size = 64 << 30
    ground._agent.register(
        replace(few, free_bytes=size, total_bytes=size, free_inodes=1, total_inodes=4)
    )

    alive = bookies.registrations()
    first = Counter(bookies.candidates(alive)[0].bookie_id for _ in range(2_000))

    for bookie, part in zip(ground.bookie_ids, (0.125, 0.25, 0.5, 0.125), strict=True):
        assert abs(first[bookie] / 2_000 - part) < 0.07, "six times the standard deviation"
