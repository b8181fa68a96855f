"""What the cluster is told to do about the ledgers that lack copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.cluster.examination import cluster_diagnoses
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.autorecovery import written
from spark_bookkeeper.testing.ground import Ground

CHECK = "entries below their ack quorum"


@pytest.mark.parametrize(("lost", "replaced"), [("other", "one"), ("one", "other"), ("one", "two")])
def test_the_remedy_of_what_lacks_copies_is_that_of_the_bookies_that_it_lacks(
    tmp_path: Path, lost: str, replaced: str
) -> None:
    """Also while another ledger, which has copies enough, names a bookie that is away."""
    ground = Ground(tmp_path, bookies=3)
    spared = written(ground).metadata.last_fragment.ensemble
    for bookie in spared:
        ground.stop(bookie)
    one, two = ground.add_bookie(), ground.add_bookie()
    written(ground, Quorum(2, 2, 2))
    for bookie in spared:
        ground.start(bookie)
    names = {"one": one, "two": two, "other": spared[0]}
    is_lost, is_replaced = names[lost], names[replaced]
    ground.stop(is_lost)
    ground.format(is_replaced)

    diagnoses = cluster_diagnoses(ground.context, metadata_only=True)
    told = next(each for each in diagnoses if each.check == CHECK)

    remedy = told.remedy or ""
    assert told.verdict == "problem"
    assert (f"bookie recover {is_lost}" in remedy) == (is_lost != names["other"])
    assert (f"bring {is_lost} back" in remedy) == (is_lost != names["other"])
    assert (f"bookie refill {is_replaced}" in remedy) == (is_replaced != names["other"])
