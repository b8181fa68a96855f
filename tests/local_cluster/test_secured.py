"""A cluster behind TLS or SASL whose nodes only its creator reads: who may gets in."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.cluster_options import CONF_VARIABLE
from spark_bookkeeper.config import ClientConfig, load_conf
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import MetadataError, MetadataUnavailableError
from spark_bookkeeper.local_cluster import embedded_zookeeper as zookeeper
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.local_cluster.java import java_home
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.runtime.runtime import ThreadRuntime

pytestmark = pytest.mark.integration

BOOKIE = "127.0.0.1:3181"


class Guarded(EmbeddedZooKeeper):
    """One with settings and options of Java beyond the usual ones."""

    def __init__(self, directory: Path, settings: str, *options: str) -> None:
        super().__init__(directory)
        self._settings, self._options = settings, options

    def start(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(zookeeper, "_SETTINGS", zookeeper._SETTINGS + self._settings)
            patch.setattr(zookeeper, "_JVM_OPTIONS", (*zookeeper._JVM_OPTIONS, *self._options))
            patch.setattr(zookeeper, "_JARS", (*zookeeper._JARS, "netty-*.jar"))
            super().start()


@dataclass(frozen=True)
class Secured:
    """A ZooKeeper with one port for everybody and one for TLS."""

    plain: str
    address: str
    certificate: Path

    def uri(self, name: str) -> str:
        return f"zk://{self.address}/{name}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    make += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    both = directory / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    port = zookeeper._free_port()
    settings = f"""\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={port}
secureClientPortAddress=127.0.0.1
ssl.keyStore.location={both}
ssl.keyStore.type=PEM
ssl.trustStore.location={certificate}
ssl.trustStore.type=PEM
ssl.clientAuth=none
"""
    with Guarded(directory / "zookeeper", settings) as running:
        yield Secured(running.address, f"127.0.0.1:{port}", certificate)


@contextmanager
def agent(call: Sequence[str], bookie: Sequence[str]) -> Iterator[None]:
    """An agent that serves, and ends well."""
    started = subprocess.Popen(
        [sys.executable, "-m", "spark_bookkeeper", *call, "bookie", "start", *bookie],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stderr is not None
        said = next((line for line in started.stderr if "serves file:" in line), None)
        assert said is not None, "the agent ended"
        yield
    finally:
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=60)
    assert started.returncode == 0


def written(path: Path, options: dict[str, str]) -> Path:
    """What a user keeps in a file that others cannot read."""
    lines = ["[zk]\n", *(f"{name} = '{text}'\n" for name, text in options.items())]
    path.write_text("".join(lines), encoding="utf-8")
    path.chmod(0o600)
    return path


@pytest.fixture
def conf(server: Secured, tmp_path: Path) -> Path:
    tls = {"use_ssl": "true", "ca": str(server.certificate)}
    return written(
        tmp_path / "ann.toml", {**tls, "acl": "creator", "auth_data": "digest:ann:secret"}
    )


@pytest.mark.parametrize("verb", ["start", "format"])
def test_who_lacks_the_password_is_refused_before_anything_is_done(
    server: Secured, conf: Path, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "bookie"
    root.mkdir()
    uri = server.uri(f"refused-{verb}")
    assert run(["--metadata-uri", uri, "cluster", "init", "--conf", str(conf)]) == 0
    reached = ["--zk-option", "use_ssl=true", "--zk-option", f"ca={server.certificate}"]
    bookie = ["--bookie-id", BOOKIE, "--root", str(root)]

    code = run(["--metadata-uri", uri, "bookie", verb, *bookie, *reached])

    assert code != 0
    assert "refused" in capsys.readouterr().err
    assert list(root.iterdir()) == []


def test_an_option_that_is_left_out_is_noticed(server: Secured, conf: Path) -> None:
    uri = server.uri("options")
    options = load_conf(conf).zk_options
    runtime = ThreadRuntime()
    store = Connection(uri, zk_options=options).open_store(runtime)
    store.initialize_cluster()
    store.close()
    without_password = Connection(f"zk://{server.plain}/options")

    said = ""
    for patience_ms in (500, 5_000, 30_000):  # a busy machine may need more for one attempt
        without_tls = Connection(uri, ClientConfig(metadata_timeout_ms=patience_ms))
        with pytest.raises(MetadataUnavailableError) as caught:
            without_tls.open_store(runtime)
        said = caught.value.message
        if "ended it" in said:
            break
    assert "port is for TLS" in said
    stranger = without_password.open_store(runtime)
    with pytest.raises(MetadataError, match="refused"):
        stranger.instance_id()
    stranger.close()


ANN = {
    "sasl_mechanism": "DIGEST-MD5",
    "sasl_username": "ann",
    "sasl_password": 'se"cr,ét',
    "acl": "creator",
}
BOB = {**ANN, "sasl_username": "bob"}
DEMANDS_SASL = """\
authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider
requireClientAuthScheme=sasl
sessionRequireClientSASLAuth=true
"""


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper that serves only who proves itself by SASL."""
    directory = tmp_path_factory.mktemp("sasl")
    jaas = directory / "jaas.conf"
    password = ANN["sasl_password"].replace('"', '\\"')
    jaas.write_text(
        "Server { org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        f'user_ann="{password}" user_bob="{password}"; }};\n',
        encoding="utf-8",
    )
    login = f"-Djava.security.auth.login.config={jaas}"
    with Guarded(directory / "zookeeper", DEMANDS_SASL, login) as running:
        yield running


