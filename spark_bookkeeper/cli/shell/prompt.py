"""Questions to a person before an irreversible change."""

from __future__ import annotations

import click

from spark_bookkeeper.cli.shell.settings import EXIT_LEFT_UNDONE


class NotConfirmedError(click.ClickException):
    """The answer was no, or there was none. Nothing was changed; the request is left undone."""

    exit_code = EXIT_LEFT_UNDONE


def confirm(question: str) -> None:
    """Ask a question on stderr, and return only after a yes.

    Raises:
        NotConfirmedError: the answer is no, or there is none.
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
