"""What holds a writer back, or takes its ledger away."""

from __future__ import annotations

import threading

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.testing.ground import Ground, Hook
from spark_bookkeeper.testing.hanging import Hang


def flag_in_recovery(context: ClientContext, writer: LedgerWriter) -> None:
    """What a recoverer does first, and no more."""
    update_ledger(context.store, writer.ledger_id, LedgerMetadata.in_recovery)


class Gate:
    """Holds back an operation on some bookies until it is opened."""

    def __init__(self, operation: str, *places: str) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._operation = operation
        self._places = places

    def __call__(self, place: str, operation: str, path: str) -> None:
        if operation == self._operation and place in self._places and not self._open.is_set():
            self.reached.set()
            assert self._open.wait(120)

    def open(self) -> None:
        self._open.set()


def hold_adds(ground: Ground, *bookies: str) -> Gate:
    """What is sent to these bookies stays on its way until it is opened."""
    gate = Gate("put_if_absent", *bookies)
    ground.before.append(gate)
    return gate


def hangs_at(bookie: str, hang: Hang) -> Hook:
    """What is asked of this bookie hangs."""
    return lambda place, operation, path: hang.meet(operation, path) if place == bookie else None
