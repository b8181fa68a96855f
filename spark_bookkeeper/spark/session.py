"""A Spark session set up for this library, or the active one.

Nothing of Spark is imported before a session is needed: bytes are written and read without it.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import subprocess
import sys
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_bookkeeper.errors import InvalidArgumentError, MissingRequirementError
from spark_bookkeeper.local_cluster.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

_LOOPBACK: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_FEW_CORES: Final = {
    # Delta starts 50 tasks for every read of a table's log.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Delta's VACUUM starts 10,000 tasks for a table's directories: a minute on two cores.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}

_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def spark_session(
    master: str | None = None, delta: bool = False, **conf: str | int | float | bool
) -> SparkSession:
    """Return the active Spark session, or a new one that suits this library.

    A new session runs this environment's Python in its tasks, logs only warnings and errors, has a
    web page only if the settings enable it, and in local mode listens on the loopback address only.
    On a machine without Java the extra ``local`` provides one.

    Args:
        master: Spark's master; ``None`` takes ``spark.master`` of the environment (``spark-submit``
            sets it), else ``local[*]``. Ignored when a session is active.
        delta: also set up Delta Lake, by fetching its jars as ``delta-spark`` does.
        conf: Spark settings, which override ours. Write ``**{"spark.executor.memory": "1g"}``;
            ``spark_executor_memory="1g"`` means the same.

    Raises:
        InvalidArgumentError: a setting is not one of Spark's, or ``delta=True`` and the active
            session was made without Delta (it cannot be added to a running one).
        MissingRequirementError: no Java, or no jars of Delta. No session was made.
    """
    from pyspark.sql import SparkSession

    settings = {_setting_name(name): _setting_value(value) for name, value in conf.items()}
    active = SparkSession.getActiveSession()
    if active is not None:
        if delta and "delta" not in (active.conf.get("spark.sql.extensions", "") or "").lower():
            raise InvalidArgumentError(
                "delta=True, but the active Spark session was made without Delta, which cannot be "
                "added to a running session; stop it (spark.stop()) and ask again, or make it with "
                + ", ".join(f"{name}={value}" for name, value in _DELTA.items())
            )
        return active
    builder = SparkSession.builder
    if master is not None and master.startswith("sc://"):
        builder = builder.remote(master)
    elif not _is_placed(os.environ):
        use_java()
        # This environment's Python has this library; by default Spark takes the first one on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        settings = session_settings(master, settings, _has_defaults_file(os.environ))
    elif master is not None:
        settings = {"spark.master": master, **settings}
    settings.setdefault("spark.app.name", "spark_bookkeeper")
    if delta:
        settings = {**_DELTA, **settings}
    for name, value in settings.items():
        builder = builder.config(name, value)
    if delta and "delta" not in settings.get("spark.jars", "").lower():
        builder = _with_delta_jars(builder, settings)
    try:
        with _no_stacks_of_interrupts(), _with_an_address(settings.get("spark.master", "")):
            return builder.getOrCreate()
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        # pyspark reports only that its JVM ended; Ivy wrote the reason to stderr.
        if delta and type(error).__name__ == "PySparkRuntimeError":
            raise MissingRequirementError(_DELTA_HELP) from error
        raise
    except KeyboardInterrupt as interrupt:
        _end_starting_jvm(interrupt)
        raise


def check_session(spark: object) -> None:
    """Raise ``InvalidArgumentError`` unless it is a Spark session (classic or Connect) or None."""
    # By name, so that neither pyspark nor its Connect client is imported.
    names = [(cls.__name__, cls.__module__) for cls in type(spark).__mro__]
    if spark is not None and not any(
        name == "SparkSession" and module.startswith("pyspark.sql.") for name, module in names
    ):
        raise InvalidArgumentError(
            f"spark={spark!r} is not a SparkSession; give one, as sbk.spark_session() makes it, or "
            "leave it out: then one is started when it is needed"
        )


@contextmanager
def _with_an_address(master: str) -> Iterator[None]:
    """Let a local Spark start where the machine's own name has no address.

    Spark looks the name up first, even if its settings name an address to listen on.
    """
    named = {"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"} & os.environ.keys()
    if named or not master.startswith("local"):
        yield
        return
    os.environ["SPARK_LOCAL_IP"] = _LOOPBACK["spark.driver.host"]
    try:
        yield
    finally:
        os.environ.pop("SPARK_LOCAL_IP", None)


@contextmanager
def _no_stacks_of_interrupts() -> Iterator[None]:
    """Drop py4j's log records of an interrupt's stack; the interrupt itself still propagates."""

    def is_told(record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], KeyboardInterrupt)

    root = logging.getLogger()  # the logger that py4j uses for this
    root.addFilter(is_told)
    try:
        yield
    finally:
        root.removeFilter(is_told)


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether the error arose in py4j while it cleaned up after an interrupt."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _end_starting_jvm(interrupt: KeyboardInterrupt) -> None:
    """End the JVM that pyspark was waiting for, which ignores Ctrl-C.

    Otherwise it would go on starting, find that its parent has gone, and print a stack trace long
    after our own process has ended. Only pyspark's waiting function has a reference to it.
    """
    for frame, _ in traceback.walk_tb(interrupt.__traceback__):
        process = frame.f_locals.get("proc")
        if frame.f_code.co_name == "launch_gateway" and isinstance(process, subprocess.Popen):
            process.kill()
            process.wait()


def session_settings(
    master: str | None, asked: Mapping[str, str], has_defaults_file: bool = False
) -> dict[str, str]:
    """Return the settings of a new session that this process places: ours, overridden by ``asked``.

    A ``spark-defaults.conf`` decides the master, unless ``asked`` or ``master`` does.
    """
    where = asked.get("spark.master", master)
    if where is None and not has_defaults_file:
        where = "local[*]"
    ours = dict(_QUIET)
    if where is not None:
        ours["spark.master"] = where
        if where.startswith("local"):
            ours |= _LOOPBACK | _FEW_CORES
    conf = conf_directory()
    if conf is not None:
        log = (conf / "log4j2.properties").as_uri()
        ours["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log}"
    return {**ours, **asked}


def _is_placed(environment: Mapping[str, str]) -> bool:
    """Whether ``spark-submit`` or Spark Connect already decided where and how Spark runs."""
    return "PYSPARK_GATEWAY_PORT" in environment or "SPARK_REMOTE" in environment


def _has_defaults_file(environment: Mapping[str, str]) -> bool:
    folders = [environment.get("SPARK_CONF_DIR", "")]
    if "SPARK_HOME" in environment:
        folders.append(os.path.join(environment["SPARK_HOME"], "conf"))
    return any(f and os.path.isfile(os.path.join(f, "spark-defaults.conf")) for f in folders)


def conf_directory() -> Path | None:
    """Return this library's folder ``conf``; ``None`` where an installer left it out."""
    beside = Path(__file__).resolve().parents[2] / "conf"
    if (beside / "log4j2.properties").is_file():  # a source tree or an editable install
        return beside
    try:
        files = importlib.metadata.files("spark-bookkeeper") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.parts[-4:] == ("share", "spark_bookkeeper", "conf", "log4j2.properties"):
            path = Path(str(file.locate())).resolve()
            return path.parent if path.is_file() else None
    return None


