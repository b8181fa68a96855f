"""The facts that a client needs to use a ledger's data: identity, encoding and bookies.

Apache BookKeeper's metadata says which bookies hold which entries. Our bookies need more: the nonce
in the directory's name, the Arrow schema, and the incarnation of every bookie. These are in the
ledger's custom metadata, under keys that begin with ``spark-bookkeeper.``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import pyarrow as pa

from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA, LedgerEncoding
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import CookieMismatchError, MetadataFormatError, UnauthorizedError
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.arguments import check_password, whole_number
from spark_bookkeeper.protocol.collection import collections_of
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import NONCE, DigestType, LedgerMetadata
from spark_bookkeeper.protocol.underreplication import live_bookies

SCHEMA: Final = "spark-bookkeeper.schema"
INCARNATIONS: Final = "spark-bookkeeper.incarnations"
ENCODING: Final = "spark-bookkeeper.encoding"
WRITER: Final = "spark-bookkeeper.writer"
STAGER: Final = "spark-bookkeeper.stager"
"""For a ledger that tasks write: its creator. No node says whether that process lives."""

LOG: Final = "spark-bookkeeper.log"
"""For a ledger that was made for a log: the log's name."""

LOG_LABEL: Final = "log"
"""The log's name again, as a label for people. A user may give any ledger this label."""


DEFAULT_ENTRY_TARGET_BYTES: Final = 8 << 20
"""About how many bytes of rows one entry of a bulk append holds (8 MiB)."""

_PAYLOAD: Final = PAYLOAD_SCHEMA.serialize().to_pybytes()


@dataclass(frozen=True, slots=True)
class Ledger:
    """One ledger's identity, encoding and bookies, from one value of its metadata. Picklable."""

    key: LedgerKey
    encoding: LedgerEncoding
    metadata: LedgerMetadata
    incarnations: Mapping[BookieId, str]
    """For every bookie in any ensemble: its incarnation that the ledger uses (R11)."""
    entry_target_bytes: int = DEFAULT_ENTRY_TARGET_BYTES

    @property
    def ledger_id(self) -> LedgerId:
        return LedgerId(self.key.ledger_id)

    @property
    def schema(self) -> pa.Schema:
        return self.encoding.schema

    @classmethod
    def of(cls, ledger_id: LedgerId, metadata: LedgerMetadata) -> Ledger:
        """Read a ledger from its metadata.

        Raises:
            MetadataFormatError: the ledger was not written by this library.
        """
        custom = metadata.custom_metadata
        try:
            encoding, entry_target_bytes = _form(
                custom[SCHEMA],
                custom[ENCODING],
                metadata.digest_type or DigestType.CRC32C,
                metadata.password or b"",
            )
            return cls(
                key=LedgerKey(ledger_id, custom[NONCE].decode()),
                encoding=encoding,
                metadata=metadata,
                incarnations=_incarnations(custom[INCARNATIONS]),
                entry_target_bytes=entry_target_bytes,
            )
        except Exception as error:
            raise _unusable(str(ledger_id), error) from error

    def with_metadata(self, metadata: LedgerMetadata) -> Ledger:
        """Return the same ledger with a newer value of its metadata.

        Raises:
            MetadataFormatError: another client removed or damaged our keys in it.
        """
        assert metadata.nonce == self.metadata.nonce, "ids-are-not-reused"
        stored = metadata.custom_metadata.get(INCARNATIONS)
        if stored == self.metadata.custom_metadata[INCARNATIONS]:
            return replace(self, metadata=metadata)
        return replace(self, metadata=metadata, incarnations=incarnations_of(metadata))

    def times_cleared(self, bookie: BookieId, incarnation: str) -> int:
        """Return how often copies were removed from a bookie (R19); 0 if the register is
        unreadable, as then no client publishes the bookie.
        """
        try:
            return collections_of(self.metadata, bookie, incarnation).ended
        except ValueError:
            return 0

    def check_password(self, password: bytes) -> None:
        """Raise ``UnauthorizedError`` if the password is not the ledger's.

        And ``InvalidArgumentError`` if it is no password at all.
        """
        check_password(password)
        if password != self.encoding.password:
            raise UnauthorizedError(
                f"the password given for ledger {self.ledger_id} is not the one it was created "
                "with; "
                "nothing was read or changed. Pass password=... as at create_ledger",
                ledger_id=self.ledger_id,
            )


def log_of(metadata: LedgerMetadata) -> str | None:
    """Return the log that a ledger was made for."""
    name = metadata.custom_metadata.get(LOG)
    return None if name is None else name.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class EntryRange:
    """The entries ``first .. last`` of a ledger, for readers in other processes."""

    ledger: Ledger
    first: EntryId
    last: EntryId


def custom_metadata(
    nonce: str,
    schema: pa.Schema,
    compression: str | None,
    entry_target_bytes: int,
    incarnations: Mapping[BookieId, str],
    writer: WriterInfo | None = None,
) -> dict[str, bytes]:
    """Return custom metadata of a new ledger, for ``Ledger.of``; ``writer`` is for people."""
    told = {} if writer is None else {WRITER: writer.encode()}
    return {
        **told,
        NONCE: nonce.encode("ascii"),
        SCHEMA: _PAYLOAD if schema is PAYLOAD_SCHEMA else schema.serialize().to_pybytes(),
        INCARNATIONS: _dump(incarnations),
        ENCODING: _form_bytes(compression, entry_target_bytes),
    }


