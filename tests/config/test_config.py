"""Settings are refused when they are made, with the key, the value and the rule."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from spark_bookkeeper.config import (
    BookieConfig,
    ClientConfig,
    PartitionConf,
    config_from,
    load_conf,
)
from spark_bookkeeper.errors import InvalidArgumentError


def test_keys_that_are_left_out_have_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text("add_timeout_ms = 5_000\n", encoding="utf-8")

    assert load_conf(path).client == replace(ClientConfig(), add_timeout_ms=5_000)


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text("add_timeout = 5\n", encoding="utf-8")

    with pytest.raises(InvalidArgumentError) as caught:
        load_conf(path)

    assert str(path) in str(caught.value)
    assert "did you mean 'add_timeout_ms'?" in str(caught.value)


def test_a_key_like_no_other_is_refused_with_all_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match="known keys: probe_interval_ms, "):
        config_from(BookieConfig, {"zzz": 1}, "a test")


@pytest.mark.parametrize("value", ["7", 1.5, True, None])
def test_a_value_that_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"a test: read_threads=.* is not a whole number"
    ):
        config_from(ClientConfig, {"read_threads": value}, "a test")


@pytest.mark.parametrize("value", [0, -1])
def test_a_value_below_its_least_is_refused(value: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"max_group_entries={value} is below 1"):
        ClientConfig(max_group_entries=value)
    with pytest.raises(InvalidArgumentError, match=f"probe_interval_ms={value} is below"):
        BookieConfig(probe_interval_ms=value)


def test_a_group_fits_into_what_may_be_pending() -> None:
    assert ClientConfig(max_group_bytes=100, max_pending_bytes=100).max_group_bytes == 100
    with pytest.raises(InvalidArgumentError, match="could never be sent"):
        ClientConfig(max_group_bytes=101, max_pending_bytes=100)


def test_a_bookie_is_never_both_readonly_and_writable() -> None:
    with pytest.raises(InvalidArgumentError, match="would be both"):
        BookieConfig(readonly_below_free_bytes=2, writable_above_free_bytes=1)
    assert BookieConfig(5_000, 0, 0).writable_above_free_bytes == 0


def test_a_file_that_is_not_there_or_no_toml_is_named(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    with pytest.raises(InvalidArgumentError, match=r"cannot read .*absent\.toml: No such file"):
        load_conf(absent)
    absent.write_text("probe_interval_ms 5", encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match=r"absent\.toml is not TOML"):
        load_conf(absent)


def test_a_config_travels_and_does_not_change() -> None:
    config = ClientConfig(read_threads=3)

    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(FrozenInstanceError):
        config.read_threads = 4  # type: ignore[misc]  # refusing this is what is tested


def test_one_file_may_hold_the_keys_of_clients_and_bookies_and_options_of_both(
    tmp_path: Path,
) -> None:
    path = tmp_path / "all.toml"
    path.write_text(
        "add_timeout_ms = 5_000\nprobe_interval_ms = 700\n"
        "[zk]\nuse_ssl = true\nauth_data = 'digest:ann:secret'\n"
        "[storage]\nendpoint_url = 'http://127.0.0.1:9000'\n",
        encoding="utf-8",
    )

    found = load_conf(path)

    assert found.client == ClientConfig(add_timeout_ms=5_000)
    assert found.bookie == BookieConfig(probe_interval_ms=700)
    assert found.zk_options == {"use_ssl": "true", "auth_data": "digest:ann:secret"}
    assert found.storage_options == {"endpoint_url": "http://127.0.0.1:9000"}
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    "text", ["zk = 'auth_data=digest:ann:secret'", "[zk]\nauth_data = ['secret']", "[zoo]\na = 1"]
)
def test_options_of_another_form_are_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "conf.toml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(InvalidArgumentError) as caught:
        load_conf(path)

    assert str(path) in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        ("[zk]\nauth_data = 'digest:ann:secret'", 1),
        ("[storage]\nsecret = 'secret'", 1),
        ("read_threads = 2\n[zk]\nuse_ssl = true", 0),
    ],
)
def test_a_file_that_holds_a_secret_and_that_all_may_read_is_told_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str,
    warnings: int,
) -> None:
    path = tmp_path / "conf.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(
        "spark_bookkeeper.runtime.private_files.may_be_read_by_others", lambda _: True
    )

    load_conf(path)

    assert [f"chmod 600 {path}" in told for told in caplog.messages] == [True] * warnings


def test_partitions_are_a_list_of_tables(tmp_path: Path) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text(
        'probe_interval_ms = 7\n[[partitions]]\nbookie_id = "a:1"\nroot = "/disks/1"\n'
        '[[partitions]]\nbookie_id = "a:2"\nroot = "/disks/2"\nrack = "/r"\n'
    )

    assert load_conf(file).partitions == (
        PartitionConf("a:1", "/disks/1"),
        PartitionConf("a:2", "/disks/2", "/r"),
    )
    for wrong in (
        "partitions = 1",
        '[[partitions]]\nroot = "/disks/1"',
        '[[partitions]]\nbookie_id = "a:1"\nroot = 1',
        '[[partitions]]\nbookie = "a:1"\nroot = "/disks/1"',
    ):
        file.write_text(wrong)
        with pytest.raises(InvalidArgumentError, match="partitions"):
            load_conf(file)
