"""The protobuf messages that Apache BookKeeper keeps in ZooKeeper.

They are declared here and built when the module is imported, in their own descriptor pool. So
installation needs no compiler, and the names cannot collide with another library's registration.

Source: BookKeeper 4.17 ``bookkeeper-proto/src/main/proto/DataFormats.proto`` (field numbers, names
and types). The properties of a bookie are a map there; on the wire a map is the repeated pair used
here, which keeps the order and so every byte.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

_Field = descriptor_pb2.FieldDescriptorProto

_TYPES = {
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
}
_LABELS = {
    "required": _Field.LABEL_REQUIRED,
    "optional": _Field.LABEL_OPTIONAL,
    "repeated": _Field.LABEL_REPEATED,
}

_MESSAGES: dict[str, dict[int, str]] = {
    "LedgerMetadataFormat": {
        1: "required int32 quorumSize",
        2: "required int32 ensembleSize",
        3: "required int64 length",
        4: "optional int64 lastEntryId",
        5: "required State state",
        6: "repeated Segment segment",
        7: "optional DigestType digestType",
        8: "optional bytes password",
        9: "optional int32 ackQuorumSize",
        10: "optional int64 ctime",
        11: "repeated CustomMetadata customMetadata",
        12: "optional int64 cToken",
    },
    # The same on the wire. Its parts stay bytes, because many ledgers share them.
    "LedgerMetadataParts": {
        1: "required int32 quorumSize",
        2: "required int32 ensembleSize",
        3: "required int64 length",
        4: "optional int64 lastEntryId",
        5: "required State state",
        6: "repeated bytes segment",
        7: "optional DigestType digestType",
        8: "optional bytes password",
        9: "optional int32 ackQuorumSize",
        10: "optional int64 ctime",
        11: "repeated bytes customMetadata",
        12: "optional int64 cToken",
    },
    "Segment": {
        1: "repeated string ensembleMember",
        2: "required int64 firstEntryId",
    },
    "CustomMetadata": {
        1: "optional string key",
        2: "optional bytes value",
    },
    "CookieFormat": {
        1: "required string bookieHost",
        2: "required string journalDir",
        3: "required string ledgerDirs",
        4: "optional string instanceId",
        5: "optional string indexDirs",
    },
    "BookieServiceInfoFormat": {
        6: "repeated Endpoint endpoints",
        7: "repeated Property properties",
    },
    "Endpoint": {
        1: "required string id",
        2: "required int32 port",
        3: "required string host",
        4: "required string protocol",
        5: "repeated string auth",
        6: "repeated string extensions",
    },
    "Property": {
        1: "optional string key",
        2: "optional string value",
    },
    "LedgerRereplicationLayoutFormat": {
        1: "required string type",
        2: "required int32 version",
    },
    "UnderreplicatedLedgerFormat": {
        1: "repeated string replica",
        2: "optional int64 ctime",
    },
    "LockDataFormat": {
        1: "optional string bookieId",
    },
    "AuditorVoteFormat": {
        1: "optional string bookieId",
    },
    # BookKeeper has its own message for each check, and all of them look like this one.
    "CheckAllLedgersFormat": {
        1: "required int64 checkAllLedgersCTime",
    },
}

_ESCAPE = re.compile(r"\\(?:[0-7]{3}|.)")
_LETTERS = {r"\007": r"\a", r"\010": r"\b", r"\013": r"\v", r"\014": r"\f"}
"""Java's protobuf text writes letters for these bytes, Python's only numbers."""

_ENUMS = {
    "State": {"OPEN": 1, "IN_RECOVERY": 2, "CLOSED": 3},
    "DigestType": {"CRC32": 1, "HMAC": 2, "CRC32C": 3, "DUMMY": 4},
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="DataFormats.proto", syntax="proto2")
    for enum_name, values in _ENUMS.items():
        enum = file.enum_type.add(name=enum_name)
        for value_name, number in values.items():
            enum.value.add(name=value_name, number=number)
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, declaration in fields.items():
            label, kind, name = declaration.split()
            field = message.field.add(name=name, number=number, label=_LABELS[label])
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type = _Field.TYPE_ENUM if kind in _ENUMS else _Field.TYPE_MESSAGE
                field.type_name = f".{kind}"
    return file


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        for name in _MESSAGES
    }


_CLASSES = _classes()

# Generated classes have attributes that no type checker sees, hence Any.
LedgerMetadataFormat: Any = _CLASSES["LedgerMetadataFormat"]
LedgerMetadataParts: Any = _CLASSES["LedgerMetadataParts"]
Segment: Any = _CLASSES["Segment"]
CustomMetadata: Any = _CLASSES["CustomMetadata"]
CookieFormat: Any = _CLASSES["CookieFormat"]
BookieServiceInfoFormat: Any = _CLASSES["BookieServiceInfoFormat"]
LedgerRereplicationLayoutFormat: Any = _CLASSES["LedgerRereplicationLayoutFormat"]
UnderreplicatedLedgerFormat: Any = _CLASSES["UnderreplicatedLedgerFormat"]
LockDataFormat: Any = _CLASSES["LockDataFormat"]
AuditorVoteFormat: Any = _CLASSES["AuditorVoteFormat"]
CheckAllLedgersFormat: Any = _CLASSES["CheckAllLedgersFormat"]


def format_text(message: Any) -> str:
    """Return a message as protobuf text, with the escapes that BookKeeper writes."""
    text = text_format.MessageToString(message, as_utf8=False)
    return _ESCAPE.sub(lambda found: _LETTERS.get(found.group(), found.group()), text)


def parse_text(text: str, message: Any) -> Any:
    """Fill a message from protobuf text, and return it.

    Raises:
        ValueError: the text is not such a message, has unknown fields, lacks a required one, or is
            not UTF-8.
    """
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise ValueError(str(error)) from error
    return _checked(message)


def parse_bytes(data: bytes, kind: Any) -> Any:
    """Return a message of a class of this module from its bytes; unknown fields stay in it.

    Raises:
        ValueError: the bytes are not such a message, lack a required field, or hold text that is
            not UTF-8.
    """
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return _checked(message)


def _checked(message: Any) -> Any:
    """Refuse messages that protobuf reads but that could not be used or written again."""
    if not message.IsInitialized():
        missing = message.FindInitializationErrors()
        raise ValueError(f"{', '.join(missing)} is missing")
    _check_text(message)
    return message


def _check_text(message: Any) -> None:
    for name, is_repeated, is_message in _texts(message.DESCRIPTOR.name):
        value = getattr(message, name)
        for item in value if is_repeated else (value,):
            if is_message:
                _check_text(item)
            elif not isinstance(item, str):  # protobuf returns bytes that are not UTF-8
                raise ValueError(f"{name} is {item[:40]!r}, which is not UTF-8")
            else:
                item.encode()  # raises for half a surrogate pair, from an escape


@functools.cache
def _texts(message_name: str) -> list[tuple[str, bool, bool]]:
    """Return the name of each field with text, whether it is repeated, whether it is a message."""
    declared = [declaration.split() for declaration in _MESSAGES[message_name].values()]
    return [
        (name, label == "repeated", kind in _MESSAGES)
        for label, kind, name in declared
        if kind == "string" or (kind in _MESSAGES and _texts(kind))
    ]
