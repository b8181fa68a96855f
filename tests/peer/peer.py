"""Builds and runs Apache BookKeeper's own classes, where Maven and Java are there.

The Maven project beside this file is built once for each of its versions, in a cache
directory: ``$SPARK_BOOKKEEPER_PEER_CACHE``, else ``spark-bookkeeper/peer`` in the user's cache.
The first build downloads some 90 MB.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).parent
_BUILD_SECONDS_MAX = 600
_RUN_SECONDS_MAX = 120


def missing() -> str | None:
    """Why the peer cannot be used on this machine; ``None`` when it can."""
    for program, package in (("mvn", "maven"), ("java", "a Java 17 runtime")):
        if shutil.which(program) is None:
            return f"{program} is not on the PATH: install {package} to run Apache BookKeeper"
    return None


@cache
def build() -> Path:
    """The directory with ``peer-1.jar`` and ``lib``; built when it is not there yet.

    Raises:
        RuntimeError: Maven failed; its last lines are in the message.
    """
    sources = sorted(p for p in _PROJECT.rglob("*") if p.suffix in {".java", ".xml"})
    digest = hashlib.sha256()
    for source in sources:
        digest.update(str(source.relative_to(_PROJECT)).encode() + source.read_bytes())
    home = Path(
        os.environ.get("SPARK_BOOKKEEPER_PEER_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        / "spark-bookkeeper"
        / "peer"
    )
    done = home / digest.hexdigest()[:16]
    if (done / "lib").is_dir():
        return done
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        for source in sources:
            target = Path(scratch) / source.relative_to(_PROJECT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        built = subprocess.run(
            ["mvn", "-q", "-B", "package"],
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS_MAX,
            check=False,
        )
        if built.returncode != 0:
            raise RuntimeError(f"mvn package failed:\n{(built.stdout + built.stderr)[-4000:]}")
        try:
            (Path(scratch) / "target").rename(done)
        except OSError:
            if not (done / "lib").is_dir():  # somebody else has not built the same meanwhile
                raise
    return done


def command(main_class: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    """How Java is called for a main class; ``options`` are those of Java."""
    home = build()
    classes = f"{home / 'peer-1.jar'}{os.pathsep}{home / 'lib'}/*"
    return ["java", *options, "-cp", classes, main_class, *arguments]


def run(
    main_class: str, *arguments: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a main class of the project to its end.

    Its first run keeps the classes that it has loaded, and the others load them from there (class
    data sharing, JEP 350), which takes half the time.

    Args:
        options: of Java.
    """
    kept = build() / f"{main_class}.jsa"
    new = kept.with_name(f"{os.getpid()}-{kept.name}")
    sharing = f"SharedArchiveFile={kept}" if kept.exists() else f"ArchiveClassesAtExit={new}"
    short_lived = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-XX:{sharing}")
    ended = subprocess.run(
        command(main_class, *arguments, options=(*short_lived, "-Xlog:disable", *options)),
        capture_output=True,
        text=True,
        timeout=_RUN_SECONDS_MAX,
        check=False,
    )
    if new.exists():
        new.rename(kept)
    return ended


def start(main_class: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start a main class that takes commands on stdin and answers on stdout, a line each.

    It ends when its stdin does, also when this process is killed.
    """
    return subprocess.Popen(
        command(main_class, *arguments, options=options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def judge(address: str, root: str) -> tuple[list[dict[str, Any]], str]:
    """What BookKeeper's classes see of a cluster's metadata, and what they complain of."""
    answer = run("MetadataJudge", address, root)
    assert (answer.returncode == 0) == (not answer.stderr), answer.stderr[-4000:]
    return [json.loads(line) for line in answer.stdout.splitlines()], answer.stderr
