"""The map of the package leads to what is there, modules cite files that are there, and a class is
found by its name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "spark_bookkeeper"
MAP = PACKAGE / "README.md"

CITED = re.compile(r"`([\w./-]+\.(?:py|md))`")
FOLDER = re.compile(r"^\| `(\w+)/` \|", re.MULTILINE)


def test_every_file_of_the_map_is_there() -> None:
    named = re.findall(r"`([\w/]+\.(?:py|md)|[\w/]+/)`", MAP.read_text(encoding="utf-8"))

    assert len(named) > 50, "the map is read as it is written"
    rooms = [
        PACKAGE,
        PACKAGE.parent,
        *(PACKAGE / room for room in ("bookie", "cli", "client", "metadata")),
    ]
    missing = [name for name in named if not any((room / name).exists() for room in rooms)]
    assert missing == []


def test_every_folder_of_the_package_is_on_the_map() -> None:
    shown = set(FOLDER.findall(MAP.read_text(encoding="utf-8")))
    there = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"}

    assert shown == there


def test_a_module_cites_files_that_are_there() -> None:
    missing = []
    for module in sorted(PACKAGE.rglob("*.py")):
        places = (module.parent, module.parent.parent, PACKAGE, PACKAGE.parent)
        for name in CITED.findall(module.read_text(encoding="utf-8")):
            if not any((place / name).exists() for place in places):
                missing.append(f"{module.relative_to(PACKAGE)}: {name}")
    assert missing == []


WORDS_OF_TWO_LAYERS = {"Task"}
"""A ledger that lacks replicas, as BookKeeper has it, and what runs beside its maker."""


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict[str, list[str]](list)
    for module in sorted(PACKAGE.rglob("*.py")):
        where = module.relative_to(PACKAGE)
        if where.parts[0] == "testing":
            continue
        for name in re.findall(r"^class ([A-Za-z]\w*)", module.read_text(encoding="utf-8"), re.M):
            places[name].append(str(where))

    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice.keys() == WORDS_OF_TWO_LAYERS, twice
