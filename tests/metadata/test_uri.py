"""Metadata URIs in all the spellings that people know from BookKeeper."""

from __future__ import annotations

import pickle

import pytest

from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import InvalidArgumentError, MetadataUnavailableError
from spark_bookkeeper.metadata.uri import MetadataUri, parse_metadata_uri


@pytest.mark.parametrize(
    ("text", "hosts", "root"),
    [
        ("zk+hierarchical://h1:2181,h2:2182/ledgers", "h1:2181,h2:2182", "/ledgers"),
        ("zk+hierarchical://h1:2181;h2:2182/ledgers/", "h1:2181,h2:2182", "/ledgers"),
        ("zk://h1/bk/one", "h1:2181", "/bk/one"),
        ("zk+null://h1:2181/ledgers", "h1:2181", "/ledgers"),
        ("ZK://h1:2181", "h1:2181", "/ledgers"),
        (" zk1:2181 ", "zk1:2181", "/ledgers"),
        ("zk1", "zk1:2181", "/ledgers"),
        ("127.0.0.1:2181,[::1]:2182/", "127.0.0.1:2181,[::1]:2182", "/ledgers"),
    ],
)
def test_a_uri_names_servers_and_root(text: str, hosts: str, root: str) -> None:
    uri = parse_metadata_uri(text)

    assert (uri.hosts, uri.root) == (hosts, root)
    assert parse_metadata_uri(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "''"),
        ("zk://", "''"),
        ("zk://h1,,h2/ledgers", "''"),
        ("zk+flat://h1:2181/ledgers", "'zk+flat'"),
        ("etcd://h1:2379/ledgers", "'etcd'"),
        ("zk://h1:port/ledgers", "'h1:port'"),
        ("zk://h1:70000/ledgers", "'h1:70000'"),
        ("zk://h1:0/ledgers", "'h1:0'"),
        ("zk://h 1:2181/ledgers", "'h 1:2181'"),
        ("zk://h1:2181//ledgers", "'//ledgers'"),
        ("zk://h1:2181/a/../b", "'/a/../b'"),
        ("zk://h1:2181/ledgers?x=1", "'/ledgers?x=1'"),
        ("zk://zk..one:2181", "'zk..one:2181'"),
        (f"zk://{'z' * 64}.example.com", f"'{'z' * 64}.example.com'"),
    ],
)
def test_what_is_wrong_is_shown_with_a_right_one(text: str, wrong: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_metadata_uri(text)

    assert wrong in str(caught.value)
    assert "zk+hierarchical://zk1:2181,zk2:2181/ledgers" in str(caught.value)


@pytest.mark.parametrize("text", ["./cluster", "../cluster", "/srv/cluster", "~/cluster", "."])
def test_a_directory_is_no_uri_and_the_way_to_run_a_cluster_there_is_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is a directory, and no metadata URI") as caught:
        parse_metadata_uri(text)

    assert f"spark_bookkeeper.local({text!r})" in caught.value.message
    assert "local status --directory" in caught.value.message


@pytest.mark.parametrize("text", ["zk1.example.com.", "my_zk-1:2181", "10.0.0.3", "a" * 63])
def test_names_that_hosts_have_are_taken(text: str) -> None:
    assert parse_metadata_uri(text).servers[0].startswith(text.partition(":")[0])


@pytest.mark.parametrize(
    "text",
    [
        "zk://reader:s3cret@zk1:2181/ledgers",
        "reader:s3cret@zk1:2181",
        "zk://zk1:2181,reader:s3cret@zk2:2181/ledgers",
        "http://reader:s3cret@zk1/ledgers",
        "zk://reader:s3c/s3cret@zk1:2181/ledgers",
        "zk://reader:@s3cret@zk1:2181/ledgers",
        "zk://reader:s3cret@zk1:2181//ledgers",
        "zk://:s3cret@zk1",
    ],
)
def test_a_password_in_a_uri_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_metadata_uri(text)

    assert "s3cret" not in str(caught.value)
    assert "auth_data" in str(caught.value), "where it goes instead"


def test_a_root_may_have_what_stands_behind_a_password() -> None:
    assert parse_metadata_uri("zk://zk1,zk2:2181/led@gers").root == "/led@gers"


@pytest.mark.parametrize("text", ["zk://reader:s3cret@zk1:2181", "reader:s3cret@zk1:2181"])
def test_what_travels_does_not_show_a_password_either(text: str) -> None:
    assert "s3cret" not in repr(Connection(text))


def test_an_error_shows_no_password_also_after_a_trip_to_another_process() -> None:
    said = "s3://key:s3cret@bucket/a and zk://u:s@3cret@h/b cannot be reached; x@y:z/@"
    hidden = "s3://key:***@bucket/a and zk://u:***@h/b cannot be reached; x@y:z/@"

    error = pickle.loads(pickle.dumps(MetadataUnavailableError(said)))

    assert (error.message, str(error)) == (hidden, hidden)


def test_a_uri_can_be_built() -> None:
    assert str(MetadataUri(("a:1", "b:2"))) == "zk+hierarchical://a:1,b:2/ledgers"
