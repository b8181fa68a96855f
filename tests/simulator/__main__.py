"""Run lifetimes: ``python -m tests.simulator --seed 7 --verbose``.

Or many, in several processes: ``... --lifetimes 100000 --jobs 2``. Progress goes to stderr, the
failures and what was met to stdout.
"""

from __future__ import annotations

import argparse
import sys

from tests.simulator.campaign import Campaign, run_campaign
from tests.simulator.faults import FAULT_KINDS
from tests.simulator.lifetime import LifetimeError, run_lifetime


def main() -> int:
    """Run the seeds asked for; 1 if one of them broke an invariant."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator")
    parser.add_argument("--seed", "--first-seed", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--lifetimes", "--count", type=int, default=1, help="how many seeds, from the first on"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--verbose", action="store_true", help="show the whole history of each")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.lifetimes)
    if arguments.verbose:
        return _show(seeds, keep_going=arguments.keep_going)
    campaign = run_campaign(
        seeds, jobs=arguments.jobs, keep_going=arguments.keep_going, progress=_progress
    )
    _report(campaign, arguments.jobs)
    return 1 if campaign.failures else 0


def _show(seeds: range, *, keep_going: bool) -> int:
    """The whole history of each lifetime."""
    failures = 0
    for seed in seeds:
        try:
            outcome = run_lifetime(seed)
        except LifetimeError as error:
            failures += 1
            _say(f"{error.history}\nFAILED {error}")
            if not keep_going:
                break
        else:
            _say(str(outcome.history))
            _say(f"{outcome.script}\n{outcome.closed}\ndigest {outcome.history.digest()}")
    return 1 if failures else 0


def _report(campaign: Campaign, jobs: int) -> None:
    _say("how often each fault happened:")
    for kind in FAULT_KINDS:
        _say(f"{campaign.happened[kind]:12,}  {kind}")
    for failure in campaign.failures:
        _say(f"FAILED {failure}")
    _say(
        f"{campaign.lifetimes:,} lifetimes, {campaign.entries:,} entries, "
        f"{campaign.operations:,} operations, {len(campaign.failures)} failures, "
        f"{campaign.seconds:.1f} s: {campaign.lifetimes / campaign.seconds:.0f} a second, "
        f"{campaign.lifetimes / campaign.cpu_seconds:.0f} a second of one core ({jobs} jobs)"
    )


def _progress(campaign: Campaign, lifetimes: int) -> None:
    sys.stderr.write(
        f"\r{campaign.lifetimes:,} of {lifetimes:,} lifetimes, {len(campaign.failures)} failures, "
        f"{campaign.lifetimes / campaign.seconds:.0f} a second "
    )
    sys.stderr.write("\n" if campaign.lifetimes == lifetimes else "")
    sys.stderr.flush()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
