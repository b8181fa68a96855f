"""Options of the ZooKeeper client, from text that people write to values.

They come from ``zk.*`` options and configuration files, and go to kazoo's client under the same
names. Only options for connecting and authenticating to ZooKeeper are passed on; time-outs and
retries have their own settings.
"""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

from spark_bookkeeper.errors import InvalidArgumentError, MissingRequirementError


def _switch(text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise ValueError("it is neither true nor false")
    return text.strip().lower() == "true"


def _credentials(text: str) -> list[tuple[str, str]]:
    scheme, separator, credential = text.partition(":")
    if not separator or not scheme or not credential:
        raise ValueError("it is not of the form scheme:credential, like digest:user:password")
    if scheme == "sasl":
        raise ValueError("for SASL give sasl_mechanism, sasl_username and sasl_password instead")
    return [(scheme, credential)]


def _file(text: str) -> str:
    try:
        open(text, "rb").close()
    except OSError as error:
        raise ValueError(f"{text} cannot be read ({error.strerror}): name one that can") from None
    return text


def _certificates(text: str) -> str:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(_file(text))
    except ssl.SSLError:
        raise ValueError(
            f"{text} holds no certificate in PEM; `openssl x509 -in FILE` makes PEM of other "
            "forms, `keytool -exportcert -rfc` of Java's"
        ) from None
    return text


def _access(text: str) -> str:
    if text not in {"open", "creator"}:
        raise ValueError("it is neither open (everybody) nor creator (who made it, and no other)")
    return text


def _user(text: str) -> str:
    if not text.isascii():
        raise ValueError("it has other characters than ASCII, which DIGEST-MD5's package garbles")
    return text


_KNOWN: Final[dict[str, Callable[[str], Any]]] = {
    "acl": _access,
    "auth_data": _credentials,
    "ca": _certificates,
    "certfile": _certificates,
    "check_hostname": _switch,
    "keyfile": _file,
    "keyfile_password": str,
    "randomize_hosts": _switch,
    **dict.fromkeys(("sasl_mechanism", "sasl_principal", "sasl_service"), str),
    # RFC 2831 and Java encode the password so.
    "sasl_password": lambda text: text.encode("utf-8" if max(text + " ") > "\xff" else "latin-1"),
    "sasl_username": _user,
    "use_ssl": _switch,
    "verify_certs": _switch,
}
_OF_TLS: Final = ("ca", "certfile", "check_hostname", "keyfile", "keyfile_password", "verify_certs")


def client_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of these texts. With TLS the certificate must name the host, unless an
    option says otherwise; kazoo alone would accept any certificate of that authority.

    Raises:
        InvalidArgumentError: a name is unknown, a value is not valid, or a file cannot be read or
            used. Names of files and mechanisms are shown; other values may be secrets.
        MissingRequirementError: a package that SASL needs is not installed.
    """
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_KNOWN)}"
            raise InvalidArgumentError(f"ZooKeeper option {name!r} is not known; {hint}")
        try:
            values[name] = _KNOWN[name](text)
        except ValueError as error:
            raise InvalidArgumentError(f"ZooKeeper option {name!r}: {error}") from None
    if "use_ssl" not in values and (of_tls := [name for name in _OF_TLS if name in values]):
        raise InvalidArgumentError(
            f"ZooKeeper options {of_tls}: they are of TLS, and without use_ssl there is none; "
            "give use_ssl=true and the port for TLS, or use_ssl=false to connect in clear"
        )
    verify = values.get("verify_certs", True)
    if values.setdefault("check_hostname", verify) and not verify:
        raise InvalidArgumentError(
            "ZooKeeper option 'check_hostname': it is true where verify_certs is false, and a "
            "certificate that nobody verified says nothing of its host; leave one of them out"
        )
    _check_key(values)
    if sasl := {name: values.pop(name) for name in options if name.startswith("sasl_")}:
        values["sasl_options"] = _proof(sasl)
    return values


def _check_key(values: Mapping[str, Any]) -> None:
    """Load the key as each connection will, because there its fault looks like the server's."""
    certificate, key = values.get("certfile"), values.get("keyfile")
    if bool(certificate) != bool(key):
        raise InvalidArgumentError(
            "ZooKeeper options 'certfile' and 'keyfile': one without the other proves nothing; "
            "give both (the same file if it holds both), or none"
        )
    try:
        if certificate:  # with a password, or OpenSSL would prompt at the terminal
            password = values.get("keyfile_password", "")
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgumentError(
            f"ZooKeeper option 'keyfile': {key} cannot be used for {certificate} ({error}): it has "
            "to be in PEM, the certificate's own, long enough for OpenSSL, and opened by "
            "keyfile_password, which `openssl pkey -in FILE -noout` tries"
        ) from None


def _proof(sasl: dict[str, Any]) -> dict[str, Any]:
    mechanism, rest = sasl.get("sasl_mechanism", ""), sasl.keys() - {"sasl_mechanism"}
    is_kerberos = mechanism == "GSSAPI" and rest <= {"sasl_principal", "sasl_service"}
    is_digest = mechanism == "DIGEST-MD5" and rest == {"sasl_password", "sasl_username"}
    if not (is_kerberos or is_digest) or not all(sasl.values()):
        raise InvalidArgumentError(
            f"ZooKeeper option 'sasl_mechanism' is {mechanism!r}, beside {sorted(rest)}: "
            "give DIGEST-MD5 with sasl_username and sasl_password, or GSSAPI (Kerberos), if need "
            "be with sasl_principal and sasl_service; none may be empty"
        )
    if not find_spec("puresasl") or not (is_digest or find_spec("kerberos")):
        raise MissingRequirementError(
            f"ZooKeeper option 'sasl_mechanism': {mechanism} needs packages that are not here; "
            f"pip install 'spark-bookkeeper[{'kerberos' if is_kerberos else 'sasl'}]' brings them"
        )
    return {name.removeprefix("sasl_"): value for name, value in sasl.items()}
