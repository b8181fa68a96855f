"""Ledger metadata to bytes and back, in the three formats of Apache BookKeeper.

All begin with the line ``BookieMetadataFormatVersion<TAB>n``. Then follow: in format 3 a
protobuf message behind its length; in format 2 the same message as protobuf text; in format 1
lines of text. New ledgers are written in format 3. Metadata that was read in an older format
is written in that format again, byte for byte where nothing changed: the older client that
made it may still have to read it.

Source: BookKeeper 4.17 ``meta/LedgerMetadataSerDe``; ``client/LedgerMetadataBuilder.from``
keeps the format version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.formats import (
    LedgerMetadataFormat,
    format_text,
    parse_bytes,
    parse_text,
)
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, read_bookie_id
from spark_bookkeeper.protocol.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum

_HEADER: Final = b"BookieMetadataFormatVersion\t"
_CLOSED: Final = "CLOSED"
_IN_RECOVERY: Final = -102
"""What format 1 says in place of the last entry while a ledger is in recovery."""
_NUMBER_MAX: Final = (1 << 63) - 1
"""Of any number in a ledger's metadata; formats 2 and 3 hold no larger ones."""
_ENSEMBLE_MAX: Final = 1000
"""Bookies in an ensemble. No cluster has so many, and a node has room for enough of them that
what is done for each pair would never end."""


def encode_ledger(metadata: LedgerMetadata) -> bytes:
    """The bytes of a ledger's metadata, in its own format version.

    Custom metadata are written in the order of their mapping: as they were read, or as they
    were first given. BookKeeper has no order of its own to follow: it writes what its caller's
    map iterates at a create, and that of a Java ``HashMap`` after it has read them once. So two
    or more keys may stand in another order than there; every reader finds them by name.

    Raises:
        InvalidArgumentError: the format cannot hold it, for example custom metadata in
            format 1; or there is no such format.
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
    """The metadata in a znode's bytes.

    Args:
        data: what the znode holds.
        path: its path, for the error.

    Raises:
        MetadataFormatError: the bytes are in none of the three formats, or break the rules
            that ledger metadata obeys.
    """
    first, _, body = data.partition(b"\n")
    try:
        if not first.startswith(_HEADER):
            raise ValueError(f"the first line is {first[:40]!r}")
        version = int(first[len(_HEADER) :])
        if version == 3:
            return _from_message(_undelimited(body), 3)
        if version == 2:
            return _from_message(parse_text(body.decode(), LedgerMetadataFormat()), 2)
        if version == 1:
            return _from_lines(body.decode())
        raise ValueError(f"format version {version} is not one of 1, 2 and 3")
    except Exception as error:
        raise MetadataFormatError(
            f"{path} holds no ledger metadata that this version can read: {error}. Nothing was "
            "changed. A newer writer may have made it: upgrade, or look at it with BookKeeper's "
            "`ledgermetadata` command",
            path=path,
        ) from error


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


def _from_message(message: Any, version: int) -> LedgerMetadata:
    closed = message.state == LedgerState.CLOSED.value
    has_ack = message.HasField("ackQuorumSize")
    return LedgerMetadata(
        quorum=_quorum(
            message.ensembleSize,
            message.quorumSize,
            message.ackQuorumSize if has_ack else message.quorumSize,
        ),
        state=LedgerState(message.state),
        fragments=tuple(
            Fragment(EntryId(s.firstEntryId), _ensemble(s.ensembleMember)) for s in message.segment
        ),
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else None,
        password=message.password if message.HasField("password") else None,
        last_entry_id=EntryId(message.lastEntryId) if closed else None,
        length_bytes=message.length if closed else None,
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        custom_metadata={item.key: item.value for item in message.customMetadata},
        format_version=version,
        ctoken=message.cToken if message.HasField("cToken") else None,
        foreign=_unknown_fields(message),
    )


def _quorum(ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> Quorum:
    if ensemble_size > _ENSEMBLE_MAX:
        raise ValueError(f"an ensemble of {ensemble_size} is beyond {_ENSEMBLE_MAX}")
    return Quorum(ensemble_size, write_quorum_size, ack_quorum_size)


def _ensemble(names: Iterable[str]) -> tuple[BookieId, ...]:
    return tuple(map(read_bookie_id, names))


def _unknown_fields(message: Any) -> bytes:
    """What is left of a message once every field that is known is taken out."""
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
    return parse_bytes(data[start:], LedgerMetadataFormat)


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
