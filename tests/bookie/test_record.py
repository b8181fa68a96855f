"""Records: bytes that plain pyarrow opens, and headers that cannot be mistaken."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bookkeeper.bookie import framing, messages
from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA, LedgerEncoding, plain_schema
from spark_bookkeeper.bookie.entry import NewEntry, PartRef, PlacedPart
from spark_bookkeeper.bookie.framing import header_message
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.messages import (
    encode_batches,
    encode_entries,
    only_payload,
    payload_message,
)
from spark_bookkeeper.bookie.record import RecordKind, decode, encode_add, encode_fence
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.errors import CorruptEntryError, InvalidArgumentError
from spark_bookkeeper.protocol.metadata import DigestType
from tests.support.slotlog import Bookie, every_place

KEY = LedgerKey(7, "n1")
PLAIN = LedgerEncoding()

ENTRIES = [NewEntry(n, n + 1, b"%d" % n) for n in range(3)]


def test_plain_pyarrow_opens_a_slot_and_shows_its_rows() -> None:
    data = encode_add(KEY, PLAIN, "w", 0, -1, ENTRIES)

    table = pa.ipc.open_file(data).read_all()

    assert table.column("payload").to_pylist() == [b"0", b"1", b"2"]
    assert pa.ipc.open_stream(data[8:]).read_all().equals(table)


def test_plain_pyarrow_opens_a_fence() -> None:
    assert pa.ipc.open_file(encode_fence(KEY)).read_all().num_rows == 0


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_messages_are_those_that_arrow_writes_itself(compression: str | None) -> None:
    encoding = LedgerEncoding(compression=compression)
    batch = pa.record_batch([pa.array([b"x" * 1000] * 50)], schema=PAYLOAD_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, PAYLOAD_SCHEMA, options=encoding.write_options) as writer:
        writer.write_batch(batch)

    message = encode_batches(encoding, [batch])[0].to_pybytes()

    assert message in sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "payloads",
    [
        [b""],
        [b"x"],
        [b"hello", b"", b"x" * 1000],
        *([b"y" * n] * n for n in range(1, 18)),
        [b"large" * 20_000],
    ],
)
def test_the_message_of_payloads_is_the_one_arrow_makes(payloads: list[bytes]) -> None:
    batch = pa.record_batch([pa.array(payloads, pa.binary())], schema=PAYLOAD_SCHEMA)

    message = bytes(payload_message(PLAIN, payloads))
    assert message == batch.serialize().to_pybytes()
    found = only_payload(message, len(payloads[0]))
    if len(payloads) > 1 or len(message) > 1 << 16:
        assert found is None
    else:
        assert found == payloads[0]


def test_a_payload_is_taken_from_no_other_message_than_ours() -> None:
    data = bytes(payload_message(PLAIN, [b"payload"]))
    before = data.index(b"payload")

    for size in (*range(-before, 7), 8, 1 << 40):  # as a crafted header may say
        for end in (len(data), before + size + -size % 8):
            assert only_payload(data[:end], size) is None
    for at in range(before):
        spoilt = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert only_payload(spoilt, 7) is None


@pytest.mark.parametrize(
    "schema", [PAYLOAD_SCHEMA, pa.schema([]), PAYLOAD_SCHEMA.with_metadata({"of": "ours"})]
)
@given(
    lengths=st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=4),
    byte=st.sampled_from(b"\0x\xff"),
)
def test_the_message_of_a_header_is_the_one_arrow_makes(
    schema: pa.Schema, lengths: list[list[int]], byte: int
) -> None:
    for several in [*lengths, [*lengths[0][:2], 2000], *lengths]:
        values = {b"k%d" % n: bytes([byte]) * length for n, length in enumerate(several)}
        plain = schema.with_metadata({**(schema.metadata or {}), **values})

        assert header_message(schema, values) == plain.serialize().to_pybytes()


def test_headers_of_other_keys_are_not_taken_for_each_other() -> None:
    for key in (b"one", b"two"):
        values = {key: b"value"}
        expected = PAYLOAD_SCHEMA.with_metadata(values).serialize().to_pybytes()
        assert header_message(PAYLOAD_SCHEMA, values) == expected


def test_as_many_headers_are_remembered_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framing, "_LAYOUTS_KEPT", 2)
    for length in [*range(5), *range(5)]:
        values = {b"k": b"v" * length}
        expected = PAYLOAD_SCHEMA.with_metadata(values).serialize().to_pybytes()
        assert header_message(PAYLOAD_SCHEMA, values) == expected
        assert len(framing._layouts) <= 2


def test_the_first_append_of_a_process_does_not_wait_for_pandas() -> None:
    program = (
        "import sys; from spark_bookkeeper.bookie.encoding import LedgerEncoding; "
        "from spark_bookkeeper.bookie.messages import encode_columns; "
        "encode_columns(LedgerEncoding(), [0], [1], [b'x']); print('pandas' in sys.modules)"
    )

    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert said.stdout == "False\n"


def test_more_payloads_than_arrow_can_count_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_ENTRY_BYTES", 10)
    assert bytes(payload_message(PLAIN, [b"12345", b"67890"]))
    with pytest.raises(InvalidArgumentError, match="less than 2 GiB"):
        payload_message(PLAIN, [b"12345", b"678901"])


def test_bytes_and_rows_may_share_a_record(bookie: Bookie) -> None:
    batch = pa.record_batch([pa.array([b"x", b"y"])], schema=PAYLOAD_SCHEMA)
    entries = [NewEntry(0, 1, b"0"), NewEntry(1, 200, batch), NewEntry(2, 201, b"2")]
    log = bookie.writer()

    log.add(0, encode_add(bookie.key, bookie.encoding, "w", 0, -1, entries))

    found = list(log.reader.entries(every_place(log.locate(0))))
    assert [e.entry_id for e in found] == [0, 1, 2]
    assert [e.is_payload for e in found] == [True, False, True]
    assert (found[0].payload, found[1].batch(), found[2].payload) == (b"0", batch, b"2")
    assert pa.ipc.open_file(bookie.disk.files[bookie.slot_path(0)]).read_all().num_rows == 4


def test_one_encoding_serves_several_bookies() -> None:
    encoded = encode_entries(PLAIN, ENTRIES)

    shared = encode_add(KEY, PLAIN, "w", 5, 1, encoded)

    assert shared == encode_add(KEY, PLAIN, "w", 5, 1, ENTRIES)
    record = decode(shared, KEY, PLAIN)
    assert (record.kind, record.token, record.slot) == (RecordKind.ADD, "w", 5)
    assert (record.first, record.last, record.last_add_confirmed) == (0, 2, 1)
    assert record.ids.tolist() == [0, 1, 2]
    assert record.lengths.tolist() == [1, 2, 3]


def test_a_fence_is_the_same_bytes_from_everybody_and_needs_no_password() -> None:
    assert encode_fence(KEY) == encode_fence(KEY)
    keyed = LedgerEncoding(digest_type=DigestType.MAC, password=b"secret")
    assert decode(encode_fence(KEY), KEY, keyed).kind is RecordKind.FENCE


def test_a_record_cut_within_its_header_is_refused_and_behind_it_is_not() -> None:
    data = encode_add(KEY, PLAIN, "w", 0, -1, ENTRIES)
    end = decode(data, KEY, PLAIN).header_bytes

    for length in range(0, end, 7):
        with pytest.raises(CorruptEntryError):
            decode(data[:length], KEY, PLAIN)
    assert decode(data[:end], KEY, PLAIN).last == 2


def test_a_record_of_another_ledger_or_life_is_refused() -> None:
    data = encode_add(KEY, PLAIN, "w", 0, -1, ENTRIES)

    for other in (LedgerKey(8, "n1"), LedgerKey(7, "n2")):
        with pytest.raises(CorruptEntryError, match="belongs to ledger 7-n1"):
            decode(data, other, PLAIN)


def test_a_wrong_password_is_noticed() -> None:
    right = LedgerEncoding(digest_type=DigestType.MAC, password=b"right")
    wrong = LedgerEncoding(digest_type=DigestType.MAC, password=b"wrong")

    with pytest.raises(CorruptEntryError, match="digest"):
        decode(encode_add(KEY, right, "w", 0, -1, ENTRIES), KEY, wrong)


def test_a_wrong_password_is_noticed_in_a_record_that_was_just_decoded_with_the_right_one() -> None:
    right = LedgerEncoding(digest_type=DigestType.MAC, password=b"right")
    wrong = LedgerEncoding(digest_type=DigestType.MAC, password=b"wrong")
    data = encode_add(KEY, right, "w", 0, -1, ENTRIES)

    assert decode(data, KEY, right).last == 2
    with pytest.raises(CorruptEntryError, match="digest"):
        decode(data, KEY, wrong)


def test_what_several_callers_share_of_a_record_cannot_be_changed() -> None:
    data = encode_add(KEY, PLAIN, "w", 0, -1, ENTRIES, appended_at_ms=1)
    records = [decode(each, KEY, PLAIN) for each in (data, encode_add(KEY, PLAIN, "w", 0, -1))]

    for record in records:
        shared = [record.ids, record.sizes, record.lengths, record.messages, record.times_ms]
        assert not any(column.flags.writeable for column in shared)


@given(st.binary(max_size=400))
def test_bytes_that_are_anything_are_refused_and_never_crash(data: bytes) -> None:
    with pytest.raises(CorruptEntryError):
        decode(b"ARROW1\0\0" + data, KEY, PLAIN)


@pytest.mark.parametrize("name", ["../../stolen.arrow", "/etc/x", "a/b", "..", "", "a\0", None, 7])
def test_a_part_is_named_by_a_plain_name_or_its_record_is_damaged(name: object) -> None:
    """The digest is right: whoever can write a bookie's files can make one."""
    part = PlacedPart(PartRef("a-0-0.arrow", 8, 1, 0, (8,), (b"1234",)), (0,), (1,))
    assert decode(encode_add(KEY, PLAIN, "w", 0, -1, parts=[part]), KEY, PLAIN).parts == (part,)

    object.__setattr__(part.ref, "name", name)

    with pytest.raises(CorruptEntryError, match=r"a part's name is .*part of a path"):
        decode(encode_add(KEY, PLAIN, "w", 0, -1, parts=[part]), KEY, PLAIN)