def with_incarnations(
    metadata: LedgerMetadata, added: Mapping[BookieId, str], *, renewed: bool = False
) -> LedgerMetadata:
    """Return metadata with the incarnations of its members, ``added`` included.

    Args:
        added: incarnations of new members.
        renewed: ``added`` also has old members: tables, whose lists of entries were rewritten.

    Raises:
        MetadataFormatError: another client removed or damaged our keys in it.
        CookieMismatchError: a bookie of ``added`` is in the ledger already, from before it was
            formatted again. It would be unknown which formatting is meant: the empty one would be
            believed when it says that it has no such entry (SLOT-LOG rule R11).
    """
    known = incarnations_of(metadata)
    if renewed:
        known |= added
    for bookie, incarnation in added.items():
        if known.setdefault(bookie, incarnation) != incarnation:
            raise CookieMismatchError(
                f"bookie {bookie} cannot join the ledger again: it was formatted again since it "
                "joined, and another client chose it before that. Nothing was written; repeat, "
                "and another bookie is chosen",
                bookie_id=bookie,
            )
    named = metadata.members()
    kept = {bookie: known[bookie] for bookie in sorted(named) if bookie in known}
    return metadata.with_custom(**{INCARNATIONS: _dump(kept)})


def with_new_incarnation(
    metadata: LedgerMetadata, bookie: BookieId, incarnation: str
) -> LedgerMetadata:
    """Return metadata with the latest incarnation of a bookie, which holds all its entries.

    Only for a bookie that was refilled: see ``replication/refill_bookie.py``.

    Raises:
        MetadataFormatError: another client removed or damaged our keys in it.
    """
    known = incarnations_of(metadata)
    return metadata.with_custom(**{INCARNATIONS: _dump(known | {bookie: incarnation})})


def schema_of(custom: Mapping[str, bytes]) -> pa.Schema | None:
    """Return the columns of a ledger's rows, for people; ``None`` if they are not usable."""
    try:
        return _schema(custom[SCHEMA])
    except Exception:  # noqa: BLE001  (any bytes may stand there)
        return None


def incarnations_of(metadata: LedgerMetadata) -> dict[BookieId, str]:
    """Return the incarnation of each bookie that the ledger uses.

    Raises:
        MetadataFormatError: the metadata does not say.
    """
    try:
        return dict(_incarnations(metadata.custom_metadata[INCARNATIONS]))
    except Exception as error:
        raise _unusable(INCARNATIONS, error) from error


def registered_incarnations(alive: Mapping[BookieId, Registration]) -> dict[BookieId, str]:
    """Return the incarnation of each bookie that is alive."""
    return {bookie: each.incarnation for bookie, each in alive.items()}


def live_members(
    metadata: LedgerMetadata, registered: Mapping[BookieId, str], lost: Collection[BookieId] = ()
) -> frozenset[BookieId]:
    """Return the bookies with live copies of a ledger, in the incarnations that it uses.

    Args:
        registered: see ``registered_incarnations``.
        lost: bookies to be given up, alive or not.
    """
    try:
        meant = incarnations_of(metadata)
    except MetadataFormatError:
        meant = {}  # a ledger of BookKeeper's own: any incarnation is right
    return live_bookies(registered, meant, lost)


def needs_refill(
    metadata: LedgerMetadata, registered: Mapping[BookieId, str]
) -> frozenset[BookieId]:
    """Return bookies that were formatted again since the ledger used them, and not refilled."""
    return (metadata.bookies() & registered.keys()) - live_members(metadata, registered)


@lru_cache(maxsize=256)
def _form(
    schema: bytes, form: bytes, digest_type: DigestType, password: bytes
) -> tuple[LedgerEncoding, int]:
    """Return a ledger's form, cached: a ledger is read often, and many have the same form."""
    found = json.loads(form)
    encoding = LedgerEncoding(_schema(schema), digest_type, password, found["compression"])
    return encoding, whole_number("entry_target_bytes", found["entry_target_bytes"], 1)


@lru_cache(maxsize=256)
def _form_bytes(compression: str | None, entry_target_bytes: int) -> bytes:
    return _dump({"compression": compression, "entry_target_bytes": entry_target_bytes})


def _schema(data: bytes) -> pa.Schema:
    schema = pa.ipc.read_schema(pa.py_buffer(data))
    for field in schema:  # reading a name that is not UTF-8 raises here
        str(field)
    return schema


@lru_cache(maxsize=1024)
def _incarnations(data: bytes) -> Mapping[BookieId, str]:
    """Return incarnations, cached as ``_form``: many ledgers have the same bookies."""
    found = json.loads(data)
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(f"{INCARNATIONS} is {data[:80]!r}, and not a mapping of text to text")
    return found


def _unusable(path: str, error: Exception) -> MetadataFormatError:
    shown = f"{type(error).__name__}: {error}"[:300]
    return MetadataFormatError(
        f"ledger {path} has no usable {NONCE}, {SCHEMA}, {INCARNATIONS} and {ENCODING} in its "
        f"custom metadata ({shown}): it was written by another BookKeeper client, whose entries "
        "live on bookies that speak BookKeeper's own protocol, or these were damaged. Its "
        "metadata can be listed here; its entries cannot be read. Nothing was changed",
        path=path,
    )


_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def _dump(value: object) -> bytes:
    return _ENCODER.encode(value).encode()
