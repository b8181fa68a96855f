"""A standalone master of Spark and its workers, as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.agent.agents import free_port


@dataclass
class Standalone:
    url: str
    workers: list[int]
    """Process ids."""


@contextmanager
def standalone_master(directory: Path, python_path: str) -> Iterator[Standalone]:
    """A standalone master with two workers, each on a host of its own as far as Spark knows."""
    tool = Path(sys.executable).with_name("spark-class")
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "PYTHONPATH": python_path,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(directory / "work"),
        "SPARK_LOG_DIR": str(directory / "logs"),
        # A master that hears nothing of a worker for so long, a minute else, takes it for dead.
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.worker.timeout=3600",
    }
    master = [tool, "org.apache.spark.deploy.master.Master", "-h", "127.0.0.1"]
    commands = [([*master, "--port", port, "--webui-port", 0], "127.0.0.1")]
    for host in ("127.0.0.2", "127.0.0.3"):
        worker = [tool, "org.apache.spark.deploy.worker.Worker", "-h", host]
        commands.append(([*worker, "-c", 2, "-m", "900m", "--webui-port", 0, url], host))
    with (directory / "cluster").open("w") as output:
        processes = [
            subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment, "SPARK_LOCAL_IP": host},
                start_new_session=True,
            )
            for command, host in commands
        ]
        try:
            _wait_until_registered(processes, directory / "cluster")
            yield Standalone(url, [process.pid for process in processes[1:]])
        finally:
            for process in processes:
                for child in process_tree(process.pid):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
                process.wait()


def _wait_until_registered(processes: list[subprocess.Popen[bytes]], output: Path) -> None:
    """However long the workers need: a driver gives up a master that does not answer in a minute.

    Raises:
        RuntimeError: one of the processes has ended.
    """
    workers = len(processes) - 1
    while output.read_text().count("Successfully registered with master") < workers:
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                raise RuntimeError(f"it ended with {process.returncode}:\n{output.read_text()}")


def process_tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        return [*top.children(recursive=True), top]
    return []
