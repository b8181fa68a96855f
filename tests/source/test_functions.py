"""Calls of the table functions of SQL, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.source.functions import arguments


def test_arguments_are_taken_by_place_and_by_name() -> None:
    assert arguments("entries", (), {}) == {}
    assert arguments("entries", (pa.array([7]),), {}) == {"ledger": "7"}
    assert arguments("entries", ("7,9-12",), {"uri": "zk1"}) == {"ledger": "7,9-12", "uri": "zk1"}
    assert arguments("consumers", ("orders", "zk1"), {}) == {"log": "orders", "uri": "zk1"}


@pytest.mark.parametrize(
    ("view", "given", "named", "said"),
    [
        ("entries", (1, 2, 3), {}, "takes ledger and uri, and 3 arguments"),
        ("entries", (), {"ledgr": 7}, "no argument 'ledgr'; did you mean 'ledger'"),
        ("entries", (), {"log": "orders"}, "it takes ledger and uri"),
        ("consumers", (), {"ledger": 7}, "it takes log and uri"),
        ("entries", (7,), {"ledger": 8}, "ledger twice"),
        ("entries", (pa.array([None], pa.int32()),), {}, "ledger as NULL"),
        ("consumers", (None,), {}, "log as NULL"),
    ],
)
def test_a_wrong_call_is_refused_by_the_name_of_the_function(
    view: str, given: tuple[Any, ...], named: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"bk_{view} .*{said}"):
        arguments(view, given, named)
