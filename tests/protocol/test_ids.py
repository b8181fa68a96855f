"""Identifiers."""

from __future__ import annotations

import numpy as np
import pytest

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import parse_bookie_id, parse_ledger_id


@pytest.mark.parametrize("text", ["10.0.0.3:3181", "bookie-1.example.com:1", "a_b:65535"])
def test_a_bookie_is_named_host_and_port(text: str) -> None:
    assert parse_bookie_id(text) == text


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":3181", "host:0", "host:65536", "a/b:1", "a:1:2", "readonly"]
)
def test_another_form_of_bookie_id_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="for example"):
        parse_bookie_id(text)


def test_ledger_ids_have_63_bits() -> None:
    assert parse_ledger_id((1 << 63) - 1) == (1 << 63) - 1


def test_a_ledger_id_out_of_a_pandas_frame_is_one_like_any_other() -> None:
    ledger_id = parse_ledger_id(np.int64(7))
    assert (ledger_id, type(ledger_id)) == (7, int)


@pytest.mark.parametrize("value", [-1, 1 << 63, True, "7", 7.0, None])
def test_what_is_no_ledger_id_is_refused(value: int) -> None:
    with pytest.raises(InvalidArgumentError, match="between 0 and"):
        parse_ledger_id(value)
