"""Whether a restore runs, and whether one stopped before its end."""

from __future__ import annotations

from collections.abc import Iterator

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.replication.report import counted, some_of


def restore_diagnoses(context: ClientContext) -> Iterator[Diagnosis]:
    """Report a restore that runs, or that has begun and has ledgers that do not exist yet."""
    running = restores.running(context.store.ballots, context.runtime)
    begun = list(restores.begun(context.store.registers))
    if running:
        said = f"under way by {'; '.join(running)}; not there yet: {counted(len(begun), 'ledger')}"
        yield Diagnosis("restores", "ok", said)
    elif begun:
        yield Diagnosis(
            "restores",
            "warning",
            f"none runs, and begun and not there: {counted(len(begun), 'ledger')} "
            f"({some_of(begun)}). The copies take space, and are not collected",
            "repeat it: spark-bookkeeper cluster restore URI; or give it up: spark-bookkeeper "
            "cluster restore --forget",
        )
