"""The global options of every command, and its exit codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from spark_bookkeeper import errors
from spark_bookkeeper.cli.shell.logs import LogFormat
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError

METADATA_URI_VARIABLE: Final = "SPARK_BOOKKEEPER_METADATA_URI"

EXIT_DONE: Final = 0
"""Everything that was requested is done."""
EXIT_LEFT_UNDONE: Final = 1
"""Something is left undone, or may be; the message says what."""
EXIT_NOTHING_CHANGED: Final = 2
"""The call was wrong or the cluster cannot be reached; nothing was changed."""

EXIT_CLOSED_PIPE: Final = 141
"""The reader of the output ended, as `head` does; the code of programs that end by SIGPIPE."""

_REFUSALS = (
    errors.InvalidArgumentError,
    errors.LedgerExistsError,
    errors.LogExistsError,
    errors.MissingRequirementError,
    errors.NoClusterError,
    errors.NoSuchEntryError,
    errors.NoSuchLedgerError,
    errors.NoSuchLogError,
    errors.UnauthorizedError,
    errors.UnsuitableStorageError,
)


@dataclass(frozen=True)
class Settings:
    """The global options; ``click.Context.obj`` of every command (``@click.pass_obj``)."""

    metadata_uri: str | None
    output: Output
    is_verbose: bool = False
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of a Spark session, if one has to be started."""
    log_format: LogFormat = "text"

    def require_metadata_uri(self) -> str:
        """Return the metadata URI.

        Raises:
            InvalidArgumentError: none was given.
        """
        if not self.metadata_uri:
            raise InvalidArgumentError(
                "no cluster was named: give --metadata-uri zk://HOST:2181/ledgers or set "
                f"{METADATA_URI_VARIABLE}; `spark-bookkeeper local start` makes a cluster to try"
            )
        return self.metadata_uri


def exit_code_of(error: BookKeeperError) -> int:
    """Return the exit code of a command that ended with ``error``.

    2 for errors that refuse a call before it does anything. 2 also for any other error with the
    fact ``nothing_changed=True``, which the raiser sets if it knows that nothing was changed (the
    cluster could not be reached in the first place). 1 for everything else: after a lost answer,
    the outcome is unknown.
    """
    is_unchanged = error.facts.get("nothing_changed", isinstance(error, _REFUSALS))
    return EXIT_NOTHING_CHANGED if is_unchanged else EXIT_LEFT_UNDONE


@contextmanager
def begun() -> Iterator[None]:
    """Run a block after a change, so that no error in it ends the command with 2."""
    try:
        yield
    except BookKeeperError as error:
        error.facts["nothing_changed"] = False
        raise
