"""Drivers of Spark as processes of their own, which are killed with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Drive = Callable[..., "subprocess.Popen[str]"]
"""Start a script with arguments."""


@contextmanager
def drivers(python_path: str, directory: Path) -> Iterator[Drive]:
    """Each in a process group of its own; all of them are killed at the end.

    Args:
        directory: has their ``stderr`` afterwards.
    """
    started = list[subprocess.Popen[str]]()

    def start(script: Path, *arguments: str) -> subprocess.Popen[str]:
        driver = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path, "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,
        )
        started.append(driver)
        return driver

    with (directory / "stderr").open("w") as errors:
        yield start
        for driver in started:
            kill(driver)


def kill(driver: subprocess.Popen[str]) -> None:
    """SIGKILL for the driver, its JVM and its Python workers."""
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    if driver.stdout is not None:
        driver.stdout.close()


def wait_until_started(driver: subprocess.Popen[str], errors: Path) -> None:
    """Until it has said so."""
    assert driver.stdout is not None
    assert driver.stdout.readline() == "started\n", errors.read_text()[-4000:]


def batches_begun(checkpoint: Path) -> int:
    """Spark notes the offsets of a batch when it begins."""
    return len(list((checkpoint / "offsets").glob("[0-9]*")))


def wait(driver: subprocess.Popen[str], seconds: float, errors: Path) -> None:
    """Let some time pass, in which it must not end."""
    with suppress(subprocess.TimeoutExpired):
        driver.wait(seconds)
        raise AssertionError(f"the query ended by itself: {errors.read_text()[-4000:]}")
