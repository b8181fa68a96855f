"""Ledger metadata to bytes and back, for any metadata there may be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.codec import decode_ledger, decode_ledger_naming, encode_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from tests.examples import drawn

_HEADER = b"BookieMetadataFormatVersion\t"


@st.composite
def ledgers(draw: st.DrawFn, version: int) -> LedgerMetadata:
    """Any metadata that a format version can hold."""
    size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, size))
    ack_quorum = write_quorum if version == 1 else draw(st.integers(1, write_quorum))
    firsts = sorted(draw(st.sets(st.integers(1, 1 << 62), max_size=4)))
    ensembles = st.lists(
        st.integers(0, 99).map(lambda n: BookieId(f"host-{n}:3181")),
        min_size=size,
        max_size=size,
        unique=True,
    )
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    metadata = LedgerMetadata(
        quorum=Quorum(size, write_quorum, ack_quorum),
        state=state,
        fragments=tuple(Fragment(EntryId(f), tuple(draw(ensembles))) for f in (0, *firsts)),
        last_entry_id=EntryId(draw(st.integers(max((0, *firsts)) - 1, 1 << 62)))
        if closed
        else None,
        length_bytes=draw(st.integers(0, 1 << 62)) if closed else None,
        format_version=version,
    )
    if version == 1:
        return metadata
    return replace(
        metadata,
        digest_type=draw(st.none() | st.sampled_from(DigestType)),
        password=draw(st.none() | st.binary(max_size=40)),
        ctime_ms=draw(st.none() | st.integers(0, 1 << 62)),
        custom_metadata=draw(st.dictionaries(st.text(max_size=9), st.binary(), max_size=4)),
        ctoken=draw(st.none() | st.integers(0, (1 << 63) - 1)) if version == 3 else None,
    )


ANY = st.sampled_from([1, 2, 3]).flatmap(ledgers)


@drawn(ANY, plain=40, full=100)
def test_whatever_is_written_reads_back(metadata: LedgerMetadata) -> None:
    data = encode_ledger(metadata)
    again = decode_ledger(data, "somewhere")

    assert again == metadata
    assert again.ctoken == metadata.ctoken
    assert encode_ledger(again) == data


@drawn(ANY, st.sets(st.integers(0, 99), max_size=9), plain=40, full=100)
def test_a_look_for_some_bookies_finds_exactly_the_ledgers_that_name_one(
    metadata: LedgerMetadata, numbers: set[int]
) -> None:
    wanted = {BookieId(f"host-{n}:3181") for n in numbers}

    found = decode_ledger_naming(encode_ledger(metadata), "somewhere", wanted)

    assert found == (metadata if wanted & metadata.members() else None)


def test_a_bookie_is_found_however_its_id_is_written_in_text() -> None:
    data = encode_ledger(replace(_ledger(), format_version=2))
    for odd in (rb'"\141:1"', rb'"a" ":1"', rb"'\x61:1'"):
        written = data.replace(b'"a:1"', odd)
        assert written != data

        assert decode_ledger_naming(written, "x", {BookieId("a:1")}) == decode_ledger(data, "x")


def test_large_nodes_are_read_like_small_ones() -> None:
    members = [tuple(BookieId(f"host-{n}-{k}:3181") for k in range(2)) for n in range(400)]
    fragments = tuple(Fragment(EntryId(n), each) for n, each in enumerate(members))
    metadata = replace(_ledger(), fragments=fragments, custom_metadata={"a": b"x" * 9_000})
    data = encode_ledger(metadata)

    assert decode_ledger(data, "x") == metadata
    assert decode_ledger_naming(data, "x", {members[-1][1]}) == metadata
    assert decode_ledger_naming(data, "x", {BookieId("host-400-0:3181")}) is None


@drawn(ledgers(3), st.data(), plain=40, full=100)
def test_truncated_metadata_is_refused(metadata: LedgerMetadata, data: st.DataObject) -> None:
    whole = encode_ledger(metadata)
    size = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(MetadataFormatError) as caught:
        decode_ledger(whole[:size], "/ledgers/00/0000/L0007")

    assert caught.value.path == "/ledgers/00/0000/L0007"


@given(st.binary(max_size=80))
def test_any_bytes_either_read_or_are_refused(body: bytes) -> None:
    for data in (body, *(b"%s%d\n%s" % (_HEADER, v, body) for v in (1, 2, 3))):
        try:
            decode_ledger(data, "somewhere")
        except MetadataFormatError:
            continue


def _ledger() -> LedgerMetadata:
    return LedgerMetadata(
        quorum=Quorum(2, 2, 2),
        state=LedgerState.OPEN,
        fragments=(Fragment(EntryId(0), (BookieId("a:1"), BookieId("b:1"))),),
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"BookieMetadataFormatVersion\t4\nx",
        b"BookieMetadataFormatVersion\tthree\nx",
        b"BookieMetadataFormatVersion\t3\n\x02\x08\x03",  # required fields are missing
        b"BookieMetadataFormatVersion\t2\nquorumSize: 3\nnewField: 1\n",
        b"BookieMetadataFormatVersion\t1\n2\n2\n0\n0\ta:1\n",  # an ensemble of the wrong size
        b"BookieMetadataFormatVersion\t1\n2\n2\n0\n",  # no fragment
    ],
)
def test_what_is_no_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="Nothing was changed"):
        decode_ledger(data, "somewhere")


def test_every_byte_has_the_escape_that_bookkeeper_writes() -> None:
    # As BookKeeper 4.17.3 printed it.
    expected = (
        rb"\000\001\002\003\004\005\006\a\b\t\n\v\f\r\016\017"
        rb"\020\021\022\023\024\025\026\027\030\031\032\033\034\035\036\037"
        rb" !\"#$%&\'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`"
        rb"abcdefghijklmnopqrstuvwxyz{|}~\177"
    ) + b"".join(b"\\%03o" % byte for byte in range(128, 256))

    data = encode_ledger(replace(_ledger(), format_version=2, password=bytes(range(256))))

    assert b'password: "' + expected + b'"\n' in data
    assert decode_ledger(data, "somewhere").password == bytes(range(256))


def test_a_backslash_before_digits_is_no_escape() -> None:
    data = encode_ledger(replace(_ledger(), format_version=2, password=rb"\007"))

    assert rb'"\\007"' in data
    assert decode_ledger(data, "somewhere").password == rb"\007"


def test_unknown_fields_are_written_again() -> None:
    unknown = b"\xa2\x06\x03new"  # field 100, three bytes

    again = decode_ledger(encode_ledger(replace(_ledger(), foreign=unknown)), "somewhere")

    assert again.foreign == unknown
    assert encode_ledger(again.in_recovery()).endswith(unknown)


def test_an_unknown_digest_type_is_kept_and_not_guessed() -> None:
    data = bytearray(encode_ledger(replace(_ledger(), digest_type=DigestType.CRC32C)))
    data[data.index(b"\x38\x03") + 1] = 9  # a digest type of the future

    metadata = decode_ledger(bytes(data), "somewhere")

    assert metadata.digest_type is None
    assert metadata.foreign == b"\x38\x09"


@pytest.mark.parametrize(
    "metadata",
    [
        replace(_ledger(), format_version=1, custom_metadata={"a": b""}),
        replace(_ledger(), format_version=1, quorum=Quorum(2, 2, 1)),
        replace(_ledger(), format_version=2, foreign=b"\xa0\x06\x01"),
        replace(_ledger(), format_version=4),
    ],
)
def test_what_a_format_cannot_hold_is_not_written(metadata: LedgerMetadata) -> None:
    with pytest.raises(InvalidArgumentError):
        encode_ledger(metadata)
