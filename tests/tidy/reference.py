"""The page ``docs/api.md``, made from signatures and docstrings.

``python -m tests.tidy.reference`` writes it; ``test_docs.py`` says when that has to be done.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import spark_bookkeeper as sbk
from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.autorecovery.losses import Losses
from spark_bookkeeper.client.deletion import Deletion
from spark_bookkeeper.client.fencing import Fencing
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.doctor.diagnosis import Diagnoses
from spark_bookkeeper.replication.report import Outcome, Report, Row
from spark_bookkeeper.replication.track import Track

PAGE = Path(__file__).resolve().parents[2] / "spark_bookkeeper" / "docs" / "api.md"

HEAD = """# Python API

Every public name of `spark_bookkeeper`, made from its docstrings by
`python -m tests.tidy.reference`. The columns of every table, with their units, are in
[tables](tables.md), options of the data source in [the table of options](../source/OPTIONS.md),
commands in `spark-bookkeeper --help`.
"""

CHAPTERS: dict[str, list[Any]] = {
    "To begin with": [sbk.connect, sbk.local, sbk.spark_session, sbk.register_source],
    "A cluster": [sbk.BookKeeper, AutorecoveryControl, sbk.LocalCluster],
    "Ledgers": [LedgerWriter, sbk.LedgerReader, sbk.Entry, sbk.LedgerInfo, Fencing, Deletion],
    "Logs": [sbk.Log, sbk.LogWriter, sbk.Position],
    "What jobs and looks say": [Report, Row, Outcome, Diagnoses, Losses],
    "Settings": [sbk.ClientConfig, sbk.BookieConfig, sbk.AutorecoveryConfig],
    "Pictures": [
        sbk.pictures.fragments,
        sbk.pictures.stripes,
        sbk.pictures.acks,
        sbk.pictures.progress,
        sbk.pictures.health,
        sbk.pictures.health_table,
        sbk.pictures.keep_images,
        Track,
    ],
    "Rows to try with": [sbk.demo.flights, sbk.demo.flights_arrow],
}

ELSEWHERE = {"demo", "pictures", "CheckReport", "RecoveryReport"}
"""Public names that are told of by another: the functions of one, the base of two."""

SECTION = re.compile(r"^(Args|Raises|Returns|Yields|Invariant|Source):\s*(.*)$")

LISTED = {"Args", "Raises"}
"""Sections with one thing on each line; the others are text."""


def page() -> str:
    """The whole text."""
    parts = [HEAD]
    for chapter, members in CHAPTERS.items():
        parts.append(f"## {chapter}\n")
        parts += [entry for member in members for entry in _entry(member)]
    parts.append("## Errors\n")
    parts.append(
        "Each is a `BookKeeperError`, survives pickling, and says the value, the rule and the "
        "remedy.\n"
    )
    parts += list(_errors())
    return "\n".join(parts).rstrip() + "\n"


def shown() -> set[str]:
    """The public names that the page tells of."""
    told = {member.__name__ for members in CHAPTERS.values() for member in members}
    return told | {error.__name__ for error in _error_classes()} | ELSEWHERE


def _entry(member: Any) -> Iterator[str]:
    if not inspect.isclass(member):
        yield f"### `{member.__name__}`\n"
        yield from _call(member.__name__, member)
        return
    yield f"### `{member.__name__}`\n"
    yield _text(inspect.getdoc(member))
    if is_dataclass(member):
        yield from _fields(member)
    elif issubclass(member, Outcome):
        yield ", ".join(f"`{each.value}`" for each in member) + ".\n"
        return
    for name in _members(member):
        found = inspect.getattr_static(member, name)
        if isinstance(found, (classmethod, staticmethod)):
            found = found.__func__
        if inspect.isfunction(found):
            yield f"#### `{member.__name__}.{name}`\n"
            yield from _call(name, found)
        elif isinstance(found, property):
            yield f"#### `{member.__name__}.{name}`\n"
            yield _text(inspect.getdoc(found))


def _members(kind: type) -> list[str]:
    """Methods and properties that users call, in the order in which they are written."""
    internals: frozenset[str] = getattr(kind, "_INTERNALS", frozenset())
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("spark_bookkeeper."):
            names |= dict.fromkeys(vars(base))
    return [
        name
        for name in names
        if not name.startswith("_") and name not in internals
        if inspect.getdoc(inspect.getattr_static(kind, name))
    ]


def _fields(kind: type) -> Iterator[str]:
    told = _texts_behind_fields(kind)
    rows = [
        f"* `{each.name}: {each.type}{_default(each)}`"
        + (f": {told[each.name]}" if each.name in told else "")
        for each in fields(kind)
        if not each.name.startswith("_") and each.repr
    ]
    if rows:
        yield "\n".join(rows) + "\n"


def _default(field: Field[Any]) -> str:
    """What a setting is unless somebody says otherwise."""
    return f" = {field.default!r}" if isinstance(field.default, (int, float, str)) else ""


def _texts_behind_fields(kind: type) -> dict[str, str]:
    """The texts that stand behind fields in the source, which Python itself does not keep."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        pattern = r'^    (\w+): [^\n]*\n    """(.*?)"""'
        for name, text in re.findall(pattern, inspect.getsource(base), re.M | re.S):
            found[name] = _inline(" ".join(text.split()))
    return found


def _call(name: str, function: Any) -> Iterator[str]:
    signature = inspect.signature(function)
    without = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    if any(p.default is not inspect.Parameter.empty for p in without):
        without = [_plain(p) for p in without]
    said = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature.replace(parameters=without)))
    yield f"`{name}{said}`\n"
    yield _text(inspect.getdoc(function))


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter whose default is a function shows that function's name, not its address."""
    if inspect.isfunction(parameter.default):
        return parameter.replace(default=_Name(parameter.default.__name__))
    return parameter


class _Name:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _text(docstring: str | None) -> str:
    """A docstring as Markdown: the sections become lists."""
    lines: list[str] = []
    in_section = ""
    for line in (docstring or "").splitlines():
        section = SECTION.match(line)
        if section:
            in_section = section[1]
            lines += ["", f"**{in_section}.** {section[2]}".rstrip()]
            lines += [""] if in_section in LISTED else []
        elif in_section in LISTED and line.startswith("    ") and line[4:5] != " ":
            lines.append(f"* {line.strip()}")
        elif in_section and line.startswith("    "):
            lines.append(f"  {line.strip()}" if in_section in LISTED else line.strip())
        else:
            in_section = in_section if not line.strip() else ""
            lines.append(line)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return _inline(text) + "\n"


def _inline(text: str) -> str:
    return text.replace("``", "`")


def _error_classes() -> list[type[Exception]]:
    found = (getattr(sbk, name) for name in sbk.__all__)
    return [each for each in found if inspect.isclass(each) and issubclass(each, Exception)]


def _errors() -> Iterator[str]:
    for error in sorted(_error_classes(), key=lambda e: (len(e.__mro__), e.__name__)):
        base = error.__mro__[1].__name__
        yield f"### `{error.__name__}`\n"
        yield f"{'An' if base[0] in 'AEIOU' else 'A'} `{base}`. {_text(inspect.getdoc(error))}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
