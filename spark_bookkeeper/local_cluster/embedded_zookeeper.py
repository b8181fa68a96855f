"""A real ZooKeeper on loopback, from the jars of pyspark, which ends with the process that made it.

``EmbeddedZooKeeper`` is for notebooks, tests, the demo and the local cluster: one server, one
directory. It is an ordinary ZooKeeper that syncs its log, so a directory can be stopped, killed and
started again with everything in it. Production clusters use an ensemble of their own.

The server never outlives its maker: it runs under ``watchdog.py``. Only one server at a time runs
on a directory: the server process itself holds a lock on it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from spark_bookkeeper.errors import MetadataUnavailableError, MissingRequirementError
from spark_bookkeeper.local_cluster import watchdog
from spark_bookkeeper.local_cluster.java import java_home
from spark_bookkeeper.local_cluster.processes import birth_of

_JARS = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
)

_SETTINGS = """\
tickTime=500
maxSessionTimeout=60000
initLimit=10
syncLimit=5
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
standaloneEnabled=true
4lw.commands.whitelist=srvr,ruok,isro,mntr,conf
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""

_LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.file.ref=file
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName={log}
appender.file.filePattern={log}.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %-5p %c{{1}} - %m%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=4MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=2
"""

_JVM_OPTIONS: tuple[str, ...] = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",  # else a killed Java leaves a file in the temporary directory
    "-Dlog4j2.disableJmx=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.extendedTypesEnabled=true",
    "-Dzookeeper.preAllocSize=4096",  # KiB allocated for each log file, instead of 64 MiB
)

_PORTS = range(21_000, 32_000)
"""Below the ports that operating systems give to outgoing connections: no client can take it."""

_ATTEMPTS = 5
_SERVING_SECONDS = 60.0
"""Far more than the usual half second: a loaded machine is slow. A broken server ends at once."""

_ANSWER_SECONDS = (0.05, 2.0)
"""The time-out of the first request to a starting server, and of the last. A request that comes
between the opening of the port and the start of the server is never answered."""

_STOPPING_SECONDS = 10.0
"""Far more than a killed process takes to end."""

_LOCK_SECONDS = 10.0
"""The server of a maker that was just killed needs a moment to end."""


class EmbeddedZooKeeper:
    """One ZooKeeper server on 127.0.0.1. Call ``start``; ``stop`` is idempotent.

    Args:
        directory: holds everything (data, settings, log); made if missing.
        port: the port to serve on if it is free, else another one; ``None`` picks one.
    """

    def __init__(self, directory: str | os.PathLike[str], port: int | None = None) -> None:
        self.directory = Path(directory).absolute()
        self._port = port
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._maker = os.getpid()
        self._changing = threading.RLock()

    def __repr__(self) -> str:
        where = self.address if self._pid is not None else "not running"
        return f"EmbeddedZooKeeper({str(self.directory)!r}, {where})"

    def __enter__(self) -> EmbeddedZooKeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int | None:
        """The current or last port of the server; ``None`` before the first start."""
        return self._port

    @property
    def address(self) -> str:
        """``127.0.0.1:port``. Raises ``MetadataUnavailableError`` before the first start."""
        if self._port is None:
            raise MetadataUnavailableError("the embedded ZooKeeper was not started yet")
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The process id of the server; ``None`` while it does not run."""
        return self._pid if self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether the server process runs."""
        return self._watchdog is not None and self._watchdog.poll() is None

    @property
    def has_died(self) -> bool:
        """Whether the server process ended without ``stop``."""
        process = self._watchdog
        return process is not None and process.poll() is not None

    @property
    def log_path(self) -> Path:
        """The file to which the server writes its warnings."""
        return self.directory / "zookeeper.log"

    def start(self) -> None:
        """Start the server and return when it serves, after about half a second.

        Raises:
            MissingRequirementError: no Java, no jars, or an operating system without locks.
            MetadataUnavailableError: another process runs a server on this directory, or the
                server does not start; the last lines of its log are in the text.
        """
        with self._changing:
            if self.is_running:
                return
            self.stop()
            self._maker = os.getpid()
            command = [str(java_home() / "bin" / "java"), *_JVM_OPTIONS]
            classpath = _classpath()
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # holds passwords
            lock = _lock(self.directory / "lock")
            try:
                for _ in range(_ATTEMPTS):
                    port = self._port if self._port and _is_free(self._port) else _free_port()
                    if self._attempt(command, classpath, port, lock):
                        return
                    if _is_free(port):
                        break  # the port is free, so the cause is not another process that took it
                    self._port = None
            except BaseException:
                self.stop()
                raise
            finally:
                os.close(lock)  # the server process has its own
            raise MetadataUnavailableError(
                f"the embedded ZooKeeper in {self.directory} did not start. "
                f"Its log {self.log_path} ends:\n{self._last_lines()}",
                nothing_changed=True,
            )

    def stop(self) -> None:
        """Stop the server and wait until it is gone; do nothing if it does not run."""
        with self._changing:
            process, self._watchdog, self._pid = self._watchdog, None, None
            if process is None or self._maker != os.getpid():
                return  # a forked child must not stop its parent's server
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(_STOPPING_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
            finally:
                process.stdout.close()

    def _attempt(self, command: list[str], classpath: str, port: int, lock: int) -> bool:
        """Start the server on ``port``. Return whether it serves there."""
        data = self.directory / "data"
        settings = self.directory / "zoo.cfg"
        settings.write_text(_SETTINGS.format(data=_property(str(data)), port=port))
        logging = self.directory / "log4j2.properties"
        logging.write_text(_LOGGING.format(log=_property(str(self.log_path))))
        with open(self.directory / "console.log", "ab") as console:
            process = subprocess.Popen(
                [
                    *[sys.executable, "-I", "-S", watchdog.__file__],
                    *[*command, f"-Dlog4j2.configurationFile={logging.as_uri()}"],
                    *["-cp", classpath, "org.apache.zookeeper.server.quorum.QuorumPeerMain"],
                    str(settings),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                pass_fds=[lock],
                start_new_session=True,  # Ctrl-C in a terminal is for the maker only
                cwd=self.directory,
                env={**os.environ, "LC_ALL": "C.UTF-8"},  # Java encodes file names by the locale
            )
        self._watchdog = process
        assert process.stdout is not None
        started = process.stdout.readline()
        deadline = time.monotonic() + _SERVING_SECONDS
        patience, most = _ANSWER_SECONDS
        while started and process.poll() is None and time.monotonic() < deadline:
            asked = time.monotonic()
            if _is_serving(port, data, patience):
                self._port, self._pid = port, int(started)
                return True
            if time.monotonic() - asked >= patience:
                patience = min(2 * patience, most)  # or the machine is busy
            time.sleep(0.01)
        self.stop()
        return False

    def _last_lines(self, count: int = 15) -> str:
        lines: list[str] = []
        for path in (self.directory / "console.log", self.log_path):
            if path.exists():
                lines += path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
        return "\n".join(f"  {line}" for line in lines[-count:]) or "  (nothing was logged)"


def ask(port: int, word: str, timeout_seconds: float = 2.0) -> str:
    """Return the answer to one of ZooKeeper's four-letter words; '' if there is none."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_seconds) as connection:
            connection.sendall(word.encode())
            pieces = []
            while piece := connection.recv(65536):
                pieces.append(piece)
    except OSError:
        return ""
    return b"".join(pieces).decode(errors="replace")


