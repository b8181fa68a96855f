"""From a root's URI to its storage: a root is the name of one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.storage.roots import open_storage


@pytest.mark.parametrize(
    "name", ["a?b", "a#b", "a;b", "a*", "a b", "a%", "a%62", "a::b", "[a]", "ä"]
)
@pytest.mark.parametrize("as_uri", [False, True])
def test_a_local_root_is_the_directory_of_that_name(
    tmp_path: Path, name: str, as_uri: bool
) -> None:
    root = tmp_path / name
    root.mkdir()

    storage = open_storage(root.as_uri() if as_uri else str(root))
    assert storage.put_if_absent("b", b"content")

    assert [path.name for path in root.iterdir()] == ["b"]
    assert open_storage(storage.uri).read("b") == b"content"


@pytest.mark.parametrize("sign", "?#;")
def test_a_sign_that_uris_have_otherwise_is_part_of_a_name(tmp_path: Path, sign: str) -> None:
    (tmp_path / f"a{sign}b").mkdir()

    storage = open_storage(f"file://{tmp_path}/a{sign}b")

    assert storage.uri == (tmp_path / f"a{sign}b").as_uri()


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("zip://x::http://127.0.0.1:1/z", "chains file systems"),
        ("simplecache::s3://bucket/root", "chains file systems"),
        ("s3://bucket/a::b", "chains file systems"),
        ("/x::http://127.0.0.1:1/z", "chains file systems"),
        ("file:///a%00b", "NUL"),
        ("/a\0b", "NUL"),
        ("file://host/a", "names the host 'host'"),
        ("file://", "is not absolute"),
        ("a/b", "is not absolute"),
        ("memory://a", "belongs to the process"),
        ("nowhere://a", "no file system is known"),
        ("hdfs://name-node:8020/a", "no bookie can be there: HDFS shows a file while"),
        ("webhdfs://name-node/a", "no bookie can be there: HDFS shows a file while"),
        ("http://host/a", "no bookie can be there: a web server creates"),
        ("https://host/a", "Write s3://bucket/root, with endpoint_url"),
    ],
)
def test_what_is_no_root_is_refused_without_a_look_at_it(uri: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        open_storage(uri)


def test_a_table_can_be_read_where_no_bookie_can_be() -> None:
    pytest.importorskip("s3fs")  # which brings what fsspec reads by http with
    assert open_storage("http://host/a", is_table=True).uri == "http://host/a"
