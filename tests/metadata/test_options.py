"""Options of the ZooKeeper client as people write them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spark_bookkeeper.errors import InvalidArgumentError, MissingRequirementError
from spark_bookkeeper.metadata.zookeeper.options import client_options


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate, its key that has a password, and a text."""
    directory = tmp_path_factory.mktemp("pem")
    (directory / "text").write_text("secret")
    for bits, prefix in ((2048, ""), (512, "short_")):
        made = f"req -x509 -newkey rsa:{bits} -subj /CN=zk1 -passout pass:secret"
        made += f" -keyout {prefix}key -out {prefix}certificate"
        subprocess.run(["openssl", *made.split()], cwd=directory, check=True, capture_output=True)
    return directory


def test_texts_become_values(pem: Path) -> None:
    files = {"certfile": str(pem / "certificate"), "keyfile": str(pem / "key")}
    files |= {"ca": files["certfile"], "keyfile_password": "secret"}
    assert client_options(
        {"use_ssl": "true", "verify_certs": "False", "auth_data": "digest:u:p:q", **files}
    ) == {
        "use_ssl": True,
        "verify_certs": False,
        "check_hostname": False,
        "auth_data": [("digest", "u:p:q")],
        **files,
    }


@pytest.mark.parametrize(
    ("files", "password", "said"),
    [
        ("ca=text", "", "'ca': .*text holds no certificate in PEM"),
        ("certfile=key keyfile=key", "secret", "'certfile': .*key holds no certificate"),
        ("certfile=certificate", "", "give both"),
        ("keyfile=key", "secret", "give both"),
        ("certfile=certificate keyfile=text", "", "'keyfile': .*text cannot be used for .*cert"),
        ("certfile=certificate keyfile=key", "secret?", "opened by keyfile_password"),
        ("certfile=certificate keyfile=key", "", "opened by keyfile_password"),
        ("certfile=certificate keyfile=short_key", "secret", "key values mismatch"),
        ("certfile=short_certificate keyfile=short_key", "secret", "key too small"),
    ],
)
def test_files_of_tls_are_loaded_before_any_server_is_asked(
    pem: Path, files: str, password: str, said: str
) -> None:
    options = {name: str(pem / file) for name, file in (x.split("=") for x in files.split())}
    options["use_ssl"] = "true"
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        client_options({**options, **({"keyfile_password": password} if password else {})})

    assert "secret" not in str(caught.value)


def test_options_of_tls_alone_do_not_connect_in_clear_unless_told(pem: Path) -> None:
    options = {"ca": str(pem / "certificate"), "certfile": str(pem / "certificate")}
    options |= {"keyfile": str(pem / "key"), "keyfile_password": "secret"}
    options |= {"check_hostname": "true", "verify_certs": "true"}
    for name, text in options.items():
        with pytest.raises(InvalidArgumentError, match=rf"\['{name}'\].*use_ssl=true"):
            client_options({name: text})

    assert not client_options({**options, "use_ssl": "false"})["use_ssl"]


def test_a_certificate_has_to_be_of_its_host_unless_told_otherwise() -> None:
    tls = {"use_ssl": "true"}
    unverified, unchecked = {**tls, "verify_certs": "false"}, {**tls, "check_hostname": "false"}
    for options in ({}, tls, {**tls, "verify_certs": "true"}):
        assert client_options(options)["check_hostname"]
    for options in (unchecked, unverified, {**unverified, **unchecked}):
        assert not client_options(options)["check_hostname"]
    with pytest.raises(InvalidArgumentError, match="leave one of them out"):
        client_options({**unverified, "check_hostname": "true"})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("use_tls", "true", "did you mean 'use_ssl'"),
        ("zzz", "1", "known are"),
        ("use_ssl", "yes", "neither true nor false"),
        ("auth_data", "secret", "scheme:credential"),
        ("auth_data", "sasl:ann:secret", "give sasl_mechanism, sasl_username"),
        ("sasl_mechanism", "PLAIN", "'PLAIN', beside"),
        ("sasl_mechanism", "DIGEST-MD5", "sasl_username and sasl_password"),
        ("sasl_username", "zo\u00e9secret", "other characters than ASCII"),
        ("sasl_password", "secret", "'', beside \\['sasl_password"),
        ("acl", "mine", "neither open"),
        ("ca", "absent.pem", "absent.pem cannot be read \\(No such file"),
        ("keyfile", "/", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named_without_its_value(name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        client_options({name: text})

    assert name in str(caught.value)
    assert "secret" not in str(caught.value)


ANN = {"sasl_mechanism": "DIGEST-MD5", "sasl_username": "ann", "sasl_password": "secret"}
KERBEROS = {"sasl_mechanism": "GSSAPI"}


@pytest.mark.parametrize(
    "options",
    [
        ANN,
        KERBEROS,
        {**KERBEROS, "sasl_service": "zk"},
        {**KERBEROS, "sasl_service": "zk", "sasl_principal": "ann@EXAMPLE.COM"},
    ],
)
def test_options_of_sasl_become_those_of_its_package(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_bookkeeper.metadata.zookeeper.options.find_spec", bool)

    assert client_options({**options, "use_ssl": "true"}) == {
        "use_ssl": True,
        "check_hostname": True,
        "sasl_options": {
            name.removeprefix("sasl_"): b"secret" if name == "sasl_password" else text
            for name, text in options.items()
        },
    }


@pytest.mark.parametrize("text", ["s\u00e9cret", "\u20ac"])
def test_a_password_of_sasl_has_the_bytes_that_java_gives_it(text: str) -> None:
    found = client_options({**ANN, "sasl_password": text})["sasl_options"]

    assert found["password"] == text.encode("utf-8" if text == "\u20ac" else "latin-1")


@pytest.mark.parametrize(
    "options",
    [
        {**ANN, "sasl_service": "zk"},
        {**ANN, "sasl_password": ""},
        {**KERBEROS, "sasl_password": "secret"},
        {**KERBEROS, "sasl_service": ""},
    ],
)
def test_what_its_mechanism_does_not_take_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="give DIGEST-MD5 with") as caught:
        client_options(options)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "missing", "extra"),
    [
        (ANN, "puresasl", "sasl"),
        (KERBEROS, "puresasl", "kerberos"),
        (KERBEROS, "kerberos", "kerberos"),
    ],
)
def test_a_package_that_sasl_needs_is_named_with_what_brings_it(
    options: dict[str, str], missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "spark_bookkeeper.metadata.zookeeper.options.find_spec", lambda name: name != missing
    )

    with pytest.raises(MissingRequirementError, match=rf"spark-bookkeeper\[{extra}\]"):
        client_options(options)
