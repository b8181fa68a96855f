"""Creating and deleting ledgers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.client import ledger, lifecycle
from spark_bookkeeper.errors import (
    InvalidArgumentError,
    LedgerExistsError,
    LedgerFencedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
)
from spark_bookkeeper.protocol.metadata import DigestType, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL


def test_too_few_bookies_are_told_with_a_table_and_nothing_is_created(ground: Ground) -> None:
    down, readonly, *_ = ground.bookie_ids
    ground.stop(down)
    ground.stop(readonly)
    ground.start(readonly, is_readonly=True)

    with pytest.raises(NotEnoughBookiesError) as caught:
        lifecycle.create_ledger(ground.context, USUAL)

    error = caught.value
    assert (error.needed, error.available) == (3, 2)
    assert error.causes == {down: "not registered: down or lost", readonly: "read-only"}
    assert "ask for fewer" not in error.message
    with pytest.raises(NotEnoughBookiesError, match="or ask for fewer: ensemble_size=2"):
        lifecycle.create_ledger(ground.context, Quorum(4, 2, 2))
    assert list(ground.context.store.ledger_ids()) == []


def test_a_ledger_id_can_be_chosen_once(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL, ledger_id=77) as writer:
        assert writer.ledger_id == 77
    with pytest.raises(LedgerExistsError):
        lifecycle.create_ledger(ground.context, USUAL, ledger_id=77)


def test_a_generated_id_that_is_taken_is_passed_over(ground: Ground) -> None:
    lifecycle.create_ledger(ground.context, USUAL, ledger_id=0).close()

    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        assert writer.ledger_id == 1


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_creator_knows_what_others_read(ground: Ground, compression: str | None) -> None:
    schema = pa.schema([("n", pa.dictionary(pa.int8(), pa.string()))])
    writer = lifecycle.create_ledger(
        ground.context,
        USUAL,
        schema=schema,
        password=b"secret",
        digest_type=DigestType.MAC,
        compression=compression,
        entry_target_bytes=1_000,
    )

    assert writer._pipeline.ledger == ground.client().ledger(writer.ledger_id)[0]


def test_the_form_of_a_ledger_is_decoded_once_however_often_it_is_opened(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("decoded_once", pa.int64())])
    writer = lifecycle.create_ledger(ground.context, USUAL, schema=schema)
    writer.append(pa.table({"decoded_once": [1]}))
    writer.abandon()
    decoded: list[bytes] = []
    real = ledger._schema

    def decode(data: bytes) -> pa.Schema:
        decoded.append(data)
        return real(data)

    monkeypatch.setattr(ledger, "_schema", decode)

    lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow()
    lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow()

    assert len(decoded) == 1


def test_labels_are_kept_and_our_own_keys_are_reserved(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL, labels={"owner": b"me"}) as writer:
        assert writer.metadata.custom_metadata["owner"] == b"me"
    with pytest.raises(InvalidArgumentError, match="reserved"):
        lifecycle.create_ledger(ground.context, USUAL, labels={"spark-bookkeeper.nonce": b"x"})


@pytest.mark.parametrize(
    ("custom_metadata", "name", "rule"),
    [
        ({"a": "text"}, None, r"custom_metadata\['a'\]='text' is a str; its values are bytes"),
        ({1: b""}, None, "a key of custom_metadata=1 is a int"),
        ([1], None, "is no mapping"),
        (None, 3, "name=3 is a int"),
        ({"name": b"x"}, "y", "are one label"),
    ],
)
def test_a_label_of_another_type_or_given_twice_is_refused_by_name(
    custom_metadata: Any, name: Any, rule: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=rule):
        lifecycle.labels_of(custom_metadata, name=name)


def test_a_password_that_is_text_is_refused_and_not_shown(ground: Ground) -> None:
    text: Any = "geheim"
    with pytest.raises(InvalidArgumentError, match="bytes") as caught:
        lifecycle.create_ledger(ground.context, USUAL, password=text)
    assert "geheim" not in caught.value.message
    writer = lifecycle.create_ledger(ground.context, USUAL, password=b"geheim")
    with pytest.raises(InvalidArgumentError, match="bytes"):
        lifecycle.open_ledger(ground.context, writer.ledger_id, text)


def test_no_repr_shows_a_password(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL, password=b"geheim")
    reader = lifecycle.open_ledger(ground.context, writer.ledger_id, b"geheim")
    for shown in (writer, writer.metadata, reader, reader.metadata, reader.ledger):
        assert "geheim" not in repr(shown)


@pytest.mark.parametrize("size", [0, -1])
def test_an_entry_size_that_makes_no_sense_is_refused(ground: Ground, size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="entry_target_bytes"):
        lifecycle.create_ledger(ground.context, USUAL, entry_target_bytes=size)


@pytest.mark.parametrize("digest", list(DigestType))
def test_every_digest_type_protects_and_reads_back(ground: Ground, digest: DigestType) -> None:
    with lifecycle.create_ledger(
        ground.context, USUAL, digest_type=digest, password=b"secret", compression="zstd"
    ) as writer:
        writer.append(b"a")
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id, b"secret")

    assert [e.payload for e in reader.entries()] == [b"a"]


def test_a_ledger_that_was_never_written_to_is_open_until_somebody_opens_it(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    store = ground.context.store
    assert store.read_ledger(writer.ledger_id).value.state is LedgerState.OPEN

    lifecycle.open_ledger(ground.client(), writer.ledger_id)

    assert store.read_ledger(writer.ledger_id).value.state is LedgerState.CLOSED


def test_a_fenced_writer_is_told_once_what_to_do_and_by_which_bookie(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    lifecycle.open_ledger(ground.client(), writer.ledger_id)

    with pytest.raises(LedgerFencedError) as caught:
        writer.append(b"b")

    shown = caught.value.message
    assert shown.count("may or may not be written") == shown.count("like a time-out") == 1
    assert any(bookie in shown for bookie in ground.bookie_ids)


def test_a_writer_that_cannot_reach_the_metadata_says_what_is_certain(ground: Ground) -> None:
    away = False

    def hook(place: str, operation: str, path: str) -> None:
        if away and operation in ("read_ledger", "write_ledger"):
            raise MetadataUnavailableError("the connection to ZooKeeper was closed")

    writer = lifecycle.create_ledger(ground.client(None, hook), USUAL)
    last = writer.append(b"a")
    away = True
    with pytest.raises(MetadataUnavailableError, match=f"up to entry {last}, is in it") as caught:
        writer.close()
    assert "recover_ledgers" in caught.value.message
    away = False
    writer.close()
    assert ground.context.store.read_ledger(writer.ledger_id).value.is_closed


def test_r11_a_bookie_formatted_again_does_not_join_a_ledger_that_knew_it(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    wait_for_every_copy(writer)
    known = writer.metadata.last_fragment.ensemble[0]
    (spare,) = set(ground.bookie_ids) - set(writer.metadata.last_fragment.ensemble)
    ground.format(known)

    ground.until(
        lambda: writer.append(b"b") > 0 and known not in writer.metadata.last_fragment.ensemble
    )

    assert spare in writer.metadata.last_fragment.ensemble
    writer.close()
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert next(reader.entries()).payload == b"a"