@pytest.fixture
def kerberos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper that serves only who has a ticket, which this process has."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    has_tools = all(map(shutil.which, ("krb5kdc", "kadmin.local", "kinit")))
    has_java = "jdk.security.jgss" in (java_home() / "release").read_text()
    if not (has_tools and has_java and find_spec("kerberos")):
        pytest.skip("krb5-kdc, krb5-admin-server, krb5-user, openjdk-17 or kerberos is missing")
    settings, jaas, keys = (tmp_path / name for name in ("krb5.conf", "jaas.conf", "keys"))
    kdc_at, server = f"127.0.0.1:{zookeeper._free_port()}", "zookeeper/127.0.0.1"
    settings.write_text(
        f"[libdefaults]\ndefault_realm = TEST\nrdns = false\n[kdcdefaults]\nkdc_listen = {kdc_at}\n"
        f"kdc_tcp_listen = {kdc_at}\n[realms]\nTEST = {{\nkdc = {kdc_at}\n"
        f"database_name = {tmp_path}/principals\nkey_stash_file = {tmp_path}/stash\n}}\n"
    )
    jaas.write_text(
        "Server { com.sun.security.auth.module.Krb5LoginModule required storeKey=true\n"
        f'useKeyTab=true keyTab="{keys}" principal="{server}"; }};\n'
    )
    monkeypatch.setenv("KRB5_CONFIG", str(settings))
    monkeypatch.setenv("KRB5_KDC_PROFILE", str(settings))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/ticket")

    def call(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)

    call("kdb5_util", "create", "-s", "-P", "secret")
    for principal in (server, "ann"):
        call("kadmin.local", "addprinc", "-randkey", principal)
        call("kadmin.local", "ktadd", "-k", str(keys), principal)
    with subprocess.Popen(["krb5kdc", "-n"], stderr=subprocess.PIPE) as kdc:
        try:
            assert kdc.stderr is not None
            assert b"starting" in kdc.stderr.readline()
            call("kinit", "-k", "-t", str(keys), "ann")
            login = f"-Djava.security.auth.login.config={jaas}"
            realm = f"-Djava.security.krb5.conf={settings}"
            with Guarded(tmp_path / "zookeeper", DEMANDS_SASL, login, realm) as running:
                yield running
        finally:
            kdc.terminate()


@pytest.mark.full
@pytest.mark.parametrize(
    ("demanding", "options"),
    [("server", {}), ("sasl", ANN), ("kerberos", {"sasl_mechanism": "GSSAPI", "acl": "creator"})],
    ids=["TLS", "DIGEST-MD5", "Kerberos"],
)
def test_an_agent_and_every_command_reach_a_cluster_that_demands_a_proof(
    demanding: str,
    options: dict[str, str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = request.getfixturevalue(demanding).address
    path, root, lines = (tmp_path / name for name in ("own.toml", "bookie", "lines"))
    conf = written(path, options) if options else request.getfixturevalue("conf")
    root.mkdir()
    lines.write_text("one\ntwo\n")
    bookie = ["--bookie-id", BOOKIE, "--root", str(root)]
    call = ["--metadata-uri", f"zk://{address}/commands"]
    monkeypatch.setenv(CONF_VARIABLE, str(conf))

    assert run([*call, "cluster", "init"]) == 0
    assert run([*call, "bookie", "format", *bookie, "--yes"]) == 0
    assert run([*call, "bookie", "verify", str(root)]) == 0
    assert run([*call, "bookie", "cookie", "delete", BOOKIE, "--yes"]) == 0
    assert run([*call, "bookie", "cookie", "create", *bookie, "--yes"]) == 0
    with agent(call, bookie):
        assert run([*call, "ledger", "append", str(lines), "-e", "1", "-w", "1", "-a", "1"]) == 0
        capsys.readouterr()
        assert run([*call, "ledger", "read", "0"]) == 0
        assert "two" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({**ANN, "sasl_password": "wrong"}, "refused who this is"),
        ({**ANN, "sasl_username": "eve"}, "refused who this is"),
        ({}, "give sasl_mechanism"),
    ],
)
def test_who_does_not_prove_itself_is_told_so_at_once(
    sasl: EmbeddedZooKeeper, options: dict[str, str], said: str
) -> None:
    connection = Connection(
        f"zk://{sasl.address}/refused",
        ClientConfig(metadata_timeout_ms=600_000),
        zk_options=options,
    )

    with pytest.raises(MetadataError, match=said) as caught:
        connection.open_store(ThreadRuntime()).require_cluster()

    assert not isinstance(caught.value, MetadataUnavailableError), "nobody waits for it"


def test_who_proved_itself_does_so_on_every_connection_and_is_who_made_its_nodes(
    sasl: EmbeddedZooKeeper,
) -> None:
    runtime = ThreadRuntime()
    uri = f"zk://{sasl.address}/nodes"
    ann = Connection(uri, zk_options=ANN).open_store(runtime)
    ann.initialize_cluster()
    bob = Connection(uri, zk_options=BOB).open_store(runtime)
    with pytest.raises(MetadataError, match="NoAuthError"):
        bob.instance_id()

    assert isinstance(ann, ZooKeeperStore)
    link = ann._zk._link
    session = link.session_id

    link.client._connection._socket.shutdown(socket.SHUT_RDWR)

    assert len(ann.instance_id()) == 36
    assert link.session_id == session
    ann.close()
    bob.close()
