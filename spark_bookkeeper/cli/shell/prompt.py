"""Asking a person before something is changed for good."""

from __future__ import annotations

import click

from spark_bookkeeper.cli.shell.settings import EXIT_LEFT_UNDONE


class NotConfirmedError(click.ClickException):
    """The answer was no, or there was none. Nothing was changed; what was asked for is not done."""

    exit_code = EXIT_LEFT_UNDONE


def confirm(question: str) -> None:
    """Go on only after a yes, asked for on stderr.

    Raises:
        NotConfirmedError: no, or nobody answers.
    """
    try:
        is_wanted = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)  # the question's line has no end yet
        raise NotConfirmedError(
            "nobody answered. Nothing was changed; --yes does it without asking"
        ) from None
    if not is_wanted:
        raise NotConfirmedError("not confirmed. Nothing was changed")
