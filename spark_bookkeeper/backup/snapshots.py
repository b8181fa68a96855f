"""The snapshots of a backup, as numbered files in its directory (``FORMAT.md``)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence, Set
from typing import Final
from urllib.parse import unquote, urlsplit

from spark_bookkeeper.backup.snapshot import (
    ClosedLedgers,
    Snapshot,
    closed_ledgers,
    decode_snapshot,
    decoded_table,
    encode_snapshot,
)
from spark_bookkeeper.bookie.storage.storage import Content, Storage
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.runtime.private_files import warn_if_others_may_read
from spark_bookkeeper.runtime.runtime import Runtime

SNAPSHOTS: Final = "snapshots"
"""Their directory, below that of the backup."""

_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{64})\.arrow")
_TAKEN = re.compile(r"([0-9]{20})\.taken")


class Snapshots:
    """Those of one backup, each with a number; the newest has the highest.

    Args:
        storage: the backup's directory.
        uri: of that directory, for people.
    """

    def __init__(self, storage: Storage, uri: str, runtime: Runtime) -> None:
        self._storage = storage
        self._uri = uri
        self._runtime = runtime
        self._has_looked = False
        """Whether the mode of a snapshot was checked."""

    def put(self, snapshot: Snapshot) -> int:
        """Store a snapshot, durably, behind those there are; returns its number.

        The number is taken first, for itself: of two runs at once, whose snapshots have different
        names, both would find it free.
        """
        data = encode_snapshot(snapshot)
        digest = hashlib.sha256(data).hexdigest()
        number = self._take_number()
        # False would mean that it is there, by an earlier attempt of our own (SLOT-LOG rule R3).
        content = Content([data], is_private=True)  # the ledgers' passwords
        self._storage.put_if_absent(f"{SNAPSHOTS}/{number:020d}-{digest}.arrow", content)
        return number

    def _take_number(self) -> int:
        """One behind all that were ever taken; nobody else gets it."""
        token = self._runtime.token().encode()
        while True:
            found = self._storage.list(SNAPSHOTS)
            number = max([*_numbers(_NAME, found), *_numbers(_TAKEN, found)], default=0) + 1
            name = f"{SNAPSHOTS}/{number:020d}.taken"
            if self._storage.put_if_absent(name, token) or self._storage.read(name) == token:
                return number

    def numbers(self) -> Sequence[int]:
        """Of the snapshots there are, ascending."""
        return _numbers(_NAME, self._storage.list(SNAPSHOTS))

    def read(self, number: int | None = None) -> tuple[int, Snapshot]:
        """A snapshot and its number; ``None`` is the newest.

        Raises:
            InvalidArgumentError: there is none of that number, or it is damaged.
        """
        taken, data = self._bytes(number)
        return taken, decode_snapshot(data)

    def ledger_ids(self, number: int) -> Set[LedgerId]:
        """Of which ledgers a snapshot is.

        Raises:
            InvalidArgumentError: as ``read``.
        """
        _, data = self._bytes(number)
        table = decoded_table(data)
        return {LedgerId(i) for i in table["ledger_id"].drop_null().to_pylist()}

    def closed_ledgers(self, number: int) -> ClosedLedgers:
        """Where the closed ledgers of a snapshot are.

        Raises:
            InvalidArgumentError: as ``read``.
        """
        _, data = self._bytes(number)
        return closed_ledgers(data)

    def _bytes(self, number: int | None) -> tuple[int, bytes]:
        """The number and the bytes of a snapshot."""
        found = [
            (int(m[1]), m[2], name)
            for name in self._storage.list(SNAPSHOTS)
            if (m := _NAME.fullmatch(name)) and (number is None or int(m[1]) == number)
        ]
        others = ", ".join(str(each) for each in self.numbers() if each != number)
        again = "run `spark-bookkeeper cluster backup` again"
        if not found:
            which = "" if number is None else f" {number}"
            raise InvalidArgumentError(
                f"the backup at {self._uri} has no snapshot{which}: "
                + (
                    f"it has snapshot{'s' if ', ' in others else ''} {others}"
                    if others
                    else f"no run ended that found something to save, so {again}"
                )
            )
        newest, digest, name = max(found)
        data = self._storage.read(f"{SNAPSHOTS}/{name}")
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            others = ", ".join(str(each) for each in self.numbers() if each != newest)
            raise InvalidArgumentError(
                f"{self._uri}/{SNAPSHOTS}/{name} is damaged: its bytes have another SHA-256 than "
                f"its name says; nothing was changed. To have a new one {again}"
                + (f"; or take another (`--snapshot`), of {others}" if others else "")
            )
        if self._storage.uri.startswith("file:") and not self._has_looked:
            self._has_looked = True
            file = f"{local_path(self._storage.uri)}/{SNAPSHOTS}/{name}"
            warn_if_others_may_read(file, "the passwords of ledgers")
        return newest, data


def _numbers(form: re.Pattern[str], names: Iterable[str]) -> list[int]:
    """Of the files whose names have this form, ascending."""
    return sorted(int(m[1]) for name in names if (m := form.fullmatch(name)))


def local_path(uri: str) -> str:
    """The path that a ``file:`` URI means; what is none is a path."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
