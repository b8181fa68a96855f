"""``python -m spark_bookkeeper``, and ``spark-bookkeeper``, are the command line."""

from __future__ import annotations

import sys
from typing import NoReturn

from spark_bookkeeper.cli.shell.termination import termination_interrupts


def main() -> NoReturn:
    """Run the command line, whose imports take a moment, in which it can be interrupted too."""
    try:
        with termination_interrupts():
            from spark_bookkeeper.cli.main import main as command_line

            command_line()
    except KeyboardInterrupt:  # before a command began, or after it ended
        sys.stderr.write("Interrupted.\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
