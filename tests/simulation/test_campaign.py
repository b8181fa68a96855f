"""Many lifetimes: what several processes met is added up, and a failure is told."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from tests.simulator import campaign
from tests.simulator.campaign import run_campaign
from tests.simulator.history import History
from tests.simulator.lifetime import LifetimeError, run_lifetime


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.full)])
def test_however_many_processes_meet_what_their_lifetimes_meet(
    jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "SEEDS_AT_ONCE", 2)
    told: list[int] = []
    lived = [run_lifetime(seed) for seed in range(5)]

    found = run_campaign(
        range(5), jobs=jobs, progress=lambda so_far, _: told.append(so_far.lifetimes)
    )

    assert told == [2, 4, 5]
    assert found.lifetimes == 5
    assert found.happened == sum((each.happened for each in lived), Counter[str]())
    assert found.operations == sum(each.operations for each in lived)
    ends = [each.closed.last_entry_id for each in lived if each.closed is not None]
    assert found.entries == sum(last + 1 for last in ends if last is not None)
    assert found.failures == []
    assert found.cpu_seconds > 0


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