def _is_serving(port: int, data: Path, timeout_seconds: float = 2.0) -> bool:
    """Whether a server serves on ``port`` and is this one.

    ``ruok`` answers "imok" before the server serves, hence ``srvr``. Another server may have just
    taken the port and would answer as well, hence ``conf``.
    """
    if "Mode:" not in ask(port, "srvr", timeout_seconds):
        return False
    found = re.search(
        r"^dataDir=(.*?)/version-2\s*$", ask(port, "conf", timeout_seconds), re.MULTILINE
    )
    return found is not None and _shape(found.group(1)) == _shape(str(data))


def _shape(path: str) -> str:
    """Return a path with ``?`` in place of text that a wrong character set may change."""
    return re.sub(r"[^\x20-\x3e\x40-\x7e]+|\?+", "?", path)


def _property(value: str) -> str:
    """Return ``value`` as a Java properties file writes it."""
    return "".join(
        "\\\\"
        if character == "\\"
        else character
        if character.isascii()
        else "".join(
            f"\\u{unit:04x}" for unit in memoryview(character.encode("utf-16-le")).cast("H")
        )
        for character in value
    )


def _classpath() -> str:
    """Return the classpath: the few jars that a server with file logging needs."""
    places = []
    package = importlib.util.find_spec("pyspark")
    if package is not None and package.origin is not None:
        places.append(Path(package.origin).parent / "jars")
    if os.environ.get("SPARK_HOME"):
        places.append(Path(os.environ["SPARK_HOME"]) / "jars")
    for place in places:
        jars = [sorted(place.glob(pattern)) for pattern in _JARS]
        if all(jars):
            return os.pathsep.join(str(jar) for found in jars for jar in found)
    raise MissingRequirementError(
        "ZooKeeper's jars were not found where pyspark keeps its own "
        f"({', '.join(map(str, places)) or 'pyspark is not installed'}); "
        "`pip install pyspark` brings them"
    )


def _free_port() -> int:
    while True:
        port = secrets.choice(_PORTS)
        if _is_free(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _lock(path: Path) -> int:
    """Return a descriptor that locks a directory, also in a process that inherits it."""
    try:
        import fcntl
    except ImportError as cause:
        raise MissingRequirementError(
            "an embedded ZooKeeper needs Linux or macOS; on Windows use the Linux subsystem, or "
            "connect to a ZooKeeper that runs elsewhere"
        ) from cause
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as cause:
                holder = _holder(descriptor)
                if holder is None and time.monotonic() < deadline:
                    time.sleep(0.02)  # its maker is gone, so the server is about to end
                    continue
                raise MetadataUnavailableError(
                    f"another process ({holder or 'not known'}) runs a ZooKeeper in {path.parent}; "
                    "connect to that one, or stop it first. Nothing was changed",
                    nothing_changed=True,
                ) from cause
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {birth_of(os.getpid())}".encode(), 0)
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _holder(descriptor: int) -> str | None:
    """Return the id of the process that made the locking server; ``None`` if that is gone."""
    pid, _, birth = os.pread(descriptor, 4096, 0).decode(errors="replace").partition(" ")
    return pid if pid.isdecimal() and birth and birth_of(int(pid)) == birth else None
