"""What the cluster is to be told, from what is seen of a bookie's storage."""

from __future__ import annotations

import pytest

from spark_bookkeeper.cluster.health import (
    Observation,
    Published,
    Register,
    Stay,
    Unregister,
    decide,
)
from spark_bookkeeper.config import BookieConfig

CONFIG = BookieConfig(readonly_below_free_bytes=100, writable_above_free_bytes=200)
TOTAL = 1_000

WELL = Observation(None, False, 500, TOTAL)
WRITABLE = Published(False, 500, TOTAL)
READONLY = Published(True, 50, TOTAL)


def seen(free_bytes: int) -> Observation:
    return Observation(None, False, free_bytes, TOTAL)


@pytest.mark.parametrize(
    ("published", "observation", "action"),
    [
        (None, WELL, Register(WRITABLE)),
        (WRITABLE, WELL, Stay()),
        (WRITABLE, Observation("no answer"), Unregister("no answer")),
        (READONLY, Observation("no answer"), Unregister("no answer")),
        (None, Observation("no answer"), Stay()),
        # Space: two marks, and between them a bookie stays what it is.
        (WRITABLE, seen(100), Register(Published(False, 100, TOTAL))),
        (WRITABLE, seen(99), Register(Published(True, 99, TOTAL))),
        (READONLY, seen(199), Register(Published(True, 199, TOTAL))),
        (READONLY, seen(200), Register(Published(False, 200, TOTAL))),
        (None, seen(150), Register(Published(False, 150, TOTAL))),
        (None, seen(50), Register(Published(True, 50, TOTAL))),
        # A write that was refused says more than a number.
        (
            WRITABLE,
            Observation(None, True, 500, TOTAL),
            Register(Published(True, 500, TOTAL)),
        ),
        (READONLY, Observation(None, True, 50, TOTAL), Stay()),
        # Small changes of free space are no news, large ones are.
        (WRITABLE, seen(460), Stay()),
        (WRITABLE, seen(440), Register(Published(False, 440, TOTAL))),
        # Buckets have no end.
        (None, Observation(), Register(Published(False, None, None))),
        (Published(False, None, None), Observation(), Stay()),
    ],
)
def test_the_decision_follows_from_what_is_seen_now(
    published: Published | None, observation: Observation, action: Stay | Register | Unregister
) -> None:
    assert decide(published, observation, CONFIG) == action
