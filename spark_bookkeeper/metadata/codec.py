"""Encode and decode ledger metadata, in the three formats of Apache BookKeeper.

All begin with the line ``BookieMetadataFormatVersion<TAB>n``. It is followed in format 3 by a
protobuf message behind its length, in format 2 by the same message as protobuf text, in format 1 by
lines of text. New ledgers are written in format 3. Metadata that was read in an older format is
written in that format again, byte for byte where nothing changed, because the older client that
made it may still have to read it.

Source: BookKeeper 4.17 ``meta/LedgerMetadataSerDe``; ``client/LedgerMetadataBuilder.from`` keeps
the format version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.formats import (
    CustomMetadata,
    LedgerMetadataFormat,
    LedgerMetadataParts,
    Segment,
    format_text,
    parse_bytes,
    parse_text,
)
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, read_bookie_id
from spark_bookkeeper.protocol.metadata import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    check_ledger,
)
from spark_bookkeeper.protocol.quorum import Quorum

_HEADER: Final = b"BookieMetadataFormatVersion\t"
_CLOSED: Final = "CLOSED"
_IN_RECOVERY: Final = -102
"""The last entry id that format 1 writes while a ledger is in recovery."""
_NUMBER_MAX: Final = (1 << 63) - 1
"""The largest number in a ledger's metadata; formats 2 and 3 hold no larger ones."""
_ENSEMBLE_MAX: Final = 1000
"""The most bookies in an ensemble. No cluster has so many, but a node has room for so many that
work on each pair of them would never end."""
_PARTS_KEPT: Final = 1_024
_KEPT_BYTES_MAX: Final = 4_000
"""Fragments and custom metadata of nodes up to this size are kept in memory, decoded.

Most ledgers share most of theirs with others, so each is decoded, checked and stored once.
"""
_STATES: Final = {state.value: state for state in LedgerState}


def encode_ledger(metadata: LedgerMetadata) -> bytes:
    """Return the bytes of a ledger's metadata, in its own format version.

    Custom metadata keep the order of their mapping: the order in which they were read or first
    given. BookKeeper prescribes no order: at a create it writes in the order of its caller's map,
    and after a read in that of a Java ``HashMap``. So two or more keys may be in another order
    there; every reader finds them by name.

    Raises:
        InvalidArgumentError: the format cannot hold the metadata (format 1, for example, cannot
            hold custom metadata), or the format does not exist.
    """
    try:
        body = _body(metadata)
    except (ValueError, TypeError, EncodeError, DecodeError) as error:
        raise InvalidArgumentError(
            f"format {metadata.format_version} cannot hold this metadata: {error}. Nothing was "
            "written"
        ) from error
    return b"%s%d\n%s" % (_HEADER, metadata.format_version, body)


def decode_ledger(data: bytes, path: str) -> LedgerMetadata:
    """Return the metadata in a znode's bytes.

    Args:
        data: the content of the znode.
        path: its path, for the error.

    Raises:
        MetadataFormatError: the bytes are in none of the three formats, or break the rules of
            ledger metadata.
    """
    found = _decode(data, path, None)
    assert found is not None
    return found


def decode_ledger_naming(data: bytes, path: str, bookies: Set[BookieId]) -> LedgerMetadata | None:
    """Do ``decode_ledger`` during a scan of all ledgers, of which few name any of these bookies.

    Returns:
        ``None`` if no fragment names one. Then everything was checked, and no value was built.

    Raises:
        MetadataFormatError: exactly when ``decode_ledger`` raises it.
    """
    return _decode(data, path, bookies)


def _decode(data: bytes, path: str, bookies: Set[BookieId] | None) -> LedgerMetadata | None:
    first, _, body = data.partition(b"\n")
    try:
        if not first.startswith(_HEADER):
            raise ValueError(f"the first line is {first[:40]!r}")
        version = int(first[len(_HEADER) :])
        if version == 3:
            return _from_parts(_undelimited(body), len(body) <= _KEPT_BYTES_MAX, bookies)
        if version == 2:
            found = _from_text(body.decode())
        elif version == 1:
            found = _from_lines(body.decode())
        else:
            raise ValueError(f"format version {version} is not one of 1, 2 and 3")
        return None if bookies is not None and _names_none(found.fragments, bookies) else found
    except Exception as error:
        raise MetadataFormatError(
            f"{path} holds no ledger metadata that this version can read: {error}. Nothing was "
            "changed. A newer writer may have made it: upgrade, or look at it with BookKeeper's "
            "`ledgermetadata` command",
            path=path,
        ) from error


