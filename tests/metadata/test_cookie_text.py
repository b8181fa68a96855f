"""Cookies of ours are cookies of BookKeeper's, and say which incarnation they mean."""

from __future__ import annotations

import pytest

from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.cookie_text import decode_cookie, encode_cookie, parse_cookie
from spark_bookkeeper.metadata.store import Cookie
from spark_bookkeeper.protocol.ids import BookieId

_ID = BookieId("10.0.0.3:3181")


@pytest.mark.parametrize(
    "root",
    [
        "file:///data/bookie 1",
        "s3://bucket/prefix,with,commas",
        "memory://é\"'\\",
        "file:///data/#incarnation=fake",
        "",
    ],
)
@pytest.mark.parametrize("incarnation", ["3f2a", ""])
@pytest.mark.parametrize("instance_id", ["ccb3dcc6-6bca-47a5-bd1a-18b99e6345e7", None])
def test_a_cookie_reads_back(root: str, incarnation: str, instance_id: str | None) -> None:
    cookie = Cookie(_ID, root, incarnation, instance_id)
    if "#incarnation=" in root and not incarnation:
        with pytest.raises(InvalidArgumentError):
            encode_cookie(cookie)
        return

    assert decode_cookie(encode_cookie(cookie), "somewhere") == cookie


def test_the_text_is_what_bookkeepers_shell_shows() -> None:
    cookie = Cookie(_ID, "s3://bucket/c", "3f2a", "ccb3dcc6-6bca-47a5-bd1a-18b99e6345e7")

    assert encode_cookie(cookie).decode() == (
        "5\n"
        'bookieHost: "10.0.0.3:3181"\n'
        'journalDir: "s3://bucket/c#incarnation=3f2a"\n'
        'ledgerDirs: "1\\ts3://bucket/c"\n'
        'instanceId: "ccb3dcc6-6bca-47a5-bd1a-18b99e6345e7"\n'
    )


def test_an_old_cookie_of_plain_lines_is_read() -> None:
    fields = parse_cookie(b"3\n10.0.0.3:3181\n/j\n1\t/l", "somewhere")

    assert (fields.bookie_host, fields.journal_dir, fields.ledger_dirs) == (_ID, "/j", "1\t/l")


@pytest.mark.parametrize(
    "data", [b"", b"2\nx", b"5\nbookieHost: 3", b'5\nbookieHost: "a:1"', b"\xff"]
)
def test_what_is_no_cookie_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError) as caught:
        parse_cookie(data, "/ledgers/cookies/a:1")

    assert caught.value.path == "/ledgers/cookies/a:1"


def test_a_root_that_would_read_back_differently_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        encode_cookie(Cookie(_ID, "file:///a\tb", "3f2a", None))
