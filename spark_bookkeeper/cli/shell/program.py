"""The start of each program: the command line, and each script in ``jobs/``.

Imports take a moment, in which Ctrl-C and SIGTERM may come. So this module imports almost
nothing, and a program's own imports happen within ``exit_with``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from spark_bookkeeper.cli.shell.termination import is_first_to_say, termination_interrupts


def exit_with(program: Callable[[], int]) -> NoReturn:
    """Exit with the code of a program; with 1 and a message, if a signal interrupts its imports."""
    try:
        with termination_interrupts():
            code = program()
    except KeyboardInterrupt:  # the program itself reports an interruption of its work
        if is_first_to_say():
            sys.stderr.write("Interrupted.\n")
        code = 1
    sys.exit(code)


def run_script(name: str) -> NoReturn:
    """Run the job of that name with the arguments of this process, and exit with its code."""

    def job() -> int:
        from spark_bookkeeper.cli.shell.jobs import run_job

        return run_job(name)

    exit_with(job)
