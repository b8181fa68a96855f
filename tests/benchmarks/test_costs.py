"""Exact costs: an append is a put for each copy and nothing else; a recovery is two CAS."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.protocol.quorum import Quorum
from tests.support.costs import append_cost, recovery_cost

QUORUMS = [Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(2, 2, 1), Quorum(3, 3, 3)]


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_an_append_is_one_put_for_each_copy_and_asks_nobody_else(
    tmp_path: Path, quorum: Quorum
) -> None:
    cost = append_cost(tmp_path, quorum, appends=10)

    assert cost.counted() == {
        "puts": 10 * quorum.write_quorum_size,
        "syncs": 0,
        "listings": 0,
        "metadata_reads": 0,
        "metadata_writes": 0,
    }


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_recovery_of_an_empty_ledger_is_two_cas_and_one_fence_a_bookie(
    tmp_path: Path, quorum: Quorum
) -> None:
    cost = recovery_cost(tmp_path, quorum)

    assert cost.puts == quorum.ensemble_size, "fences"
    assert cost.syncs == 0, "nothing was found"
    assert (cost.metadata_reads, cost.metadata_writes) == (1, 2)


def test_recovery_of_a_ledger_with_all_its_copies_puts_nothing_but_fences(tmp_path: Path) -> None:
    cost = recovery_cost(tmp_path, Quorum(3, 3, 2), entries=20)

    assert cost.puts == 3
    assert cost.syncs == 3 + 3, "what each fence stands on, and the last entry where it is counted"
    assert (cost.metadata_reads, cost.metadata_writes) == (1, 2)
    assert cost.listings <= 2 * 3, "the slots and the copies of each bookie"
