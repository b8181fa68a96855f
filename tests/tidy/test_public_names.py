"""Tab completion offers what is for users, and every name of it says what it is."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.runtime.public_names import PublicNames

HELD: list[type[PublicNames]] = [
    sbk.BookKeeper,
    sbk.LedgerInfo,
    sbk.LedgerReader,
    sbk.LedgerWriter,
    sbk.LocalCluster,
    sbk.Log,
    sbk.LogWriter,
]
"""Objects that people hold and press Tab behind."""

WANTED = {
    sbk.BookKeeper: "create_ledger open_ledger ledgers bookies recover_bookie close metadata_uri",
    sbk.LedgerInfo: "fragments_df slots_df",
    sbk.LedgerReader: "ledger_id is_closed last_add_confirmed read read_arrow entries tail close",
    sbk.LedgerWriter: "ledger_id append append_async flush last_add_confirmed acks close",
    sbk.LocalCluster: "metadata_uri bookie_ids stop_bookie start_bookie add_bookie",
    sbk.Log: "ledgers become_writer read truncate",
    sbk.LogWriter: "append roll close",
}
INTERNALS = {
    sbk.BookKeeper: "connection context frames begin calls reported runner",
    sbk.LedgerInfo: "of",
    sbk.LedgerReader: "check_range ledger",
    sbk.LedgerWriter: "append_written",
    sbk.LocalCluster: "agent",
}


@pytest.mark.parametrize("kind", HELD)
def test_only_public_names_are_offered(kind: type[PublicNames]) -> None:
    offered = dir(object.__new__(kind))

    assert set(WANTED[kind].split()) <= set(offered)
    assert not set(INTERNALS.get(kind, "").split()) & set(offered)
    assert [name for name in offered if name.startswith("_")] == []


@pytest.mark.parametrize("kind", HELD)
def test_every_name_that_is_offered_says_what_it_is(kind: type[PublicNames]) -> None:
    fields: set[str] = set(getattr(kind, "__dataclass_fields__", ()))
    for name in set(dir(object.__new__(kind))) - fields:
        told: Any = inspect.getattr_static(kind, name)
        assert inspect.getdoc(told), f"{kind.__name__}.{name} has no docstring"


def test_an_internal_name_that_goes_leaves_the_list_of_them() -> None:
    for kind in HELD:
        ours = [each for each in kind.__mro__ if each.__module__.startswith("spark_bookkeeper")]
        source = "".join(map(inspect.getsource, ours))
        for name in kind._INTERNALS:
            assert re.search(rf"\b(self\.{name}\b|def {name}\b)", source), f"{kind}: {name}"


def test_every_method_is_called_one_of_its_class() -> None:
    """In ``help`` and in errors of Python, wherever it is written."""
    for name, call in inspect.getmembers(sbk.BookKeeper, inspect.isfunction):
        if not name.startswith("__"):
            assert call.__qualname__.split(".")[-1] == name
            assert call.__qualname__ != name
            assert str(inspect.signature(call)).startswith(("(self)", "(self,"))
    with pytest.raises(TypeError, match=r"BookKeeper\.open_ledger\(\) missing"):
        sbk.BookKeeper.open_ledger()  # type: ignore[call-arg]
