"""An ensemble is changed by what the metadata says now, not by what the writer last saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.ledger import Ledger, with_incarnations
from spark_bookkeeper.client.write.ensemble_change import change_ensemble
from spark_bookkeeper.errors import CookieMismatchError, NotEnoughBookiesError
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground


def test_r11_a_bookie_formatted_again_cannot_join_a_ledger_that_it_joined_meanwhile(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=5)
    store = ground.context.store
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    writer.append(b"x")
    writer._pipeline.drain()
    first, second, third = writer.metadata.last_fragment.ensemble
    one, other = (b for b in ground.bookie_ids if b not in (first, second, third))
    incarnations = {b: r.incarnation for b, r in ground.context.bookies.registrations().items()}
    seen = update_ledger(
        store,
        writer.ledger_id,
        lambda old: with_incarnations(
            old.with_new_ensemble(EntryId(1), (one, second, third)), {one: incarnations[one]}
        ),
    )
    ledger = Ledger.of(writer.ledger_id, seen.value)
    rereplicated = update_ledger(
        store,
        writer.ledger_id,
        lambda old: with_incarnations(
            old.with_replaced_bookie(EntryId(0), 0, other), {other: incarnations[other]}
        ),
    )
    ground.stop(first)
    ground.format(other)

    with pytest.raises(NotEnoughBookiesError) as caught:
        change_ensemble(ground.context, ledger, seen, EntryId(1), {2: third}, {third: "failed"})

    assert caught.value.causes[other] == "was formatted again since this ledger used it"
    assert store.read_ledger(writer.ledger_id).value == rereplicated.value


def test_r11_metadata_never_mean_two_incarnations_of_one_bookie(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    metadata = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)).metadata
    member = metadata.last_fragment.ensemble[0]
    known = Ledger.of(ground.context.store.generate_ledger_id(), metadata).incarnations

    assert with_incarnations(metadata, {member: known[member]}) == metadata
    with pytest.raises(CookieMismatchError) as caught:
        with_incarnations(metadata, {member: "another"})

    assert caught.value.bookie_id == member
