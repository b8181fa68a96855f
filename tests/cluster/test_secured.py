"""A cluster behind TLS whose nodes only its creator may read: every command and agent gets in."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.cluster_options import CONF_VARIABLE
from spark_bookkeeper.cluster import zookeeper
from spark_bookkeeper.cluster.zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.config import ClientConfig, load_conf
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import MetadataError, MetadataUnavailableError
from spark_bookkeeper.runtime.runtime import ThreadRuntime

pytestmark = pytest.mark.integration

BOOKIE = "127.0.0.1:3181"


@dataclass(frozen=True)
class Secured:
    """A ZooKeeper with one port for everybody and one for TLS."""

    plain: str
    secure: str
    certificate: Path

    def uri(self, name: str) -> str:
        return f"zk://{self.secure}/{name}"


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zookeeper, "_SETTINGS", zookeeper._SETTINGS + settings)
        patch.setattr(zookeeper, "_JARS", (*zookeeper._JARS, "netty-*.jar"))
        with EmbeddedZooKeeper(directory / "zookeeper") as running:
            yield Secured(running.address, f"127.0.0.1:{port}", certificate)


@pytest.fixture
def conf(server: Secured, tmp_path: Path) -> Path:
    """What a user of this cluster keeps in a file that others cannot read."""
    path = tmp_path / "ann.toml"
    path.write_text(
        f"[zk]\nuse_ssl = true\nca = '{server.certificate}'\n"
        "acl = 'creator'\nauth_data = 'digest:ann:secret'\n",
        encoding="utf-8",
    )
    return path


@pytest.mark.full
def test_an_agent_and_every_command_reach_a_cluster_behind_tls_and_a_password(
    server: Secured,
    conf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "bookie"
    root.mkdir()
    uri = server.uri("commands")
    bookie = ["--bookie-id", BOOKIE, "--root", str(root)]
    call = ["--metadata-uri", uri]
    monkeypatch.setenv(CONF_VARIABLE, str(conf))

    assert run([*call, "cluster", "init"]) == 0
    assert run([*call, "bookie", "format", *bookie, "--yes"]) == 0
    assert run([*call, "bookie", "verify", str(root)]) == 0
    assert run([*call, "bookie", "cookie", "delete", BOOKIE, "--yes"]) == 0
    assert run([*call, "bookie", "cookie", "create", *bookie, "--yes"]) == 0
    agent = subprocess.Popen(
        [sys.executable, "-m", "spark_bookkeeper", *call, "bookie", "start", *bookie],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert agent.stderr is not None
        said = next((line for line in agent.stderr if "serves" in line), None)
        assert said is not None, "the agent ended"
        capsys.readouterr()
        assert run([*call, "--json", "bookie", "list"]) == 0
        (seen,) = json.loads(capsys.readouterr().out)["bookies"]
        assert (seen["bookie_id"], seen["state"]) == (BOOKIE, "writable")
    finally:
        agent.send_signal(signal.SIGINT)
        agent.communicate(timeout=60)
    assert agent.returncode == 0


@pytest.mark.parametrize("verb", ["start", "format"])
def test_who_lacks_the_password_is_refused_before_anything_is_done(
    server: Secured,
    conf: Path,
    tmp_path: Path,
    verb: str,
    capsys: pytest.CaptureFixture[str],
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
