"""The ``BOOKIE`` marker: which bookie, and which incarnation of it, a partition is.

It is written last when a partition is formatted and deleted first when it is wiped, so while it
is there with the right incarnation, nothing that the bookie acknowledged was taken away by
either (SLOT-LOG rule R11).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache

from spark_bookkeeper.bookie.framing import UNDECODABLE
from spark_bookkeeper.bookie.schema import FORMAT_VERSION, LEDGERS, MARKER_PATH, WITNESS_PATH
from spark_bookkeeper.errors import CookieMismatchError
from spark_bookkeeper.protocol.ids import read_bookie_id
from spark_bookkeeper.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class Marker:
    """Content of the marker."""

    bookie_id: str
    incarnation: str
    """Random; a new one each time the partition is formatted."""

    instance_id: str
    """The cluster's INSTANCEID."""

    format_version: int = FORMAT_VERSION
    has_witness: bool = False
    """Whether a file stands for the directory of the ledgers, as in a bucket. Absent in older ones
    and where there are directories."""

    def encode(self) -> bytes:
        """One JSON object, for people too."""
        fields = asdict(self)
        if not self.has_witness:
            del fields["has_witness"]
        return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def decode_marker(data: bytes, storage: Storage) -> Marker:
    """The marker in these bytes, which were read from that partition.

    Raises:
        CookieMismatchError: they are not a marker, or one of a newer format.
    """
    try:
        marker = _parsed(data)
    except UNDECODABLE as error:
        raise CookieMismatchError(
            f"{storage.uri}/{MARKER_PATH} is not a bookie's marker ({error}); is this the right "
            "directory?",
            bookie_id=storage.bookie_id,
        ) from error
    if marker.format_version > FORMAT_VERSION:
        raise CookieMismatchError(
            f"{storage.uri} has format version {marker.format_version}, this library knows up to "
            f"{FORMAT_VERSION}; upgrade it",
            bookie_id=storage.bookie_id,
        )
    return marker


@lru_cache(maxsize=256)
def _parsed(data: bytes) -> Marker:
    """By its bytes, since every operation reads a marker that seldom changes."""
    fields = json.loads(data)
    return Marker(
        bookie_id=read_bookie_id(str(fields["bookie_id"])),
        incarnation=str(fields["incarnation"]),
        instance_id=str(fields["instance_id"]),
        format_version=int(fields["format_version"]),
        has_witness=fields.get("has_witness", False) is True,
    )


def read_marker(storage: Storage) -> Marker | None:
    """The partition's marker, ``None`` if it certainly has none.

    Raises:
        BookieUnavailableError: no answer.
        CookieMismatchError: it cannot be decoded.
    """
    data = storage.read(MARKER_PATH)
    return None if data is None else decode_marker(data, storage)


def check_marker(storage: Storage, incarnation: str, bookie_id: str = "") -> Marker:
    """The marker, which must have an incarnation.

    Raises:
        BookieUnavailableError: no answer.
        CookieMismatchError: there is none, or another one; says what was expected and found.

    Source: SLOT-LOG rules R5 and R11.
    """
    data = storage.read(MARKER_PATH)
    return check_marker_data(data, storage, incarnation, bookie_id)


def lost_directory(storage: Storage, marker: Marker) -> str | None:
    """Why a partition with that marker holds nothing any more; ``None`` if all is well.

    Raises:
        BookieUnavailableError: no answer.
    """
    if storage.has_directories:
        if LEDGERS in storage.list(""):
            return None
        lost = f"its directory {LEDGERS!r}"
    elif marker.has_witness and not storage.exists(WITNESS_PATH):
        lost = f"{WITNESS_PATH!r}"
    else:
        return None
    return (
        f"the storage has its {MARKER_PATH} marker and not {lost}: what it held was removed. "
        "Put it back as it was; if it is lost, recover the bookie and format it anew"
    )


def check_marker_data(
    data: bytes | None, storage: Storage, incarnation: str, bookie_id: str = ""
) -> Marker:
    """The same for a marker that was read already (``None``: it is certainly not there)."""
    marker = None if data is None else decode_marker(data, storage)
    if marker is not None and marker.incarnation == incarnation:
        return marker
    uri = storage.uri
    found = "no marker" if marker is None else f"{marker.bookie_id} {marker.incarnation}"
    raise CookieMismatchError(
        f"{uri} is not the bookie {bookie_id} that was registered: expected incarnation "
        f"{incarnation}, found {found}. It was wiped, replaced or mounted wrongly; what it held "
        "must come from other replicas. If the right storage exists, put it back",
        bookie_id=bookie_id,
        expected=incarnation,
        found=None if marker is None else marker.incarnation,
    )


def ledger_directories(storage: Storage) -> list[str]:
    """What a partition has of ledgers: ``<ledger id>-<nonce>`` of each."""
    return [name for name in storage.list(LEDGERS) if f"{LEDGERS}/{name}" != WITNESS_PATH]
