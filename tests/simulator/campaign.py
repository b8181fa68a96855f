"""Many lifetimes, in several processes, and what they met altogether."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Final

from tests.simulator.lifetime import LifetimeError, run_lifetime
from tests.simulator.quiet import quiet

SEEDS_AT_ONCE: Final = 100
"""What a process is given at a time."""


@dataclass
class Campaign:
    """What came of lifetimes."""

    lifetimes: int = 0
    entries: int = 0
    """Of closed ledgers."""
    operations: int = 0
    """On storage and metadata."""
    happened: Counter[str] = field(default_factory=Counter)
    """How often each of ``faults.FAULT_KINDS`` happened."""
    failures: list[str] = field(default_factory=list)
    """What each broken lifetime said."""
    cpu_seconds: float = 0.0
    """Of all processes."""
    seconds: float = 0.0

    def add(self, other: Campaign) -> None:
        """Take in what further lifetimes came to; the time that passed is the caller's."""
        self.lifetimes += other.lifetimes
        self.entries += other.entries
        self.operations += other.operations
        self.happened += other.happened
        self.failures += other.failures
        self.cpu_seconds += other.cpu_seconds


Progress = Callable[[Campaign, int], None]
"""Called now and then with what was done so far, and how many lifetimes were asked for."""


def run_campaign(
    seeds: range,
    *,
    jobs: int = 1,
    keep_going: bool = True,
    progress: Progress = lambda campaign, lifetimes: None,
) -> Campaign:
    """Run the lifetimes of these seeds; without ``keep_going`` only until some broke.

    Args:
        seeds: one lifetime each.
        jobs: how many processes; with 1 it is this one.
        keep_going: whether to go on after a failure.
        progress: told after every few lifetimes.
    """
    began = time.perf_counter()
    campaign = Campaign()
    for some in _pieces_done(seeds, jobs):
        campaign.add(some)
        campaign.seconds = time.perf_counter() - began
        progress(campaign, len(seeds))
        if campaign.failures and not keep_going:
            break
    return campaign


def _pieces_done(seeds: range, jobs: int) -> Iterator[Campaign]:
    pieces = [seeds[at : at + SEEDS_AT_ONCE] for at in range(0, len(seeds), SEEDS_AT_ONCE)]
    if jobs == 1:
        yield from map(run_seeds, pieces)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(run_seeds, pieces)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def run_seeds(seeds: range) -> Campaign:
    """Run some lifetimes in this process."""
    gc.collect()
    gc.freeze()  # what was imported is no garbage
    began = time.process_time()
    campaign = Campaign()
    for seed in seeds:
        campaign.lifetimes += 1
        try:
            with quiet():
                outcome = run_lifetime(seed)
        except LifetimeError as error:
            campaign.failures.append(str(error))
            continue
        campaign.happened += outcome.happened
        campaign.operations += outcome.operations
        if outcome.closed is not None and outcome.closed.last_entry_id is not None:
            campaign.entries += outcome.closed.last_entry_id + 1
    campaign.cpu_seconds = time.process_time() - began
    return campaign
