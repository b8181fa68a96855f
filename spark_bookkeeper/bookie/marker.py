"""The ``BOOKIE`` marker: the bookie of a partition, and the bookie's incarnation.

A formatting writes it last, and a wipe deletes it first. So while it exists with the right
incarnation, neither has removed an entry that the bookie acknowledged (SLOT-LOG rule R11).
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
    """The content of the marker."""

    bookie_id: str
    incarnation: str
    """A random name; each formatting of the partition makes a new one."""

    instance_id: str
    """The cluster's INSTANCEID."""

    format_version: int = FORMAT_VERSION
    has_witness: bool = False
    """Whether a file represents the directory of the ledgers, as in a bucket. The field is absent
    in older markers and on disks."""

    def encode(self) -> bytes:
        """Encode it as one readable JSON object."""
        fields = asdict(self)
        if not self.has_witness:
            del fields["has_witness"]
        return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def decode_marker(data: bytes, storage: Storage) -> Marker:
    """Decode a marker that was read from ``storage``.

    Raises:
        CookieMismatchError: it is not a marker, or has a newer format.
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
    """Parse a marker. Cached, since every operation reads a marker, which seldom changes."""
    fields = json.loads(data)
    return Marker(
        bookie_id=read_bookie_id(str(fields["bookie_id"])),
        incarnation=str(fields["incarnation"]),
        instance_id=str(fields["instance_id"]),
        format_version=int(fields["format_version"]),
        has_witness=fields.get("has_witness", False) is True,
    )


def read_marker(storage: Storage) -> Marker | None:
    """Read the partition's marker; ``None`` if certainly none exists.

    Raises:
        BookieUnavailableError: no answer.
        CookieMismatchError: it cannot be decoded.
    """
    data = storage.read(MARKER_PATH)
    return None if data is None else decode_marker(data, storage)


def check_marker(storage: Storage, incarnation: str, bookie_id: str = "") -> Marker:
    """Read the marker, and check that it has this incarnation.

    Raises:
        BookieUnavailableError: no answer.
        CookieMismatchError: no marker, or another incarnation. Shows the expected and found ones.

    Source: SLOT-LOG rules R5 and R11.
    """
    data = storage.read(MARKER_PATH)
    return check_marker_data(data, storage, incarnation, bookie_id)


def lost_directory(storage: Storage, marker: Marker) -> str | None:
    """Return why a partition with that marker lost its content; ``None`` if it did not.

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
    """Check as ``check_marker`` a marker that was read already (``None``: certainly absent)."""
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
    """Return the names of a partition's ledger directories: ``<ledger id>-<nonce>``."""
    return [name for name in storage.list(LEDGERS) if f"{LEDGERS}/{name}" != WITNESS_PATH]
