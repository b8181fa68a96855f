"""``python -m spark_bookkeeper``, and ``spark-bookkeeper``, are the command line."""

from __future__ import annotations

from typing import NoReturn

from spark_bookkeeper.cli.shell.program import exit_with


def main() -> NoReturn:
    """Run the command line."""
    exit_with(_command_line)


def _command_line() -> NoReturn:
    from spark_bookkeeper.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
