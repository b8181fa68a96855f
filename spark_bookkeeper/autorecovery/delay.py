"""How long a bookie may be away before it is lost, whatever somebody has written there."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import Changed, Underreplication

_UNREADABLE: Final = Versioned(0, -1)
"""No time at all, as where nobody has said. No node has this version, so another delay is news."""


class Delay(NamedTuple):
    """What is obeyed, and what is the matter with it."""

    seconds: Versioned[int] | None
    """``None`` where nobody has said; 0 where what is said cannot be read."""
    warning: str | None = None
    """That it cannot be read, and what to do."""


def read_delay(tree: Underreplication, changed: Changed | None = None) -> Delay:
    """The delay of the cluster; ``changed`` is called once when there is another.

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
