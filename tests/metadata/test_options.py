"""Options of the ZooKeeper client as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.zookeeper.options import client_options


def test_texts_become_values(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    assert client_options(
        {"use_ssl": "true", "verify_certs": "False", "ca": str(ca), "auth_data": "digest:u:p:q"}
    ) == {
        "use_ssl": True,
        "verify_certs": False,
        "check_hostname": False,
        "ca": str(ca),
        "auth_data": [("digest", "u:p:q")],
    }


@pytest.mark.parametrize(
    ("options", "is_checked"),
    [
        ({}, True),
        ({"use_ssl": "true"}, True),
        ({"verify_certs": "true"}, True),
        ({"check_hostname": "false"}, False),
        ({"verify_certs": "false"}, False),
        ({"verify_certs": "false", "check_hostname": "false"}, False),
    ],
)
def test_a_certificate_has_to_be_of_its_host_unless_told_otherwise(
    options: dict[str, str], is_checked: bool
) -> None:
    assert client_options(options)["check_hostname"] == is_checked


def test_the_host_of_a_certificate_that_is_not_verified_cannot_be_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="leave one of them out"):
        client_options({"verify_certs": "false", "check_hostname": "true"})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("use_tls", "true", "did you mean 'use_ssl'"),
        ("zzz", "1", "known are"),
        ("use_ssl", "yes", "neither true nor false"),
        ("auth_data", "secret", "scheme:credential"),
        ("auth_data", "sasl:ann:secret", "SASL is not supported"),
        ("acl", "mine", "neither open"),
        ("ca", "absent.pem", "absent.pem cannot be read: No such file"),
        ("keyfile", "/", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named_without_its_value(name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        client_options({name: text})

    assert name in str(caught.value)
    assert "secret" not in str(caught.value)
