"""Run lifetimes: ``python -m spark_bookkeeper.testing.simulation --seed 7 --verbose``."""

from __future__ import annotations

import argparse
import sys
import time

from spark_bookkeeper.testing.simulation.lifetime import LifetimeError, run_lifetime


def main() -> int:
    """Run the seeds asked for; 1 if one of them broke an invariant."""
    parser = argparse.ArgumentParser(prog="python -m spark_bookkeeper.testing.simulation")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, from the first on")
    parser.add_argument("--verbose", action="store_true", help="show the whole history")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    arguments = parser.parse_args()
    began = time.perf_counter()
    failures = 0
    entries = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        try:
            outcome = run_lifetime(seed)
        except LifetimeError as error:
            failures += 1
            if arguments.verbose:
                _say(str(error.history))
            _say(f"FAILED {error}")
            if not arguments.keep_going:
                return 1
            continue
        if outcome.closed is not None and outcome.closed.last_entry_id is not None:
            entries += outcome.closed.last_entry_id + 1
        if arguments.verbose:
            _say(str(outcome.history))
            _say(f"{outcome.script}\n{outcome.closed}\ndigest {outcome.history.digest()}")
    seconds = time.perf_counter() - began
    _say(
        f"{arguments.count} lifetimes, {entries} entries, {failures} failures, "
        f"{seconds:.1f} s ({seconds / arguments.count * 1000:.0f} ms each)"
    )
    return 1 if failures else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
