"""A session that suits this library, or the active one."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import psutil
import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.spark import session
from spark_bookkeeper.spark.session import session_settings, spark_session
from tests.support.interrupts import Noise, interrupt_until_it_ends


def test_a_local_session_listens_on_the_loopback_address_only() -> None:
    settings = session_settings("local[2]", {})

    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert "log4j2.properties" in settings["spark.driver.extraJavaOptions"]


def test_a_session_on_a_cluster_keeps_the_address_that_executors_can_reach() -> None:
    elsewhere = session_settings("spark://master:7077", {})
    assert "spark.driver.host" not in elsewhere
    assert "spark.databricks.delta.snapshotPartitions" not in elsewhere


def test_what_is_asked_for_wins() -> None:
    settings = session_settings(None, {"spark.master": "yarn", "spark.ui.enabled": "true"})

    assert settings["spark.master"] == "yarn"
    assert settings["spark.ui.enabled"] == "true"
    assert "spark.driver.host" not in settings


def test_a_defaults_file_decides_where_spark_runs() -> None:
    assert "spark.master" not in session_settings(None, {}, has_defaults_file=True)
    assert session_settings(None, {})["spark.master"] == "local[*]"


def test_a_name_that_is_no_setting_of_spark_is_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidArgumentError, match="'executor_memory' is not a Spark setting"):
        spark_session(executor_memory="1g")


DELTA = (
    "spark_{}.{}_2.13".format(*version("pyspark").split(".")),
    *("storage", "kernel-api", "kernel-defaults", "kernel-unitycatalog"),
)


def test_jars_of_delta_that_were_fetched_are_named_so_that_ivy_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jars").mkdir()
    jars = [tmp_path / f"jars/io.delta_delta-{n}-{version('delta-spark')}.jar" for n in DELTA]

    def named(**more: str) -> dict[str, str]:
        settings = {"spark.jars.ivy": str(tmp_path), "spark.jars": "mine.jar", **more}
        return dict(session._with_delta_jars(SparkSession.Builder(), settings)._options)

    for jar in jars:
        assert [*named()] == ["spark.jars.packages"], f"without {jar.name}"
        ZipFile(jar, "w").close()
    assert named() == {"spark.jars": ",".join(["mine.jar", *map(str, jars)])}

    assert "a:b:1" in named(**{"spark.jars.packages": "a:b:1"})["spark.jars.packages"]
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"):  # these may name other jars
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv(name, "--jars other.jar pyspark-shell")
            assert [*named()] == ["spark.jars.packages"]
    (tmp_path / "spark-defaults.conf").write_text("spark.jars other.jar", encoding="utf-8")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert [*named()] == ["spark.jars.packages"]
    monkeypatch.delenv("SPARK_CONF_DIR")
    jars[0].write_bytes(jars[-1].read_bytes()[:-9])  # half fetched
    assert [*named()] == ["spark.jars.packages"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_local_session_starts_where_the_machines_own_name_has_no_address(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n", encoding="utf-8")
    script = "import spark_bookkeeper as sbk; sbk.spark_session('local[1]').stop()"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_LOCAL")}
    environment["JAVA_TOOL_OPTIONS"] = f"-Djdk.net.hosts.file={hosts}"  # all names Java knows

    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("master", "given", "during"),
    [
        ("local[2]", {}, "127.0.0.1"),
        ("local[2]", {"SPARK_LOCAL_IP": "10.0.0.9"}, "10.0.0.9"),
        ("local[2]", {"SPARK_LOCAL_HOSTNAME": "here"}, None),
        ("spark://master:7077", {}, None),
    ],
)
def test_the_address_is_for_the_start_of_a_local_spark_and_never_against_the_users_word(
    monkeypatch: pytest.MonkeyPatch, master: str, given: dict[str, str], during: str | None
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.delenv("SPARK_LOCAL_HOSTNAME", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    with session._with_an_address(master):
        assert os.environ.get("SPARK_LOCAL_IP") == during

    assert os.environ.get("SPARK_LOCAL_IP") == given.get("SPARK_LOCAL_IP")


@pytest.mark.full
@pytest.mark.spark
def test_ctrl_c_while_spark_starts_leaves_no_jvm_behind() -> None:
    script = (  # it goes on, should Spark have started before anybody looks
        "import time; import spark_bookkeeper as sbk; sbk.spark_session('local[1]'); "
        "time.sleep(600)"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, which Ctrl-C reaches as a whole
    )
    jvms: list[psutil.Process] = []
    while not jvms and caller.poll() is None:
        time.sleep(0.05)
        children = psutil.Process(caller.pid).children()
        jvms = [child for child in children if is_spark(child)]
    assert jvms, "pyspark starts a JVM"

    noise = Noise(caller.stderr)
    interrupt_until_it_ends(caller, lambda: os.killpg(caller.pid, signal.SIGINT), noise)
    said = noise.whole()
    caller.communicate()

    assert "KeyboardInterrupt" in said
    assert "Exception in thread" not in said
    assert psutil.wait_procs(jvms, timeout=60)[1] == []


@pytest.mark.spark
def test_ctrl_c_that_py4j_turns_into_an_error_of_its_own_stays_what_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    def interrupted(_: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            logging.exception("KeyboardInterrupt while sending command.")
            raise Py4JError("Gateway must be connected to send cancel cmd.")  # noqa: B904

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", interrupted)

    with pytest.raises(KeyboardInterrupt):
        spark_session("local[1]")

    assert caplog.records == []


def is_spark(process: psutil.Process) -> bool:
    """Whether it is the JVM itself, and not the shell or the launcher before it."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    has_submit = "org.apache.spark.deploy.SparkSubmit" in words
    return has_submit and "org.apache.spark.launcher.Main" not in words and "bash" not in words[0]


def is_own_name_known() -> bool:
    """Whether this machine finds an address for the name that it has."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return False
    return True


@pytest.mark.full
@pytest.mark.spark
def test_a_session_is_quiet_runs_this_python_and_is_found_again() -> None:
    # In a process of its own: a session is global, and Delta must be refused on a running one.
    script = """
import sys
import spark_bookkeeper as sbk
spark = sbk.spark_session("local[1]", spark_sql_shuffle_partitions=3)
try:
    assert sbk.spark_session() is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.sparkContext.uiWebUrl is None
    frame = spark.range(4, numPartitions=2).mapInArrow(executables, "python string")
    assert {row.python for row in frame.collect()} == {sys.executable}
    try:
        sbk.spark_session(delta=True)
    except sbk.InvalidArgumentError as error:
        assert "made without Delta" in str(error)
    else:
        raise AssertionError("Delta was promised on a session that has none")
finally:
    spark.stop()
"""
    define = """
def executables(batches):
    import sys, pyarrow
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})
"""
    done = subprocess.run(
        [sys.executable, "-c", define + script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    if not is_own_name_known():
        return  # a machine of which log4j itself complains, before it is configured
    complaints = [
        line
        for line in done.stderr.splitlines()
        if line and "incubator" not in line and not line.startswith("Picked up ")
    ]
    assert complaints == []


def test_spark_does_not_change_the_format_of_a_tests_log(caplog: pytest.LogCaptureFixture) -> None:
    loud = PySparkLogger.getLogger("a_logger_of_spark")
    loud.addHandler(caplog.handler)
    loud.removeHandler(caplog.handler)

    logging.getLogger("spark_bookkeeper").warning("seen")

    assert "seen" in caplog.text
    assert "{" not in caplog.text
