"""What is a secret is for its owner."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_bookkeeper.runtime.private_files import (
    holds_a_secret,
    may_be_read_by_others,
    warn_if_others_may_read,
)


@pytest.fixture
def shown() -> Iterator[Path]:
    """A directory that everybody may enter; those of pytest are their owner's."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("mode", "above", "is_open"),
    [
        (0o600, 0o755, False),
        (0o640, 0o755, False),
        (0o644, 0o755, True),
        (0o644, 0o700, False),
        (0o644, 0o750, False),
    ],
)
def test_others_may_read_what_every_mode_on_its_way_lets_them(
    shown: Path, mode: int, above: int, is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file = shown / "it's here.toml"
    file.touch(mode=0o600)
    file.chmod(mode)
    shown.chmod(above)

    assert may_be_read_by_others(file) == is_open
    with caplog.at_level(logging.WARNING):
        warn_if_others_may_read(file, "a password")

    told = [record.getMessage() for record in caplog.records]
    assert len(told) == is_open
    assert all("holds a password" in each and "chmod 600 '/" in each for each in told)


def test_what_is_not_there_is_read_by_nobody(tmp_path: Path) -> None:
    assert not may_be_read_by_others(tmp_path / "absent")


@pytest.mark.parametrize(
    ("options", "is_secret"),
    [
        ({}, False),
        ({"use_ssl": "true", "keyfile": "/etc/key.pem", "acl": "creator"}, False),
        ({"auth_data": "digest:ann:x"}, True),
        ({"keyfile_password": "x"}, True),
        ({"sasl_password": "x"}, True),
        ({"endpoint_url": "http://s3:9000", "anon": False}, False),
        ({"endpoint_url": "http://ann:x@s3:9000"}, True),
        ({"key": "x"}, True),
        ({"secret": "x"}, True),
        ({"account_key": "x"}, True),
        ({"connection_string": "x"}, True),
        ({"sas_token": "x"}, True),
        ({"client_kwargs": {"aws_secret_access_key": "x"}}, True),
        ({"client_kwargs": {"region_name": "eu"}}, False),
        ({"client_kwargs": '{"aws_secret_access_key": "x"}'}, True),
        ({"client_kwargs": '{"region_name": "eu"}'}, False),
        ({"sas": "x"}, True),
        ({"AWS_SECRET_ACCESS_KEY": "x"}, True),
        ({"connectionString": "x"}, True),
        ({"api-key": "x"}, True),
        ({"passphrase": "x"}, True),
        ({"headers": {"Cookie": "x"}}, True),
        ({"acl": "digest:ann:x"}, True),
        ({"account": "AccountName=a;AccountKey=x"}, True),
        ({"account_url": "https://h/?sv=1&sig=x"}, True),
        ({"endpoint_url": "http://x@s3:9000"}, True),
        ({"endpoint_url": "http://ann:x/y@s3:9000"}, True),
        ({"proxy": "ann:x@h"}, True),
        ({"sasl_username": "ann", "sasl_principal": "zookeeper/h@REALM"}, False),
        ({"sasl_mechanism": "DIGEST-MD5"}, False),
    ],
)
def test_options_that_hold_a_secret_are_known_by_their_names(
    options: dict[str, object], is_secret: bool
) -> None:
    assert holds_a_secret(options) == is_secret
