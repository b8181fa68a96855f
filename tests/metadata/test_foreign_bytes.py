"""The doors at which foreign bytes are decoded: a value comes out, or ``MetadataFormatError``."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pytest

from spark_bookkeeper.client.ledger import (
    ENCODING,
    INCARNATIONS,
    SCHEMA,
    Ledger,
    custom_metadata,
    incarnations_of,
    schema_of,
)
from spark_bookkeeper.client.read.newest import Newest
from spark_bookkeeper.client.views import LEDGERS, _ledger_row, moment
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.codec import decode_ledger, decode_ledger_naming, encode_ledger
from spark_bookkeeper.metadata.cookie_text import decode_cookie, encode_cookie
from spark_bookkeeper.metadata.service_info import decode_registration, encode_registration
from spark_bookkeeper.metadata.store import Cookie, Registration
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import (
    NONCE,
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from spark_bookkeeper.protocol.quorum import Quorum
from tests.support import junk

NAMES = tuple(BookieId(f"10.0.0.{n}:3181") for n in range(1, 4))
SEEDS: Final = pytest.mark.parametrize(
    "seeds",
    [range(400), pytest.param(range(400, 3000), marks=pytest.mark.full)],
    ids=["some", "more"],
)

SCHEMA_OF_ALL = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))])


def ledger(state: LedgerState = LedgerState.CLOSED) -> LedgerMetadata:
    closed = state is LedgerState.CLOSED
    incarnations = dict.fromkeys(NAMES, "3f2a")
    return LedgerMetadata(
        quorum=Quorum(3, 3, 2),
        state=state,
        fragments=(Fragment(EntryId(0), NAMES), Fragment(EntryId(5), NAMES[::-1])),
        digest_type=DigestType.CRC32C,
        password=b"",
        last_entry_id=EntryId(9) if closed else None,
        length_bytes=100 if closed else None,
        ctime_ms=1_700_000_000_000,
        custom_metadata=custom_metadata("ab12", SCHEMA_OF_ALL, "zstd", 1 << 20, incarnations),
        ctoken=7,
    )


def ends_well(seed: str, data: bytes, call: Callable[[], Any]) -> Any:
    """The value of a call, or ``None`` where it raised what it may."""
    try:
        return call()
    except MetadataFormatError as refused:
        return None if refused.path and refused.message else refused
    except BaseException as error:
        raise AssertionError(f"{seed}: {data!r}") from error


@SEEDS
@pytest.mark.parametrize("state", list(LedgerState))
def test_any_ledger_metadata_is_a_value_that_can_be_written_and_shown_or_is_refused(
    state: LedgerState, seeds: range
) -> None:
    real = encode_ledger(ledger(state))
    values = 0
    for number in seeds:
        seed = f"{state.name}-{number}"
        data = junk.ledger(random.Random(seed), real)
        found = ends_well(seed, data, lambda d=data: decode_ledger(d, "/ledgers/x"))  # type: ignore[misc]
        if found is None:
            continue
        values += 1
        assert decode_ledger(encode_ledger(found), "again") == found, seed
        pa.Table.from_pylist(
            [_ledger_row(LedgerId(1), found, None, Newest())], schema=LEDGERS
        ).to_pylist()
        ours = ends_well(seed, data, lambda m=found: Ledger.of(LedgerId(1), m))  # type: ignore[misc]
        if ours is not None:
            str(ours.schema)
            assert str(ours.key).isascii()
            assert ours.with_metadata(found) == ours
    assert values > len(seeds) // 15, "junk that nobody notices is part of it"


def _decoded(call: Callable[[], LedgerMetadata | None]) -> tuple[LedgerMetadata | None, str | None]:
    try:
        return call(), None
    except MetadataFormatError as error:
        return None, error.message


@SEEDS
@pytest.mark.parametrize("state", list(LedgerState))
def test_a_look_for_one_bookie_refuses_what_decoding_refuses_and_nothing_else(
    state: LedgerState, seeds: range
) -> None:
    real = encode_ledger(ledger(state))
    nobody, somebody = {BookieId("nobody:1")}, {ledger(state).last_fragment.ensemble[0]}
    refused = 0
    for number in seeds:
        seed = f"{state.name}-{number}"
        data = junk.ledger(random.Random(seed), real)
        found, refusal = _decoded(lambda d=data: decode_ledger(d, "x"))  # type: ignore[misc]
        refused += refusal is not None
        for wanted in (nobody, somebody):
            looked = _decoded(lambda d=data, w=wanted: decode_ledger_naming(d, "x", w))  # type: ignore[misc]
            is_named = found is not None and wanted & found.members()
            assert looked == (found if is_named else None, refusal), seed
    assert 1 / 15 < refused / len(seeds) < 14 / 15


@SEEDS
def test_any_cookie_is_a_value_or_is_refused(seeds: range) -> None:
    real, other = (
        encode_cookie(Cookie(name, f"s3://bucket/{name}", "3f2a", "ccb3dcc6")) for name in NAMES[:2]
    )
    for number in seeds:
        data = junk.cookie(random.Random(number), real, other)
        found = ends_well(str(number), data, lambda d=data: decode_cookie(d, "/c"))  # type: ignore[misc]
        if found is not None:
            "".join([found.bookie_id, found.root_uri, found.incarnation]).encode()


@SEEDS
def test_any_registration_is_a_value_or_is_refused(seeds: range) -> None:
    real, other = (
        encode_registration(Registration(n, "file:///a", "3f2a", False, "/r", 1, 2))
        for n in NAMES[:2]
    )
    for number in seeds:
        data = junk.registration(random.Random(number), real, other)
        found = ends_well(
            str(number),
            data,
            lambda d=data: decode_registration(NAMES[0], d, "/r", readonly=False),  # type: ignore[misc]
        )
        if found is not None:
            "".join([found.root_uri, found.incarnation, found.rack]).encode()
            pa.array([found.free_bytes, found.total_inodes], pa.int64())


@pytest.mark.parametrize(
    "data",
    [
        b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\ta:1\n99999999999999999999\tCLOSED",
        b"BookieMetadataFormatVersion\t1\n1\n1\n-5\n0\ta:1\n7\tCLOSED",
        b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\ta:1\n-7\tCLOSED",
        b"BookieMetadataFormatVersion\t1\n1\n1\n0\n3\ta:1\n",  # begins at entry 3
        b"BookieMetadataFormatVersion\t1\n2\n2\n0\n0\ta:1\ta:1\n",  # one bookie twice
        b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\ta b\n",  # no bookie id
        b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\treadonly\n",
        b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\ta:1\n5\ta:1\n3\tCLOSED",  # ends before it
        b"BookieMetadataFormatVersion\t3\n" + b"\xff" * 40,
        b"BookieMetadataFormatVersion\t2\nquorumSize: 1\nensembleSize: 1\nlength: 0\nstate: OPEN\n"
        b'segment { ensembleMember: "\\377" firstEntryId: 0 }\n',
    ],
)
def test_what_breaks_a_rule_is_refused_with_the_path_and_what_to_do(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match=r"/l/x holds no ledger.*Nothing was changed.*up"):
        decode_ledger(data, "/l/x")


def test_an_ensemble_beyond_all_reason_is_refused_and_not_counted_through() -> None:
    names = "\t".join(f"a:{n}" for n in range(5000))
    data = f"BookieMetadataFormatVersion\t1\n5000\n5000\n0\n0\t{names}\n".encode()

    with pytest.raises(MetadataFormatError, match="an ensemble of 5000 is beyond 1000"):
        decode_ledger(data, "x")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (NONCE, b"../../elsewhere"),
        (NONCE, b""),
        (NONCE, b"\xff"),
        (SCHEMA, b""),
        (SCHEMA, b"\xff\xff\xff\xff\x10\x00\x00\x00garbagegarbage"),
        (
            SCHEMA,
            pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))]).serialize().to_pybytes()[:40],
        ),
        (INCARNATIONS, b"[]"),
        (INCARNATIONS, b'{"a:1": 7}'),
        (INCARNATIONS, b"[" * 100_000),
        (ENCODING, b"null"),
        (ENCODING, b'{"compression": [], "entry_target_bytes": 1}'),
        (ENCODING, b'{"compression": null, "entry_target_bytes": "many"}'),
        (ENCODING, b'{"compression": null, "entry_target_bytes": -1}'),
        (ENCODING, b"\xff"),
    ],
)
def test_custom_metadata_of_ours_that_is_damaged_is_refused(key: str, value: bytes) -> None:
    damaged = ledger().with_custom(**{key: value})

    with pytest.raises(MetadataFormatError, match="ledger 7 has no usable") as caught:
        Ledger.of(LedgerId(7), damaged)

    assert len(caught.value.message) < 1200
    if key == INCARNATIONS:
        with pytest.raises(MetadataFormatError):
            incarnations_of(damaged)
        with pytest.raises(MetadataFormatError):
            Ledger.of(LedgerId(7), ledger()).with_metadata(damaged)
    if key == SCHEMA:
        assert schema_of(damaged.custom_metadata) is None


def test_names_of_columns_that_are_not_utf_8_are_met_at_the_door() -> None:
    data = pa.schema([("column_name", pa.int64())]).serialize().to_pybytes()
    spoilt = data.replace(b"column_name", b"column\xff\xfename")

    with pytest.raises(MetadataFormatError):
        Ledger.of(LedgerId(7), ledger().with_custom(**{SCHEMA: spoilt}))


def test_a_moment_that_no_calendar_has_is_none() -> None:
    assert str(moment(0)) == "1970-01-01 00:00:00+00:00"
    assert [moment(ms) for ms in (None, 2**62, -(2**62), 2**63 - 1)] == [None] * 4
