"""Many lifetimes: what several processes met is added up, and a failure is told."""

from __future__ import annotations

import logging

import pytest

from spark_bookkeeper.testing.simulation import campaign
from spark_bookkeeper.testing.simulation.campaign import Campaign, run_campaign
from spark_bookkeeper.testing.simulation.history import History
from spark_bookkeeper.testing.simulation.lifetime import LifetimeError, run_lifetime


def test_two_processes_meet_what_one_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "SEEDS_AT_ONCE", 4)
    told: list[int] = []

    one = run_campaign(range(10), progress=lambda so_far, _: told.append(so_far.lifetimes))
    two = run_campaign(range(10), jobs=2)

    assert told == [4, 8, 10]
    for found in (one, two):
        assert found.lifetimes == 10
        assert found.happened == sum_of(range(10))
        assert (found.entries, found.operations) == (one.entries, one.operations)
        assert found.failures == []
        assert found.cpu_seconds > 0


def sum_of(seeds: range) -> dict[str, int]:
    together = Campaign()
    for seed in seeds:
        together.happened += run_lifetime(seed).happened
    return dict(together.happened)


def test_what_is_run_after_it_logs_as_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "spark_bookkeeper")

    run_campaign(range(1))

    logging.getLogger("spark_bookkeeper.client").warning("an end that came after")
    assert caplog.messages == ["an end that came after"]


def test_a_lifetime_that_breaks_is_told_and_the_others_are_lived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(seed: int) -> object:
        if seed == 2:
            raise LifetimeError("acked-entries-are-readable: gone", seed, History())
        return run_lifetime(seed)

    monkeypatch.setattr(campaign, "run_lifetime", run)
    monkeypatch.setattr(campaign, "SEEDS_AT_ONCE", 3)

    assert run_campaign(range(6)).lifetimes == 6
    stopped = run_campaign(range(6), keep_going=False)
    assert stopped.lifetimes == 3
    assert len(stopped.failures) == 1
    assert "--seed 2 --verbose" in stopped.failures[0]
