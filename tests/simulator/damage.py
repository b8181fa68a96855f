"""How the storage of one bookie is damaged: each kind of file, in each way that can be noticed.

What cannot be noticed is a loss of storage ("wipe", "destroy"), and not here: one ledger's
directory, or the newest slots of a log with nothing above them, not even a fence.

Source: decision 0011.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from spark_bookkeeper.bookie.schema import MARKER_PATH

FileKind = Literal["slot", "fence", "copy", "part", "marker"]
Way = Literal["flipped", "cut", "emptied", "holds its neighbour's bytes", "removed"]

LOST_LEDGERS: Final = "ledgers directory removed"

WAYS: Final[dict[FileKind, tuple[Way, ...]]] = {
    "slot": ("flipped", "cut", "emptied", "holds its neighbour's bytes", "removed"),
    "fence": ("flipped", "cut", "emptied", "holds its neighbour's bytes"),
    "copy": ("flipped", "cut", "emptied"),
    "part": ("flipped", "cut", "emptied", "removed"),
    "marker": ("flipped", "cut", "emptied", "removed"),
}
"""A slot is removed, or made to look like a fence, below others only. Hardly any bookie of a
lifetime has two copies, one of which could hold the other's bytes."""

DAMAGES: Final = (
    *(f"{kind} {way}" for kind, ways in WAYS.items() for way in ways),
    LOST_LEDGERS,
)
"""The name of each, as it is counted."""

SELDOM: Final = tuple(name for name in DAMAGES if name.startswith(("copy", "part")))
"""Those that few bookies have files for."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What becomes of one file."""

    name: str
    """One of ``DAMAGES``."""
    path: str
    content: bytes | None
    """``None``: it is gone."""


def draw_damages(files: Mapping[str, bytes], dice: random.Random, what: str = "") -> list[Damage]:
    """Damage to some of a bookie's files; none where there is nothing to damage.

    Mostly one file of a kind that is drawn first, so that rare kinds are met too; else about half
    of all files, or every ledger. With ``what`` it is that one of ``DAMAGES``, if that is possible.
    """
    kinds = {path: kind for path in files if (kind := _kind(path, files[path])) is not None}
    for path in dice.sample(list(kinds), len(kinds)) if what else ():
        for way in WAYS[kinds[path]]:
            if what == f"{kinds[path]} {way}":
                damage = _damage(path, kinds[path], way, files, dice)
                if damage.name == what and damage.content != files[path]:
                    return [damage]
    draw = dice.random()
    if draw < 0.15 or what == LOST_LEDGERS:
        lost = [path for path in kinds if path.startswith("ledgers/")]
        return [Damage(LOST_LEDGERS, path, None) for path in lost]
    if draw < 0.45:
        chosen = [path for path in kinds if dice.random() < 0.5]
    else:
        there = {*kinds.values()} - {"marker"}
        rare: list[FileKind] = sorted(there & {"copy", "part"})
        kind = dice.choice(sorted(there) + 2 * rare) if there and dice.random() < 0.9 else "marker"
        of_kind = sorted(path for path in kinds if kinds[path] == kind)
        chosen = dice.sample(of_kind, min(len(of_kind), dice.choice((1, 1, 2))))
    made = (_damage(p, kinds[p], dice.choice(WAYS[kinds[p]]), files, dice) for p in chosen)
    return [damage for damage in made if damage.content != files[damage.path]]


def _damage(
    path: str, kind: FileKind, way: Way, files: Mapping[str, bytes], dice: random.Random
) -> Damage:
    data = files[path]
    beside = _beside(path, files)
    is_newest = kind == "slot" and path == beside[-1]
    if way == "removed" and is_newest:
        way = "emptied"
    content: bytes | None
    match way:
        case "flipped":
            at = dice.randrange(len(data) or 1)
            bit = bytes([data[at] ^ 1 << dice.randrange(8)]) if data else b"?"
            content = data[:at] + bit + data[at + 1 :]
        case "cut":
            content = data[: dice.randrange(len(data) or 1)]
        case "emptied":
            content = b""
        case "removed":
            content = None
        case _:
            at = beside.index(path)
            neighbours = [files[p] for p in (*beside[:at][-1:], *beside[at + 1 :][:1])]
            if is_newest:
                neighbours = [other for other in neighbours if not _is_fence(other)]
            content = dice.choice(neighbours or [data])
    return Damage(f"{kind} {way}", path, content)


def _beside(path: str, files: Mapping[str, bytes]) -> list[str]:
    directory = path.rpartition("/")[0]
    return sorted(other for other in files if other.rpartition("/")[0] == directory)


def _kind(path: str, data: bytes) -> FileKind | None:
    if path == MARKER_PATH:
        return "marker"
    pieces = path.split("/")
    if len(pieces) != 4 or not path.endswith(".arrow"):
        return None
    if pieces[2] == "slots":
        return "fence" if _is_fence(data) else "slot"
    return {"copies": "copy", "parts": "part"}.get(pieces[2])  # type: ignore[return-value]


def _is_fence(data: bytes) -> bool:
    return b'"kind":"FENCE"' in data
