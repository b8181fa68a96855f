"""Options of the ZooKeeper client as people write them."""

from __future__ import annotations

import pytest

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.zookeeper.options import client_options


def test_texts_become_values() -> None:
    assert client_options(
        {"use_ssl": "true", "verify_certs": "False", "ca": "/ca.pem", "auth_data": "digest:u:p:q"}
    ) == {
        "use_ssl": True,
        "verify_certs": False,
        "ca": "/ca.pem",
        "auth_data": [("digest", "u:p:q")],
    }


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("use_tls", "true", "did you mean 'use_ssl'"),
        ("zzz", "1", "known are"),
        ("use_ssl", "yes", "neither true nor false"),
        ("auth_data", "secret", "scheme:credential"),
        ("acl", "mine", "neither open"),
    ],
)
def test_what_is_wrong_is_named_without_its_value(name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        client_options({name: text})

    assert name in str(caught.value)
    assert "secret" not in str(caught.value)
