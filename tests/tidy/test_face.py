"""Above ``bookie/`` nobody knows how a bookie keeps its ledgers: a path, a record, a storage.

Imports are held by a contract in ``pyproject.toml``; here is that it names every module that it has
to, that its exceptions are used, and that nothing is reached through attributes instead.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "spark_bookkeeper"

PUBLIC = {
    "bookie.bookie",
    "bookie.encoding",
    "bookie.entry",
    "bookie.holdings",
    "bookie.ledger_key",
    "bookie.marker",
    "bookie.messages",
    "bookie.new_record",
    "bookie.part",
    "bookie.partition",
    "bookie.probe",
    "bookie.replica",
    "bookie.verdict",
    "storage.bookie_client",
    "storage.call",
    "storage.retry_policy",
}
"""What may be imported from above: the face, its values, how new entries are encoded, and the
limits on how long a bookie may be silent."""

INSIDE = {"storage", "paths", "places", "reader"}
"""Attributes behind the face, by which one would get at files, records and locations."""

NAMES = {
    "EntryIndex",
    "EntryReader",
    "LedgerLog",
    "LedgerPaths",
    "Location",
    "PartFiles",
    "Record",
    "SlotReader",
}

REACHING = re.compile(rf"\b(?:{'|'.join(NAMES)})\b|\.(?:{'|'.join(INSIDE)})\b")
"""A file in which this is not found need not be parsed."""

UNAWARE = ["client", "replication", "logs", "metadata", "spark", "session"]
"""Layers that meet bookies at their face only."""


def contract() -> dict[str, Any]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (found,) = (c for c in contracts if c["name"] == "Bookies are asked at their face")
    return dict(found)


def modules(*places: str) -> Iterator[Path]:
    for place in places:
        path = PACKAGE / place
        yield from path.rglob("*.py") if path.is_dir() else [path]


def test_every_module_of_a_bookie_and_of_storage_is_public_or_forbidden() -> None:
    forbidden = {name.removeprefix("spark_bookkeeper.") for name in contract()["forbidden_modules"]}
    found = {
        f"{layer}.{path.stem}"
        for layer in ("bookie", "storage")
        for path in (PACKAGE / layer).glob("[!_]*.py")
    }

    assert forbidden | PUBLIC == found, "a new module: is it part of the face?"
    assert not forbidden & PUBLIC


def test_every_layer_above_is_under_the_contract() -> None:
    below = {"bookie", "storage", "protocol", "runtime", "errors", "secrecy", "config", "metrics"}
    below |= {"testing"}
    found = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    named = {name.removeprefix("spark_bookkeeper.") for name in contract()["source_modules"]}

    assert named == found - below - {"__init__", "__main__"}


def test_nothing_reaches_behind_the_face() -> None:
    reached: list[str] = []
    for path in modules(*UNAWARE):
        where = str(path.relative_to(PACKAGE))
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if REACHING.search(text) else ():
            if isinstance(node, ast.Name) and node.id in NAMES:
                reached.append(f"{where}:{node.lineno} {node.id}")
            if isinstance(node, ast.Attribute) and node.attr in INSIDE:
                reached.append(f"{where}:{node.lineno} {ast.unparse(node)}")

    assert reached == []
