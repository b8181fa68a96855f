"""Copy the shares of many fragments: one step of a job, and a second step for large fragments.

The recovery of a lost bookie and the moves of a rebalance both copy here. ``rereplicate.py`` copies
one fragment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.replication.batch_rereplicate import rereplicate_many
from spark_bookkeeper.replication.job import Job, Known
from spark_bookkeeper.replication.pieces import (
    CutFragment,
    PieceCopied,
    PieceWork,
    copy_piece,
    do_others,
    pieces_of,
)
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.rereplicate import FragmentWork, ShareCopied, rereplicate_fragment
from spark_bookkeeper.replication.runner import Failure, Step, limited, reason_of
from spark_bookkeeper.replication.targets import Targets

_Copying = FragmentWork | PieceWork
_Copied = ShareCopied | PieceCopied
_Cut = dict[tuple[LedgerId, EntryId, tuple[BookieId, ...]], CutFragment]


@dataclass(frozen=True, slots=True)
class Todo:
    """A fragment whose shares are to be copied."""

    work: FragmentWork
    large: LedgerMetadata | None = None
    """The ledger's metadata, for a fragment that may be cut into pieces."""


def copy_fragments(
    job: Job,
    todo: Iterable[Todo],
    total: int | None,
    chooser: Callable[[FragmentWork], Targets],
    piece_bytes: int,
) -> Iterator[ShareCopied]:
    """Copy the fragments in this order; only cut fragments stay in memory.

    Args:
        total: about how many fragments there are; ``None`` is unknown.
        chooser: returns the object that chooses the targets of a fragment.
        piece_bytes: several tasks copy a share of several times this size.
    """
    cut: _Cut = {}

    def plan() -> Iterator[_Copying | Known[_Copied]]:
        for each in todo:
            pieces = _pieces(each, chooser, piece_bytes)
            if pieces:
                cut[_key(each.work)] = CutFragment(each.work, pieces)
                yield from pieces
            else:
                yield each.work

    copying: Step[_Copying, _Copied] = Step(
        "copying fragments", _copy_one, _failed, limited, partial(do_others, rereplicate_many)
    )
    for copied in job.run(copying, plan(), total):
        if isinstance(copied, PieceCopied):
            cut[_key(copied.work)].take(copied)
        else:
            yield copied
    replacing = Step("replacing bookies", rereplicate_fragment, _fragment_failed, limited)
    yield from job.run(replacing, [fragment.finish() for fragment in cut.values()])


def _key(work: FragmentWork | PieceWork) -> tuple[LedgerId, EntryId, tuple[BookieId, ...]]:
    return work.ledger_id, work.first_entry_id, work.lost


def _pieces(
    each: Todo, chooser: Callable[[FragmentWork], Targets], piece_bytes: int
) -> Sequence[PieceWork]:
    if each.large is None:
        return ()
    try:
        return list(pieces_of(each.work, each.large, chooser(each.work).choose, piece_bytes))
    except Exception as error:  # noqa: BLE001  (one ledger of many; its own work says so)
        reason_of(error, f"cutting ledger {each.work.ledger_id} into pieces")
        return ()


def _copy_one(context: ClientContext, work: _Copying) -> Sequence[_Copied]:
    if isinstance(work, PieceWork):
        return copy_piece(context, work)
    return rereplicate_fragment(context, work)


def _failed(work: _Copying, failure: Failure) -> _Copied:
    if isinstance(work, PieceWork):
        return PieceCopied(work, Outcome.LEFT, failure.reason)
    return _fragment_failed(work, failure)


def _fragment_failed(work: FragmentWork, failure: Failure) -> ShareCopied:
    return ShareCopied(work.ledger_id, Outcome.LEFT, failure.reason, work.first_entry_id)
