"""Creating and deleting ledgers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_bookkeeper.client import ledgers
from spark_bookkeeper.errors import InvalidArgumentError, LedgerExistsError, NotEnoughBookiesError
from spark_bookkeeper.protocol.metadata import DigestType, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground

USUAL = Quorum(3, 3, 2)


def test_too_few_bookies_are_told_with_a_table_and_nothing_is_created(ground: Ground) -> None:
    down, readonly, *_ = ground.bookie_ids
    ground.stop(down)
    ground.stop(readonly)
    ground.start(readonly, is_readonly=True)

    with pytest.raises(NotEnoughBookiesError) as caught:
        ledgers.create_ledger(ground.context, USUAL)

    error = caught.value
    assert (error.needed, error.available) == (3, 2)
    assert error.causes == {down: "not registered: down or lost", readonly: "read-only"}
    assert list(ground.context.store.ledger_ids()) == []


def test_a_ledger_id_can_be_chosen_once(ground: Ground) -> None:
    with ledgers.create_ledger(ground.context, USUAL, ledger_id=77) as writer:
        assert writer.ledger_id == 77
    with pytest.raises(LedgerExistsError):
        ledgers.create_ledger(ground.context, USUAL, ledger_id=77)


def test_a_generated_id_that_is_taken_is_passed_over(ground: Ground) -> None:
    ledgers.create_ledger(ground.context, USUAL, ledger_id=0).close()

    with ledgers.create_ledger(ground.context, USUAL) as writer:
        assert writer.ledger_id == 1


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_creator_knows_what_others_read(ground: Ground, compression: str | None) -> None:
    schema = pa.schema([("n", pa.dictionary(pa.int8(), pa.string()))])
    writer = ledgers.create_ledger(
        ground.context,
        USUAL,
        schema=schema,
        password=b"secret",
        digest_type=DigestType.MAC,
        compression=compression,
        entry_target_bytes=1_000,
    )

    assert writer._adds.ledger == ground.client().ledger(writer.ledger_id)[0]


def test_labels_are_kept_and_our_own_keys_are_reserved(ground: Ground) -> None:
    with ledgers.create_ledger(ground.context, USUAL, labels={"owner": b"me"}) as writer:
        assert writer.metadata.custom_metadata["owner"] == b"me"
    with pytest.raises(InvalidArgumentError, match="reserved"):
        ledgers.create_ledger(ground.context, USUAL, labels={"spark-bookkeeper.nonce": b"x"})


@pytest.mark.parametrize("size", [0, -1])
def test_an_entry_size_that_makes_no_sense_is_refused(ground: Ground, size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="entry_target_bytes"):
        ledgers.create_ledger(ground.context, USUAL, entry_target_bytes=size)


@pytest.mark.parametrize("digest", list(DigestType))
def test_every_digest_type_protects_and_reads_back(ground: Ground, digest: DigestType) -> None:
    with ledgers.create_ledger(
        ground.context, USUAL, digest_type=digest, password=b"secret", compression="zstd"
    ) as writer:
        writer.append(b"a")
    reader = ledgers.open_ledger(ground.client(), writer.ledger_id, b"secret")

    assert [e.payload for e in reader.entries()] == [b"a"]


def test_a_ledger_that_was_never_written_to_is_open_until_somebody_opens_it(
    ground: Ground,
) -> None:
    writer = ledgers.create_ledger(ground.context, USUAL)
    store = ground.context.store
    assert store.read_ledger(writer.ledger_id).value.state is LedgerState.OPEN

    ledgers.open_ledger(ground.client(), writer.ledger_id)

    assert store.read_ledger(writer.ledger_id).value.state is LedgerState.CLOSED


def test_r11_a_bookie_formatted_again_does_not_join_a_ledger_that_knew_it(ground: Ground) -> None:
    writer = ledgers.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    known = writer.metadata.last_fragment.ensemble[0]
    ground.format(known)
    (spare,) = set(ground.bookie_ids) - set(writer.metadata.last_fragment.ensemble)

    ground.until(
        lambda: writer.append(b"b") > 0 and known not in writer.metadata.last_fragment.ensemble
    )

    assert spare in writer.metadata.last_fragment.ensemble
    writer.close()
    reader = ledgers.open_ledger(ground.client(), writer.ledger_id)
    assert next(reader.entries()).payload == b"a"
