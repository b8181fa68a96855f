"""Arguments that several commands take."""

from __future__ import annotations

import click


class LedgerIdType(click.IntRange):
    """A ledger id; refused under that name."""

    name = "ledger id"

    def __init__(self) -> None:
        super().__init__(min=0, max=(1 << 63) - 1)
