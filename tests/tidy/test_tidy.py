"""Format, lint, types and layers are tests: there is one command to learn, and CI runs it too."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.tidy import programs
from tests.tidy.programs import LAYERS, PLACES, ROOT, TYPES


def check(arguments: tuple[str, ...], remedy: str) -> None:
    code, said = programs.outcome(arguments)
    if code != 0:
        pytest.fail(f"{said}\nTo put it right: {remedy}", pytrace=False)


def test_code_is_formatted() -> None:
    check(("-m", "ruff", "format", "--check", *PLACES), "ruff format")


def test_code_has_no_lint() -> None:
    check(("-m", "ruff", "check", *PLACES), "ruff check --fix, then read what is left")


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_types_are_strict() -> None:
    check(TYPES, f"run `mypy {' '.join(PLACES)}` and mend what it names")


def test_layers_point_down() -> None:
    check(LAYERS, "run `lint-imports`; move the code down, or hand the value in from above")


def test_no_files_import_each_other_in_a_circle() -> None:
    # Imports for types and inside functions count too: a circle is hard to follow however it runs.
    package = ROOT / "spark_bookkeeper"
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }
    del files[package.name]  # it lists the public names, and imports each when it is first used
    imports = {name: _imported(path) & files.keys() - {name} for name, path in files.items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as circle:
        pytest.fail(" imports ".join(reversed(circle.args[1])), pytrace=False)


def _imported(path: Path) -> set[str]:
    """The modules that a file names in its imports, which are found much sooner than parsed."""
    statements = r"^ *(?:from ([\w.]+) import (\([^)]*\)|.+)|import (.+))$"
    found: set[str] = set()
    for module, names, modules in re.findall(statements, path.read_text(encoding="utf-8"), re.M):
        imported = re.findall(r"([\w.]+)(?: as \w+)?", names or modules)
        found |= {module, *(f"{module}.{name}" for name in imported)} if module else {*imported}
    return found
