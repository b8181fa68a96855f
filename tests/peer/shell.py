"""BookKeeper's own shell and its autorecovery daemon, for one cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

from spark_bookkeeper.metadata.uri import MetadataUri, parse_metadata_uri
from tests.peer import peer


class Shell:
    """Runs commands of ``BookieShell``, each in a Java of its own."""

    def __init__(self, uri: str | MetadataUri, directory: Path) -> None:
        parsed = parse_metadata_uri(str(uri))
        self.address, self.root = parsed.hosts, parsed.root
        self._conf = directory / "bookie.conf"
        self._conf.write_text(
            f"metadataServiceUri=zk+null://{self.address}{self.root}\n"
            "zkTimeout=30000\nallowLoopback=true\nadvertisedAddress=127.0.0.1\nbookiePort=3181\n"
            f"journalDirectories={directory}/journal\nledgerDirectories={directory}/ledgers\n"
            "httpServerEnabled=false\nauditorPeriodicBookieCheckInterval=0\n"
            "auditorPeriodicCheckInterval=0\n"
        )
        self._log = directory / "log4j2.xml"
        self._log.write_text(
            "<Configuration status='OFF'><Appenders><Console name='out' target='SYSTEM_OUT'>"
            "<PatternLayout pattern='%m%n'/></Console></Appenders><Loggers>"
            "<Logger name='org.apache.bookkeeper' level='INFO'/>"
            "<Root level='ERROR'><AppenderRef ref='out'/></Root></Loggers></Configuration>"
        )

    def says(self, *command: str) -> str:
        """What it says, in its log, of a command that it carries out."""
        is_done, said = self._run(*command)
        assert is_done, said[-4000:]
        return said

    def refuses(self, *command: str) -> str:
        """What it says of one that it does not."""
        is_done, said = self._run(*command)
        assert not is_done, said[-4000:]
        return said

    def _run(self, *command: str) -> tuple[bool, str]:
        main = "org.apache.bookkeeper.bookie.BookieShell"
        answer = peer.run(main, "-conf", str(self._conf), *command, options=self._options())
        return answer.returncode == 0, answer.stdout + answer.stderr

    def _options(self) -> tuple[str, ...]:
        return (f"-Dlog4j2.configurationFile={self._log}",)

    def start_autorecovery(self) -> subprocess.Popen[bytes]:
        """Its own daemon, auditor and worker."""
        main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
        return subprocess.Popen(
            peer.command(main, "--conf", str(self._conf), options=self._options()),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