def _names_none(fragments: tuple[Fragment, ...], bookies: Set[BookieId]) -> bool:
    return all(bookies.isdisjoint(fragment.ensemble) for fragment in fragments)


def _body(metadata: LedgerMetadata) -> bytes:
    if metadata.format_version == 3:
        return _delimited(_to_message(metadata))
    if metadata.format_version == 2:
        if metadata.foreign:
            raise ValueError("fields that are not known have no text")
        return format_text(_to_message(metadata)).encode()
    if metadata.format_version == 1:
        return _to_lines(metadata).encode()
    raise ValueError("there is no such format; it is one of 1, 2 and 3")


# Formats 2 and 3: one message, written as text or as bytes


def _to_message(metadata: LedgerMetadata) -> Any:
    message = LedgerMetadataFormat(
        quorumSize=metadata.quorum.write_quorum_size,
        ensembleSize=metadata.quorum.ensemble_size,
        length=metadata.length_bytes or 0,
        lastEntryId=NO_ENTRY if metadata.last_entry_id is None else metadata.last_entry_id,
        state=metadata.state.value,
        ackQuorumSize=metadata.quorum.ack_quorum_size,
    )
    for fragment in metadata.fragments:
        message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry_id)
    if metadata.digest_type is not None:
        message.digestType = metadata.digest_type.value
    if metadata.password is not None:
        message.password = metadata.password
    if metadata.ctime_ms is not None:
        message.ctime = metadata.ctime_ms
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    if metadata.ctoken is not None and metadata.format_version >= 3:
        message.cToken = metadata.ctoken
    if metadata.foreign:
        message.MergeFromString(metadata.foreign)
    return message


def _from_text(text: str) -> LedgerMetadata:
    message = parse_text(text, LedgerMetadataFormat())
    fragments = tuple(map(_fragment, message.segment))
    custom = {item.key: item.value for item in message.customMetadata}
    found = _from_message(message, 2, fragments, custom, None)
    assert found is not None
    return found


def _from_parts(
    message: Any, is_kept: bool, bookies: Set[BookieId] | None
) -> LedgerMetadata | None:
    read_fragment, read_item = _KEPT if is_kept else (_read_fragment, _read_item)
    # Iterating over a copy, made in one step, is twice as fast as over protobuf's own list.
    fragments = tuple(map(read_fragment, message.segment[:]))
    custom = dict(map(read_item, message.customMetadata[:]))
    return _from_message(message, 3, fragments, custom, bookies)


def _from_message(
    message: Any,
    version: int,
    fragments: tuple[Fragment, ...],
    custom: Mapping[str, bytes],
    bookies: Set[BookieId] | None,
) -> LedgerMetadata | None:
    """Return the value; ``None`` if ``bookies`` are given and no fragment names any of them."""
    state = _STATES[message.state]
    closed = state is LedgerState.CLOSED
    has_ack = message.HasField("ackQuorumSize")
    quorum = _quorum(
        message.ensembleSize,
        message.quorumSize,
        message.ackQuorumSize if has_ack else message.quorumSize,
    )
    last_entry_id = EntryId(message.lastEntryId) if closed else None
    length_bytes = message.length if closed else None
    if bookies is not None and _names_none(fragments, bookies):
        check_ledger(quorum, state, fragments, last_entry_id, length_bytes)
        return None
    return LedgerMetadata(
        quorum=quorum,
        state=state,
        fragments=fragments,
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else None,
        password=message.password if message.HasField("password") else None,
        last_entry_id=last_entry_id,
        length_bytes=length_bytes,
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        custom_metadata=custom,
        format_version=version,
        ctoken=message.cToken if message.HasField("cToken") else None,
        foreign=_unknown_fields(message),
    )


