"""Whether a restore runs, and whether one was left before its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.cluster.diagnosis import Diagnosis
from spark_bookkeeper.metadata import restores

_MOST_NAMED: Final = 10
"""Ledgers that a finding names; it counts them all."""


def restore_diagnoses(context: ClientContext) -> Iterator[Diagnosis]:
    """One where a restore runs, or has begun with ledgers that are not there yet."""
    running = restores.running(context.store.ballots, context.runtime)
    begun = list(restores.begun(context.store.registers))
    if running:
        said = f"under way by {'; '.join(running)}: {len(begun):,} ledgers are not there yet"
        yield Diagnosis("restores", "ok", said)
    elif begun:
        shown = ", ".join(map(str, begun[:_MOST_NAMED]))
        more = ", ..." if len(begun) > _MOST_NAMED else ""
        yield Diagnosis(
            "restores",
            "warning",
            f"none runs, and {len(begun):,} ledgers were begun and are not there: {shown}{more}. "
            "Their copies take space, and are not collected",
            "repeat it: spark-bookkeeper cluster restore URI; or give it up: spark-bookkeeper "
            "cluster restore --forget",
        )
