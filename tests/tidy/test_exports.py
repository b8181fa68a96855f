"""The public names are one sorted list, and every one of them is there."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import spark_bookkeeper
from spark_bookkeeper import errors


def declared_for_type_checkers() -> list[str]:
    """The names that ``__init__`` imports under ``TYPE_CHECKING``."""
    tree = ast.parse(Path(str(spark_bookkeeper.__file__)).read_text(encoding="utf-8"))
    guarded = [
        node
        for node in tree.body
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    ]
    return [
        alias.asname or alias.name
        for guard in guarded
        for statement in guard.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    ]


def test_public_names_are_sorted_and_the_visible_ones() -> None:
    assert list(spark_bookkeeper.__all__) == sorted(set(spark_bookkeeper.__all__))
    assert dir(spark_bookkeeper) == list(spark_bookkeeper.__all__)


def test_type_checkers_see_the_same_names() -> None:
    assert sorted(declared_for_type_checkers()) == list(spark_bookkeeper.__all__)


@pytest.mark.parametrize("name", spark_bookkeeper.__all__)
def test_a_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(spark_bookkeeper, name)

    assert inspect.getdoc(value)
    assert value.__name__.rpartition(".")[2] == name


def test_every_error_is_public() -> None:
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.BookKeeperError)
    ]

    assert set(classes) <= set(spark_bookkeeper.__all__)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_segment'"):
        _ = spark_bookkeeper.open_segment  # type: ignore[attr-defined]  # that it is not is the point


def test_the_version_is_that_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(spark_bookkeeper, "__version__", raising=False)
    monkeypatch.setattr(metadata, "version", {"spark-bookkeeper": "1.2.3"}.__getitem__)
    assert spark_bookkeeper.__version__ == "1.2.3"

    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.delattr(spark_bookkeeper, "__version__")
    monkeypatch.setattr(metadata, "version", none)
    assert spark_bookkeeper.__version__ == "0+unknown"
    vars(spark_bookkeeper).pop("__version__")


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ("pyspark", "pyarrow", "pandas", "kazoo", "fsspec", "rich", "click")
    script = (
        "import sys, spark_bookkeeper, spark_bookkeeper.errors;"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_help_says_something_about_every_public_name_and_what_it_has() -> None:
    silent = []
    for name in spark_bookkeeper.__all__:
        value = getattr(spark_bookkeeper, name)
        members = vars(value) if inspect.isclass(value) else {}
        asked = {name: value} | {
            f"{name}.{member}": getattr(value, member)
            for member, kind in members.items()
            if not member.startswith("_") and (callable(kind) or isinstance(kind, property))
        }
        silent += [shown for shown, what in asked.items() if not inspect.getdoc(what)]
    assert silent == []
