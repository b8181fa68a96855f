"""The description that a live bookie publishes: Apache BookKeeper's service info.

The data of a registration is a ``BookieServiceInfoFormat`` message: endpoints (clients use the
first whose protocol is ``bookie-rpc``) and properties. This library adds only properties, which
BookKeeper's tools show and accept.

Source: BookKeeper 4.17 ``discover/BookieServiceInfo``, ``discover/ZKRegistrationManager``,
``discover/BookieServiceInfoUtils`` (an empty node stands for the ``host:port`` in its name).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.formats import BookieServiceInfoFormat, parse_bytes
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.ids import BookieId

_ROOT_URI: Final = "spark-bookkeeper.root_uri"
_INCARNATION: Final = "spark-bookkeeper.incarnation"
_FREE_BYTES: Final = "spark-bookkeeper.free_bytes"
_TOTAL_BYTES: Final = "spark-bookkeeper.total_bytes"
_FREE_INODES: Final = "spark-bookkeeper.free_inodes"
_TOTAL_INODES: Final = "spark-bookkeeper.total_inodes"
_RACK: Final = "rack"
_DEFAULT_RACK: Final = "/default-rack"
_DIGITS_MAX: Final = 18
"""The most digits of a number, so that it fits 64 bits; an exabyte has no more."""
_OURS: Final = frozenset(
    {_ROOT_URI, _INCARNATION, _FREE_BYTES, _TOTAL_BYTES, _FREE_INODES, _TOTAL_INODES, _RACK}
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which a bookie answers."""

    id: str
    port: int
    host: str
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """The fields of a registration, as any program wrote them."""

    endpoints: tuple[Endpoint, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    """In the order in which they were written."""


def format_service_info(info: ServiceInfo) -> bytes:
    """Return the bytes of a registration."""
    message = BookieServiceInfoFormat()
    for endpoint in info.endpoints:
        message.endpoints.add(
            id=endpoint.id,
            port=endpoint.port,
            host=endpoint.host,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    for key, value in info.properties.items():
        message.properties.add(key=key, value=value)
    return bytes(message.SerializeToString())


def parse_service_info(data: bytes, path: str) -> ServiceInfo:
    """Return the fields of a registration; an empty one has none.

    Raises:
        MetadataFormatError: the bytes are not such a message.
    """
    try:
        message = parse_bytes(data, BookieServiceInfoFormat)
    except Exception as error:
        raise MetadataFormatError(
            f"{path} holds no bookie service info: {error}. Restart that bookie, which "
            "registers it anew",
            path=path,
        ) from error
    return ServiceInfo(
        endpoints=tuple(
            Endpoint(e.id, e.port, e.host, e.protocol, tuple(e.auth), tuple(e.extensions))
            for e in message.endpoints
        ),
        properties={item.key: item.value for item in message.properties},
    )


def encode_registration(registration: Registration) -> bytes:
    """Return the bytes of a registration of ours; its endpoint is the bookie id's host and port."""
    host, _, port = registration.bookie_id.rpartition(":")
    said = {
        _ROOT_URI: registration.root_uri,
        _INCARNATION: registration.incarnation,
        _RACK: registration.rack,
        _FREE_BYTES: _number(registration.free_bytes),
        _TOTAL_BYTES: _number(registration.total_bytes),
        _FREE_INODES: _number(registration.free_inodes),
        _TOTAL_INODES: _number(registration.total_inodes),
        **registration.properties,
    }
    return format_service_info(
        ServiceInfo(
            endpoints=(Endpoint("bookie", int(port), host, "bookie-rpc"),),
            properties={key: value for key, value in said.items() if value},
        )
    )


def decode_registration(
    bookie_id: BookieId, data: bytes, path: str, *, readonly: bool
) -> Registration:
    """Return the content of a registration; a foreign bookie's has no root and no incarnation."""
    said = parse_service_info(data, path).properties
    return Registration(
        bookie_id=bookie_id,
        root_uri=said.get(_ROOT_URI, ""),
        incarnation=said.get(_INCARNATION, ""),
        is_readonly=readonly,
        rack=said.get(_RACK, _DEFAULT_RACK),
        free_bytes=_count(said.get(_FREE_BYTES)),
        total_bytes=_count(said.get(_TOTAL_BYTES)),
        free_inodes=_count(said.get(_FREE_INODES)),
        total_inodes=_count(said.get(_TOTAL_INODES)),
        properties={key: value for key, value in said.items() if key not in _OURS},
    )


def _number(count: int | None) -> str:
    return "" if count is None else str(count)


def _count(text: str | None) -> int | None:
    """Return a number of bytes; ``None`` for text that cannot be one."""
    if not text or not text.isdecimal() or len(text) > _DIGITS_MAX:
        return None
    return int(text)
