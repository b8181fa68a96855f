"""What a script in ``jobs/`` calls. It imports next to nothing, so that Ctrl-C is heard at once."""

from __future__ import annotations

from typing import NoReturn

from spark_bookkeeper.cli.shell.termination import exit_with


def main(name: str) -> NoReturn:
    """Run the job of that name with the arguments of this process, and exit with its code."""

    def job() -> int:
        from spark_bookkeeper.cli.shell.jobs import run_job

        return run_job(name)

    exit_with(job)