def _fragment(segment: Any) -> Fragment:
    return Fragment(EntryId(segment.firstEntryId), _ensemble(segment.ensembleMember))


def _read_fragment(data: bytes) -> Fragment:
    return _fragment(parse_bytes(data, Segment))


def _read_item(data: bytes) -> tuple[str, bytes]:
    item = CustomMetadata.FromString(data)
    key = item.key
    if not isinstance(key, str):  # protobuf returns bytes that are not UTF-8 so
        raise ValueError(f"key is {key[:40]!r}, which is not UTF-8")  # noqa: TRY004  (as others)
    return key, item.value


_KEPT: Final = (lru_cache(_PARTS_KEPT)(_read_fragment), lru_cache(_PARTS_KEPT)(_read_item))


@lru_cache(_PARTS_KEPT)
def _quorum(ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> Quorum:
    if ensemble_size > _ENSEMBLE_MAX:
        raise ValueError(f"an ensemble of {ensemble_size} is beyond {_ENSEMBLE_MAX}")
    return Quorum(ensemble_size, write_quorum_size, ack_quorum_size)


def _ensemble(names: Iterable[str]) -> tuple[BookieId, ...]:
    return tuple(map(read_bookie_id, names))


def _unknown_fields(message: Any) -> bytes:
    """Return the bytes of the fields that this version does not know."""
    if not len(UnknownFieldSet(message)):
        return b""
    rest = type(message)()
    rest.CopyFrom(message)
    for field in message.DESCRIPTOR.fields:
        rest.ClearField(field.name)
    return bytes(rest.SerializePartialToString())


def _delimited(message: Any) -> bytes:
    body: bytes = message.SerializeToString(deterministic=True)
    size = len(body)
    prefix = bytearray()
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + body


def _undelimited(data: bytes) -> Any:
    size = shift = start = 0
    while True:
        if shift > 63:
            raise ValueError("the length is no number")
        byte = data[start]
        size |= (byte & 0x7F) << shift
        start += 1
        shift += 7
        if byte < 0x80:
            break
    if len(data) - start != size:
        raise ValueError(f"{len(data) - start} bytes follow a length of {size}")
    return parse_bytes(data[start:], LedgerMetadataParts)


# Format 1: lines


def _to_lines(metadata: LedgerMetadata) -> str:
    quorum = metadata.quorum
    if metadata.custom_metadata or quorum.ack_quorum_size != quorum.write_quorum_size:
        raise ValueError(
            "it has room for neither custom metadata nor an ack quorum of its own; "
            "write this ledger in format 3"
        )
    lines = [
        str(quorum.write_quorum_size),
        str(quorum.ensemble_size),
        str(metadata.length_bytes or 0),
        *("\t".join([str(f.first_entry_id), *f.ensemble]) for f in metadata.fragments),
    ]
    if metadata.state is LedgerState.OPEN:
        return "\n".join([*lines, ""])
    last = _IN_RECOVERY if metadata.last_entry_id is None else metadata.last_entry_id
    return "\n".join([*lines, f"{last}\t{_CLOSED}"])


def _from_lines(body: str) -> LedgerMetadata:
    write_quorum, ensemble_size, length, *rest = body.split("\n")
    fragments: list[Fragment] = []
    last: int | None = None
    for line in rest:
        first, *names = line.split("\t")
        if names == [_CLOSED]:
            last = _number(first)
            break
        if line:
            fragments.append(Fragment(EntryId(_number(first)), _ensemble(names)))
    if last is None:
        state = LedgerState.OPEN
    else:
        state = LedgerState.IN_RECOVERY if last == _IN_RECOVERY else LedgerState.CLOSED
    is_closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        quorum=_quorum(_number(ensemble_size), _number(write_quorum), _number(write_quorum)),
        state=state,
        fragments=tuple(fragments),
        last_entry_id=EntryId(last) if is_closed and last is not None else None,
        length_bytes=_number(length) if is_closed else None,
        format_version=1,
    )


def _number(text: str) -> int:
    number = int(text)
    if abs(number) > _NUMBER_MAX:
        raise ValueError(f"{number} is beyond {_NUMBER_MAX}")
    return number
