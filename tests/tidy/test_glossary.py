"""Names and docstrings keep to the words of the glossary in ``STYLE.md``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "spark_bookkeeper"

NAMES = re.compile(r"^_?(?:(?:\w+_)?bells?|crosswise|doors?|lanes?)$", re.IGNORECASE)
"""Words that stood for a client of a bookie, a channel, an event, and so on."""

CLAUSES = re.compile(r"^(?:Of (?:those|what)|Those that|What|Whatever|Who|Whoever|For one of)\b")
"""With these a docstring begins with a clause instead of a verb or the name of a thing."""

WORDS = re.compile(r"\b(?:whoever|somebody|told by|is told|are told|nobody)\b", re.IGNORECASE)

PLAIN = (
    *("autorecovery", "backup", "bookie", "client", "delta", "logs", "metadata", "protocol"),
    *("agent", "doctor", "local_cluster", "replication", "runtime", "session", "source", "spark"),
    *("storage", "table", "testing"),
)
"""Folders whose docstrings are in plain words."""


def identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield node.lineno, text


def modules(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if not folders or name.startswith(tuple(f"{folder}/" for folder in folders)):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def test_names_are_words_of_the_field() -> None:
    found = {
        f"{where}: {name}"
        for where, tree in modules()
        for name in identifiers(tree)
        if NAMES.match(name)
    }

    assert sorted(found) == []


def test_docstrings_begin_with_a_verb_or_a_thing_and_name_who_acts() -> None:
    found = [
        f"{where}:{line}: {text.strip().splitlines()[0]}"
        for where, tree in modules(*PLAIN)
        for line, text in docstrings(tree)
        if CLAUSES.match(text.strip()) or WORDS.search(text)
    ]

    assert found == []