_DELTA_HELP: Final = (
    "Spark did not start. With delta=True the usual cause is that the jars of Delta Lake could not "
    "be fetched from the Maven repository; the lines above say so. Check the network. If that is "
    "well, an earlier run may have left a .pom without its .jar below ~/.m2/repository/io/delta or "
    "~/.ivy2.5.2/cache/io.delta: delete that folder and try again, or name the jars "
    "(delta-spark, delta-storage and three of delta-kernel) in spark.jars"
)


def _with_delta_jars(
    builder: SparkSession.Builder, settings: Mapping[str, str]
) -> SparkSession.Builder:
    """Add Delta's jars. Takes complete files of an earlier fetch: Ivy is slow and logs 70 lines."""
    import pyspark

    try:
        from delta.pip_utils import configure_spark_with_delta_pip
    except ImportError as error:
        raise MissingRequirementError(
            "delta=True needs the package delta-spark: pip install delta-spark"
        ) from error
    packages, mine = (settings.get(f"spark.jars{x}", "").split(",") for x in (".packages", ""))
    extra = [package.strip() for package in packages if package.strip()]
    home = os.path.expanduser(settings.get("spark.jars.ivy", "~/.ivy2.5.2"))
    spark, delta = pyspark.__version__.split("."), importlib.metadata.version("delta-spark")
    kernel = [f"kernel-{part}" for part in ("api", "defaults", "unitycatalog")]
    names = (f"spark_{spark[0]}.{spark[1]}_2.13", "storage", *kernel)
    jars = [f"{home}/jars/io.delta_delta-{name}-{delta}.jar" for name in names]
    # This setting would replace jars that spark-submit or a file of defaults names.
    others = "PYSPARK_SUBMIT_ARGS" in os.environ or _has_defaults_file(os.environ)
    if not (extra or others or _is_placed(os.environ)) and all(map(zipfile.is_zipfile, jars)):
        return builder.config("spark.jars", ",".join(filter(None, [*mine, *jars])))
    with_jars: SparkSession.Builder = configure_spark_with_delta_pip(builder, extra_packages=extra)
    return with_jars


def _setting_name(name: str) -> str:
    dotted = name if "." in name else name.replace("_", ".")
    if not dotted.startswith("spark."):
        raise InvalidArgumentError(
            f"{name!r} is not a Spark setting: names begin with 'spark.', for example "
            "**{'spark.executor.memory': '1g'}"
        )
    return dotted


def _setting_value(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
