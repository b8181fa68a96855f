"""Recoveries of bookies, one item after the other, and ledgers with several fragments for them."""

from __future__ import annotations

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.report import RecoveryReport
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground, Hook, InlineRuntime
from tests.worlds import USUAL, written


def with_fragments(ground: Ground, *, close: bool = True) -> LedgerWriter:
    """A ledger whose writer replaced two bookies; the bookies have come back since."""
    writer = lifecycle.create_ledger(ground.context, USUAL)
    for turn in range(3):
        for i in range(4):
            writer.append(b"%d" % (turn * 4 + i))
        writer.flush()
        if turn < 2:
            victim = writer.metadata.last_fragment.ensemble[turn]
            ground.stop(victim)
            ground.until(
                lambda victim=victim: (  # type: ignore[misc]  # the victim of this turn
                    writer.append(b"") >= 0 and victim not in writer.metadata.last_fragment.ensemble
                )
            )
            ground.start(victim)
    writer._pipeline.drain()
    if close:
        writer.close()
    return writer


def recovered(
    ground: Ground, *lost: str, hooks: tuple[Hook, ...] = (), dry_run: bool = False, **wish: object
) -> RecoveryReport:
    client = ground.client(InlineRuntime(), *hooks)
    whole = BookieRecovery(tuple(BookieId(b) for b in lost), **wish)  # type: ignore[arg-type]  # any field
    return recover_bookie(client, LocalRunner(client), whole, dry_run=dry_run)


def written_and_lost(
    ground: Ground, count: int = 10, quorum: Quorum = USUAL, *, close: bool = True
) -> tuple[LedgerWriter, BookieId]:
    """A ledger that was written, and the first of its bookies, which is destroyed."""
    writer = written(ground, count, quorum, close=close)
    lost = writer.metadata.last_fragment.ensemble[0]
    ground.stop(lost, destroy=True)
    return writer, lost
