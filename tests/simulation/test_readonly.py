"""Bookies that become read-only at any moment, among everything else that goes wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spark_bookkeeper.client.write import ensemble_change
from spark_bookkeeper.client.write.bookie_channel import BookieChannel
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from tests.simulator.faults import Disaster
from tests.simulator.lifetime import Script, run_lifetime


def crowded(seed: int, spare: int) -> Script:
    """A drawn lifetime in which bookies are read-only for a while, and writers look often."""
    dice = random.Random(f"{seed}/crowded")
    script = replace(Script.drawn(seed), ending="leave", delete_at=None)
    short = tuple(
        Disaster(
            "read-only",
            dice.randrange(script.bookies + spare),
            dice.randint(1, 60),
            dice.choice((5.0, 60.0)),
        )
        for _ in range(dice.randint(1, 4))
    )
    plan = replace(script.plan, disasters=(*script.plan.disasters, *short))
    return replace(
        script,
        waits=frozenset(range(20)),
        plan=plan,
        bookies=script.bookies + spare,
        add_timeout_ms=400,
    )


@pytest.mark.parametrize(
    ("spare", "seeds", "changes", "returns"),
    [
        # Writers leave bookies and go back to them: with one to spare, the first time in seed 17.
        (2, range(12, 40), 11, 1),
        (1, range(17, 25), 3, 1),
        pytest.param(2, range(120), 11, 1, marks=pytest.mark.full),
        pytest.param(1, range(160), 11, 2, marks=pytest.mark.full),
        pytest.param(2, range(400), 11, 1, marks=pytest.mark.exhaustive),
        pytest.param(1, range(1_000), 11, 2, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_lifetimes_with_bookies_that_become_read_only_keep_every_invariant(
    spare: int, seeds: range, changes: int, returns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = ensemble_change.change_ensemble
    met = {True: 0, False: 0}
    go_on, backs = BookieChannel.go_on_from, 0

    def back(channel: BookieChannel, before: BookieChannel) -> None:
        nonlocal backs
        backs += 1
        go_on(channel, before)

    def noted(*arguments: object, may_stay: bool) -> Versioned[LedgerMetadata] | None:
        changed = change(*arguments, may_stay=may_stay)  # type: ignore[arg-type]  # passed on
        if may_stay:
            met[changed is not None] += 1
        return changed

    monkeypatch.setattr(ensemble_change, "change_ensemble", noted)
    monkeypatch.setattr(BookieChannel, "go_on_from", back)

    for seed in seeds:
        run_lifetime(seed, crowded(seed, spare))

    assert met[True] >= changes, met
    assert backs >= returns
