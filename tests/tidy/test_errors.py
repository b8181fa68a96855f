"""Every error of the tree: drawn, named, documented, and able to travel between processes."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from spark_bookkeeper import errors
from spark_bookkeeper.errors import (
    BookieError,
    BookKeeperError,
    InvalidArgumentError,
    LedgerFencedError,
)


def tree(cls: type[BookKeeperError]) -> Iterator[type[BookKeeperError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


CLASSES = list(dict.fromkeys(tree(BookKeeperError)))


def facts_of(cls: type[BookKeeperError]) -> dict[str, object]:
    """A value for each fact that the class, or one above it, declares."""
    samples: dict[str, object] = {
        "int": 7,
        "int | None": None,
        "str": "10.0.0.3:3181",
        "Mapping[str, str]": {"10.0.0.3:3181": "connection refused"},
        "Sequence[str]": ("10.0.0.3:3181",),
    }
    declared: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, BookKeeperError) and base is not BookKeeperError:
            declared.update(vars(base).get("__annotations__", {}))
    return {name: samples[kind] for name, kind in declared.items()}


def drawn() -> dict[str, str | None]:
    """Name -> name of the parent, as the module's docstring draws it."""
    assert errors.__doc__ is not None
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"( {4,})([A-Z]\w+Error)\b", line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        path = [(d, n) for d, n in path if d < depth]
        parents[name] = path[-1][1] if path else None
        path.append((depth, name))
    return parents


def test_an_error_that_is_raised_again_has_the_same_past() -> None:
    try:
        try:
            raise ValueError("before")
        except ValueError as before:
            raise LedgerFencedError("fenced", ledger_id=7) from before
    except LedgerFencedError as caught:
        error = caught

    same = error.again()

    assert type(same) is LedgerFencedError
    assert (same.message, same.ledger_id) == ("fenced", 7)
    assert same.__cause__ is error.__cause__ is not None
    assert same.__traceback__ is error.__traceback__
    assert same.__suppress_context__
    plain = BookKeeperError("of itself").again()
    assert (plain.__cause__, plain.__context__, plain.__suppress_context__) == (None, None, False)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_survives_pickling_with_its_facts(cls: type[BookKeeperError]) -> None:
    facts = facts_of(cls)
    error = cls("entry 12 is beyond the end", **facts)

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is cls
    assert str(copy) == "entry 12 is beyond the end"
    assert copy.facts == facts
    for name, value in facts.items():
        assert getattr(copy, name) == value


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_condition_follows_from_the_name(cls: type[BookKeeperError]) -> None:
    words = re.findall(r"[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
    expected = "BOOKKEEPER_" + "_".join(word.upper() for word in words)

    assert cls.condition == ("BOOKKEEPER_ERROR" if cls is BookKeeperError else expected)
    assert cls("text", **facts_of(cls)).for_worker() == f"[{cls.condition}] text"


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if issubclass(cls, BookieError)])
def test_an_error_of_a_bookie_says_which(cls: type[BookieError]) -> None:
    assert cls("text", bookie_id="b:1").bookie_id == "b:1"
    with pytest.raises(TypeError, match="bookie_id"):
        cls("text")  # type: ignore[call-arg]  # this is what nobody may write


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    actual = {
        cls.__name__: next(
            (base.__name__ for base in cls.__bases__ if issubclass(base, BookKeeperError)), None
        )
        for cls in CLASSES
    }

    assert drawn() == actual


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_has_a_docstring_of_its_own(cls: type[BookKeeperError]) -> None:
    assert vars(cls).get("__doc__")


def test_a_wrong_call_is_also_a_value_error() -> None:
    assert issubclass(InvalidArgumentError, ValueError)