@pytest.mark.parametrize("nonce", ["../n1", "", "n-1", "a" * 201])
def test_the_life_of_a_ledger_is_a_plain_name(nonce: str) -> None:
    with pytest.raises(ValueError, match=r"a ledger's nonce is .*letters and digits"):
        LedgerKey(7, nonce)


def test_dictionary_encoding_is_resolved_at_any_depth() -> None:
    words = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema(
        [
            ("a", words),
            ("b", pa.list_(words)),
            ("c", pa.struct([("d", words)])),
            ("e", pa.map_(pa.string(), words)),
        ]
    )

    encoding = LedgerEncoding(schema)

    assert encoding.schema.types == [
        pa.string(),
        pa.list_(pa.string()),
        pa.struct([("d", pa.string())]),
        pa.map_(pa.string(), pa.string()),
    ]
    assert plain_schema(encoding.schema) == encoding.schema


def test_bytes_are_refused_by_a_ledger_with_a_schema() -> None:
    encoding = LedgerEncoding(pa.schema([("n", pa.int64())]))

    with pytest.raises(InvalidArgumentError, match="n: int64"):
        encode_add(KEY, encoding, "w", 0, -1, ENTRIES)


def test_an_encoding_travels() -> None:
    encoding = LedgerEncoding(digest_type=DigestType.MAC, password=b"p", compression="lz4")

    assert pickle.loads(pickle.dumps(encoding)) == encoding
    with pytest.raises(InvalidArgumentError, match="gzip"):
        LedgerEncoding(compression="gzip")


@pytest.mark.parametrize("is_payload", [True, False])
@pytest.mark.parametrize("time_ms", [None, 7])
def test_the_place_of_an_only_entry_is_what_columns_say(
    is_payload: bool, time_ms: int | None
) -> None:
    batch = pa.record_batch([pa.array([b"abc"])], schema=PAYLOAD_SCHEMA)
    entry = NewEntry(5, 30, b"abc" if is_payload else batch)
    record = decode(encode_add(KEY, PLAIN, "w", 3, 4, [entry], appended_at_ms=time_ms), KEY, PLAIN)
    paths = LedgerPaths(KEY)

    (place,) = record.few(paths, "p")

    assert [place] == list(record.locations(np.array([0]), paths, "p"))
    assert [each.path for each in record.few(paths, "q")] == ["q"]
