"""Ledger metadata and its transitions: pure steps "old value -> new value".

The value has the fields of BookKeeper's ``LedgerMetadataFormat`` (version 3, and those that
versions 1 and 2 have). It is written by compare-and-swap (``metadata/update.py``).

Source: BookKeeper ``client/LedgerMetadataImpl`` and ``LedgerMetadataBuilder`` (invariants),
``client/LedgerRecoveryOp`` and ``LedgerHandle`` (transitions).
"""

from __future__ import annotations

import enum
import re
from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from typing_extensions import override

from spark_bookkeeper.errors import InvalidArgumentError, VersionConflictError
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum

NONCE: Final = "spark-bookkeeper.nonce"
"""The key of custom metadata with a ledger's random name, which no other ledger has."""

ARCHIVE: Final = "spark-bookkeeper.archive"
"""The key of custom metadata with the table that stands for copies (``archive.py``)."""

_TABLE_MEMBER: Final = re.compile(r"archive-[0-9a-f]{16}:[0-9]+")


def is_table(bookie: str) -> bool:
    """Return whether a member of an ensemble is a table that stands for a copy, not a bookie."""
    return _TABLE_MEMBER.fullmatch(bookie) is not None


class LedgerState(enum.Enum):
    """OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED; never back."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(enum.Enum):
    """The protection of entries. ``MAC`` is keyed by the ledger's password."""

    CRC32 = 1
    MAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class Fragment:
    """A range of entries that share one ensemble; it ends where the next one begins."""

    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]
    """The bookies in order; the position in it decides which entries a bookie holds."""


@dataclass(frozen=True, slots=True)
class FragmentRange:
    """A fragment with its first and last entry.

    ``last_entry_id`` is ``None`` while the end is not fixed (the last fragment of a ledger that is
    not closed), and ``first_entry_id - 1`` if the fragment has no entries.
    """

    index: int
    first_entry_id: EntryId
    last_entry_id: EntryId | None
    ensemble: tuple[BookieId, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """The metadata of one ledger, on which the cluster agrees.

    Invariants (``fragments-are-sorted-and-valid``): at least one fragment, the first at entry 0,
    first entries strictly increasing, every ensemble of E distinct bookies; CLOSED if and only if
    ``last_entry_id`` and ``length_bytes`` are set, and then the ledger ends no earlier than
    directly before the last fragment.

    Raises:
        InvalidArgumentError: the values break an invariant.
    """

    quorum: Quorum
    state: LedgerState
    fragments: tuple[Fragment, ...]
    digest_type: DigestType | None = None
    """``None`` if the format does not store it (version 1)."""
    password: bytes | None = field(default=None, repr=False)
    """Stored in clear, as BookKeeper does; ``None`` if the format does not store it."""
    last_entry_id: EntryId | None = None
    """Set when CLOSED; -1 for an empty ledger."""
    length_bytes: int | None = None
    """Set when CLOSED: the sum of the entries' lengths."""
    ctime_ms: int | None = None
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    format_version: int = 3
    ctoken: int | None = field(default=None, compare=False)
    """A random number renewed by every write. It distinguishes a write whose answer was lost from
    another client's. It does not describe the ledger, so comparisons ignore it."""
    foreign: bytes = b""
    """Fields of the stored message that this version does not know, kept unchanged."""

    def __post_init__(self) -> None:
        if not isinstance(self.custom_metadata, _FrozenMapping):  # a changed copy has one already
            object.__setattr__(self, "custom_metadata", _FrozenMapping(self.custom_metadata))
        check_ledger(self.quorum, self.state, self.fragments, self.last_entry_id, self.length_bytes)

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def nonce(self) -> bytes | None:
        """The random name of this ledger, which no other has, even with its id (SLOT-LOG R16).

        ``None`` for a ledger that another client made.
        """
        return self.custom_metadata.get(NONCE)

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    def fragment_of(self, entry_id: EntryId) -> Fragment:
        """Return the fragment that holds an entry, even one that is not written yet."""
        for fragment in reversed(self.fragments):
            if fragment.first_entry_id <= entry_id:
                return fragment
        raise InvalidArgumentError(f"entry id {entry_id} is below 0")

    def fragment_range(self, first_entry_id: EntryId | None) -> FragmentRange | None:
        """Return the fragment that begins with an entry, with both its ends, or ``None``."""
        ranges = self.fragment_ranges()
        return next((f for f in ranges if f.first_entry_id == first_entry_id), None)

    def fragment_ranges(self) -> Iterator[FragmentRange]:
        """Yield every fragment with both its ends, in order."""
        for index, fragment in enumerate(self.fragments):
            is_last = index == len(self.fragments) - 1
            last = (
                self.last_entry_id
                if is_last
                else EntryId(self.fragments[index + 1].first_entry_id - 1)
            )
            yield FragmentRange(index, fragment.first_entry_id, last, fragment.ensemble, is_last)

    def members(self) -> frozenset[BookieId]:
        """Return every bookie of any fragment, and every table that stands for copies."""
        return frozenset(bookie for f in self.fragments for bookie in f.ensemble)

    def bookies(self) -> frozenset[BookieId]:
        """Return every bookie of any fragment, without tables, which no bookie's loss affects."""
        return frozenset(bookie for bookie in self.members() if not is_table(bookie))

    # Transitions

    def with_new_ensemble(
        self, first_entry_id: EntryId, ensemble: tuple[BookieId, ...]
    ) -> LedgerMetadata:
        """Return the metadata with a new last fragment, which begins at ``first_entry_id``.

        A last fragment that begins at the same entry is replaced: it holds no entries.

        Raises:
            VersionConflictError: the last fragment begins after that entry. No client that follows
                the protocol made it.
        """
        last = self.last_fragment.first_entry_id
        if first_entry_id < last:
            raise VersionConflictError(
                f"fragments-are-sorted-and-valid: the last fragment begins at entry {last}, and a "
                f"new one would at entry {first_entry_id}: another program changed the ledger. "
                "Nothing was written. Stop that program, and read the ledger's metadata again"
            )
        kept = self.fragments[:-1] if first_entry_id == last else self.fragments
        return replace(self, fragments=(*kept, Fragment(first_entry_id, ensemble)))

    def with_replaced_bookie(
        self, first_entry_id: EntryId, position: int, bookie: BookieId
    ) -> LedgerMetadata:
        """Return the metadata with another bookie at a position of the fragment at that entry."""
        fragments = tuple(
            replace(f, ensemble=(*f.ensemble[:position], bookie, *f.ensemble[position + 1 :]))
            if f.first_entry_id == first_entry_id
            else f
            for f in self.fragments
        )
        return replace(self, fragments=fragments)

    def with_custom(self, **values: bytes) -> LedgerMetadata:
        """Return the metadata with custom keys set; ``_`` in a name is not translated."""
        return replace(self, custom_metadata={**self.custom_metadata, **values})

    def in_recovery(self) -> LedgerMetadata:
        """Return the metadata IN_RECOVERY; from then on the writer can change nothing."""
        assert self.state is not LedgerState.CLOSED, "all-closes-agree"
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry_id: EntryId, length_bytes: int) -> LedgerMetadata:
        """Return the metadata CLOSED, with its end; no transition leaves CLOSED."""
        assert self.state is not LedgerState.CLOSED, "all-closes-agree"
        assert last_entry_id >= NO_ENTRY, "an empty ledger ends at -1"
        return replace(
            self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length_bytes=length_bytes
        )


