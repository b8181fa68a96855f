"""The delay that a bookie may be away before it is lost; an unreadable value counts as 0."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import Changed, Underreplication

_UNREADABLE: Final = Versioned(0, -1)
"""No delay, as if none was set. No node has this version, so any other delay counts as a change."""


class Delay(NamedTuple):
    """The delay that the auditor uses, and a warning about it."""

    seconds: Versioned[int] | None
    """``None`` if none was set; 0 if the stored value cannot be read."""
    warning: str | None = None
    """The warning that it cannot be read, with the remedy."""


def read_delay(tree: Underreplication, changed: Changed | None = None) -> Delay:
    """Return the delay of the cluster; ``changed`` is called once when it changes.

    Raises:
        MetadataUnavailableError: there was no answer.
    """
    try:
        return Delay(tree.delay_seconds(changed))
    except MetadataFormatError as error:
        return Delay(
            _UNREADABLE,
            f"how long a bookie may be away cannot be read, so each is lost at once: "
            f"{error.message}. To set it: `spark-bookkeeper autorecovery delay SECONDS`",
        )