def check_ledger(
    quorum: Quorum,
    state: LedgerState,
    fragments: tuple[Fragment, ...],
    last_entry_id: EntryId | None,
    length_bytes: int | None,
) -> None:
    """Check the invariants of ``LedgerMetadata`` without building a value.

    Raises:
        InvalidArgumentError: the values break one.
    """
    closed = state is LedgerState.CLOSED
    if closed != (last_entry_id is not None) or closed != (length_bytes is not None):
        raise InvalidArgumentError(
            f"state {state.name} with last_entry_id={last_entry_id} and "
            f"length_bytes={length_bytes}: both are set exactly when CLOSED"
        )
    if not fragments:
        raise InvalidArgumentError("a ledger has at least one fragment")
    first = fragments[0].first_entry_id
    if first != 0:
        raise InvalidArgumentError(
            f"fragments-are-sorted-and-valid: the first fragment is at entry {first}, not at 0"
        )
    before = -1
    for fragment in fragments:
        if fragment.first_entry_id <= before:
            raise InvalidArgumentError(
                f"fragments-are-sorted-and-valid: a fragment at entry "
                f"{fragment.first_entry_id} follows one at {before}"
            )
        before = fragment.first_entry_id
        if len(fragment.ensemble) != quorum.ensemble_size:
            raise InvalidArgumentError(
                f"fragments-are-sorted-and-valid: the ensemble {list(fragment.ensemble)} at "
                f"entry {fragment.first_entry_id} has not the size {quorum.ensemble_size}"
            )
        if len(set(fragment.ensemble)) != len(fragment.ensemble):
            raise InvalidArgumentError(
                f"fragments-are-sorted-and-valid: the ensemble {list(fragment.ensemble)} at "
                f"entry {fragment.first_entry_id} names a bookie twice"
            )
    if last_entry_id is not None and last_entry_id < before - 1:
        raise InvalidArgumentError(
            f"the ledger ends at entry {last_entry_id}, before its last fragment, which "
            f"is at entry {before}"
        )
    if length_bytes is not None and length_bytes < 0:
        raise InvalidArgumentError(f"a length of {length_bytes} bytes is below 0")


class _FrozenMapping(Mapping[str, bytes]):
    """An immutable mapping that can be hashed, compared and pickled."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, bytes]) -> None:
        self._items = MappingProxyType(dict(items))

    def __getitem__(self, key: str) -> bytes:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    @override
    def __contains__(self, key: object) -> bool:
        return key in self._items  # ``Mapping`` raises and catches an error for an absent key

    @override
    def items(self) -> ItemsView[str, bytes]:
        return self._items.items()

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._items.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self._items) == dict(other)

    def __repr__(self) -> str:
        return repr(dict(self._items))

    def __reduce__(self) -> tuple[type[_FrozenMapping], tuple[dict[str, bytes]]]:
        return (_FrozenMapping, (dict(self._items),))
