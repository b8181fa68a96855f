"""Every refusal names a way that works: what it says is done as it stands, and leads there."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
import pytest
from _pytest.mark.structures import ParameterSet
from kazoo.client import KazooClient

import spark_bookkeeper
from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.cli.main import root as command_line
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.settings import METADATA_URI_VARIABLE
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import CookieMismatchError, NoClusterError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.metadata.store import MetadataStore, Registration
from spark_bookkeeper.metadata.uri import parse_metadata_uri
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.local import LocalStorage
from tests.cli.conftest import Call, is_integration
from tests.twins import twins
from tests.worlds import there

# Whatever a text names, there is


def command_named(words: list[str]) -> tuple[click.Command, list[str]]:
    """The verb that words of a command line name, and the rest of them."""
    command: click.Command = command_line
    context = click.Context(command_line)
    while words and isinstance(command, click.Group):
        child = command.get_command(context, words[0])
        if child is None:
            break
        command, words = child, words[1:]
    return command, words


def options_of(command: click.Command) -> set[str]:
    return {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def texts() -> Iterator[tuple[str, str]]:
    """Every text of the package with the file it is in; what is put in is shown as ``7``."""
    package = Path(spark_bookkeeper.__file__).parent
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "spark-bookkeeper" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "7" for v in node.values]
                yield path.name, "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, node.value


def test_every_command_that_a_text_names_is_one_and_has_the_options_that_it_names() -> None:
    named = 0
    for file, text in texts():
        for quoted in re.findall(r"`spark-bookkeeper ([^`]+)`|spark-bookkeeper ([^`\n]+)", text):
            is_quoted = bool(quoted[0])
            words = re.split(r"[;,)]? |[.;,)]*$", quoted[0] or quoted[1])
            if words[:1] == ["--metadata-uri"]:
                words = words[2:]
            command, rest = command_named([word for word in words if word])
            where = f"{file}: spark-bookkeeper {quoted}"
            if command is command_line and not is_quoted:
                continue  # a sentence about the project
            assert command is not command_line, where
            assert not (isinstance(command, click.Group) and rest and rest[0].islower()), where
            if isinstance(command, click.Group):
                continue
            options = {word for word in rest if word.startswith("--")}
            assert options <= options_of(command) | {"--help", "--verbose", "--json"}, where
            named += 1
    assert named > 60


def test_no_text_proposes_for_a_bookie_what_would_close_ledgers_of_living_writers() -> None:
    command = re.compile(r"bookie (recover|refill) 7\b(?! --skip-open-ledgers)")

    assert [(file, text) for file, text in texts() if command.search(text)] == []


def test_a_command_that_was_given_its_cluster_tells_of_commands_that_are(
    call_at: Callable[[str], Call],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Quoted, for a shell ends a command at a semicolon; where the environment has it, without."""
    uri = "zk+hierarchical://127.0.0.1:1;127.0.0.1:2/nowhere"

    def nothing(*_: object, **__: object) -> None:
        raise NoClusterError("no cluster is there")

    monkeypatch.setattr(Connection, "open_store", nothing)
    typed = call_at(uri)("doctor").out
    (tmp_path / "a b.toml").touch(0o600)
    conf = call_at(uri)("doctor", "--conf", tmp_path / "a b.toml").out
    options = "--zk-option=auth_data=digest:me:s3cret --storage-option endpoint_url=http://h?b"
    reached = call_at(uri)("doctor", *options.split())
    behind = run(["doctor", "--metadata-uri", uri, "--json"]), capsys.readouterr().out
    monkeypatch.setenv(METADATA_URI_VARIABLE, uri)
    unsaid = run(["doctor"]), capsys.readouterr().out

    assert f"spark-bookkeeper --metadata-uri '{uri}' cluster init\n" in typed
    assert f"SPARK_BOOKKEEPER_CONF='{tmp_path}/a b.toml' spark-bookkeeper --metadata-uri" in conf
    told = "--zk-option auth_data=... --storage-option 'endpoint_url=http://h?b'"
    assert f"'{uri}' cluster init {told}\n" in reached.out
    assert (behind[0], "cluster init" in behind[1]) == (2, True)
    assert (unsaid[0], "spark-bookkeeper cluster init\n" in unsaid[1]) == (2, True)


# Walking what is said


@dataclass
class Operator:
    """Somebody who has a cluster, types commands, and does what refusals say."""

    cluster: LocalCluster
    store: MetadataStore
    directory: Path
    capsys: pytest.CaptureFixture[str]
    bookie: BookieId
    """A name that nobody used before."""
    agents: list[BookieAgent]
    said: str = ""
    """What the last command printed."""

    @property
    def root(self) -> Path:
        """Where its storage is."""
        return self.directory / "storage"

    @property
    def name(self) -> list[object]:
        return ["--bookie-id", self.bookie, "--root", self.root]

    def call(self, *arguments: object) -> int:
        """Type a command; ``bookie start`` is ended as soon as its bookie is registered."""
        words = [str(argument) for argument in arguments]
        command, _ = command_named(words)
        words += [each for each in ("--yes", "--no-spark") if each in options_of(command)]
        ended = threading.Event()

        def end_it() -> None:
            while not ended.wait(0.02):
                bookie = words[words.index("--bookie-id") + 1]
                if any(r.bookie_id == bookie for r in self.store.registrations()):
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

        thread = threading.Thread(target=end_it)
        self.capsys.readouterr()
        if words[:2] == ["bookie", "start"]:
            thread.start()
        try:
            code = run(["--metadata-uri", self.cluster.metadata_uri, *words])
        finally:
            ended.set()
            if thread.ident is not None:
                thread.join()
        out, err = self.capsys.readouterr()
        given = f"--metadata-uri {shlex.quote(self.cluster.metadata_uri)} "
        self.said = (out + err).replace(given, "")  # for whoever types on
        return code

    def does(self, *arguments: object) -> None:
        assert self.call(*arguments) == 0, self.said

    def is_refused(self, *arguments: object) -> None:
        assert self.call(*arguments) == 2, self.said

    def follows(self, *verbs: str) -> None:
        """Do, in this order, the commands with these verbs that the last refusal named."""
        named = re.findall(r"`spark-bookkeeper ([^`]+)`", self.said)
        for verb in verbs:
            matching = [command for command in named if verb in command]
            assert matching, f"no {verb!r} in {self.said}"
            self.does(*shlex.split(matching[0]))

    def serves(self) -> None:
        """The bookie can be started: what whoever was refused wanted."""
        self.does("bookie", "start", *self.name)

    def runs(self) -> BookieAgent:
        """An agent of the bookie that stays."""
        self.root.mkdir(exist_ok=True)
        storage = LocalStorage(str(self.root))
        agent = BookieAgent(self.store, Partition(storage), self.bookie, ThreadRuntime())
        agent.start()
        self.agents.append(agent)
        return agent

    def was_served(self) -> None:
        """The bookie was in use before, and is down."""
        self.runs().stop()
        (self.root / "ledgers" / "left-by-a-ledger").mkdir(parents=True)

    def has_ledger(self) -> LedgerId:
        """A ledger that counts on the bookie, which is down now."""
        agent = self.runs()
        lines = self.directory / "lines.txt"
        lines.write_text("one\ntwo\n")
        for _ in range(100):
            self.does("ledger", "append", lines, "--name", self.bookie)
            found = there(re.search(r"ledger (\d+) on ([^\n]*)", self.said))
            if self.bookie in found[2]:
                agent.stop()
                return LedgerId(int(found[1]))
        raise AssertionError("it was never chosen")

    def loses_cookie(self) -> None:
        self.store.delete_cookie(self.bookie, there(self.store.read_cookie(self.bookie)).version)

    def breaks_cookie(self) -> None:
        """Its node holds what nobody can decode."""
        uri = parse_metadata_uri(self.cluster.metadata_uri)
        client = KazooClient(uri.hosts)
        client.start(timeout=60)
        client.set(paths.cookie(uri.root, self.bookie), b"garbage")
        client.stop()
        client.close()

    def was_formatted_elsewhere(self) -> None:
        self._change_cookie(incarnation="f" * 32)

    def had_another_cluster(self) -> None:
        self._change_cookie(instance_id="an-older-cluster")

    def _change_cookie(self, **fields: str) -> None:
        cookie = there(self.store.read_cookie(self.bookie))
        self.store.write_cookie(replace(cookie.value, **fields), cookie.version)  # type: ignore[arg-type]  # fields of it

    def was_given_up(self) -> None:
        self.does("bookie", "recover", self.bookie, "--delete-cookie")

    def loses_marker(self) -> None:
        (self.root / "BOOKIE").unlink()

    def loses_ledgers(self) -> None:
        shutil.rmtree(self.root / "ledgers")

    def is_wiped(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Five bookies for all operators, each of whom adds one of his own."""
    with twins(), LocalCluster(tmp_path_factory.mktemp("stage") / "cluster", 5) as running:
        yield running


@pytest.fixture
def operator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Iterator[Operator]:
    name = "own_cluster" if is_integration(request) else "stage"
    cluster: LocalCluster = request.getfixturevalue(name)
    runtime = ThreadRuntime()
    store = Connection(cluster.metadata_uri).open_store(runtime)
    number = len({c.value.bookie_id for c in store.cookies()}) + int(runtime.token()[:3], 16)
    bookie = BookieId(f"10.7.{number // 256}.{number % 256}:3181")
    operator = Operator(cluster, store, tmp_path, capsys, bookie, [])
    yield operator
    for agent in operator.agents:
        agent.stop()
    # Nothing stays behind of a bookie whose storage goes with the test.
    left = operator.call("bookie", "recover", bookie)
    known = store.cookie_version(bookie)
    if known is not None:
        store.delete_cookie(bookie, known)
    store.close()
    assert left in (0, 2), operator.said  # all of it is done, or it is unknown by now


# A partition that cannot be served as it is

WAYS: Final = {
    "a_storage_without_its_cookie_is_served_again": (
        *("has_ledger loses_cookie", "start", "", "cookie create, bookie start"),
    ),
    "a_storage_without_its_cookie_becomes_a_new_bookie": (
        *("was_served loses_cookie", "start", "", "bookie format"),
    ),
    "a_bookie_that_was_given_up_comes_back": (
        *("has_ledger was_given_up", "start", "", "cookie create, bookie start"),
    ),
    "a_storage_of_which_nothing_says_whose_it_is_becomes_a_new_bookie": (
        *("was_served loses_cookie loses_marker", "start", "", "bookie format"),
    ),
    "a_wiped_storage_is_recovered_and_formatted": (
        *("has_ledger is_wiped", "start", "", "bookie recover, bookie format"),
    ),
    "a_storage_of_another_formatting_is_recovered_and_formatted": (
        *("has_ledger was_formatted_elsewhere", "start", "", "bookie recover, bookie format"),
    ),
    "a_cookie_from_before_the_cluster_was_formatted_is_replaced": (
        *("was_served had_another_cluster", "start", "", "bookie format"),
    ),
    "what_ledgers_count_on_is_recovered_before_it_is_formatted": (
        *("has_ledger", "format", "", "bookie recover"),
    ),
    "what_ledgers_count_on_gets_its_cookie_back_before_it_is_recovered": (
        *("has_ledger loses_cookie", "format", "", "cookie create, bookie recover"),
    ),
    "no_cookie_is_made_of_an_empty_directory_but_a_new_bookie_is": (
        *("is_wiped", "cookie create", "", "bookie format"),
    ),
    "a_storage_that_the_ledgers_do_not_mean_is_recovered_and_formatted": (
        "has_ledger loses_cookie is_wiped was_served loses_cookie",
        *("cookie create", "counts on another formatting", "bookie recover, bookie format"),
    ),
    "a_storage_that_lost_what_ledgers_count_on_is_recovered_and_formatted": (
        "has_ledger loses_cookie loses_ledgers",
        *("cookie create, start", "it is empty", "bookie recover, bookie format"),
    ),
}
"""What happens to it; what is refused then, with which words; what the refusal says to do."""


@pytest.mark.parametrize(("happens", "refused", "words", "named"), WAYS.values(), ids=WAYS)
def test_a_partition_is_served_in_the_way_that_the_refusal_names(
    operator: Operator, happens: str, refused: str, words: str, named: str
) -> None:
    for event in happens.split():
        getattr(operator, event)()
    for verb in refused.split(", "):
        operator.is_refused("bookie", *verb.split(), *operator.name)
        assert words in operator.said
    operator.follows(*named.split(", "))
    if refused == "format":
        operator.does("bookie", "format", *operator.name)
    operator.serves()
    operator.does("bookie", "cookie", "get", operator.bookie)


# Other ways

Case = Callable[[Operator], None]
CASES: list[ParameterSet] = []


def case(walk: Case) -> Case:
    CASES.append(pytest.param(walk, id=walk.__name__))
    return walk


def case_of_zookeeper(walk: Case) -> Case:
    """One for which metadata in memory is not enough: it is about bytes, or another process."""
    CASES.append(pytest.param(walk, id=walk.__name__, marks=pytest.mark.integration))
    return walk


# Starting


@case_of_zookeeper
def a_bookie_whose_cookie_is_junk_comes_back_with_a_new_one(a: Operator) -> None:
    a.was_served()
    for verb in (("start",), ("cookie", "create"), ("format",)):
        a.breaks_cookie()
        assert a.call("bookie", *verb, *a.name) == 1, a.said
        a.follows("cookie delete")
        a.is_refused("bookie", "start", *a.name)
        a.follows("cookie create")
    a.serves()


@case_of_zookeeper
def a_bookie_whose_cookie_is_junk_and_on_which_ledgers_count_is_recovered_first(
    a: Operator,
) -> None:
    a.has_ledger()
    a.breaks_cookie()
    assert a.call("bookie", "cookie", "get", a.bookie) == 1, a.said
    (delete,) = re.findall(r"`spark-bookkeeper (bookie cookie delete [^`]+)`", a.said)
    a.is_refused(*delete.split())
    a.follows("bookie recover")
    a.does(*delete.split())
    a.is_refused("bookie", "start", *a.name)
    a.follows("cookie create")
    a.serves()


@case_of_zookeeper
def a_bookie_whose_cookie_is_junk_is_given_up_in_one_go(a: Operator) -> None:
    a.has_ledger()
    a.breaks_cookie()
    a.does("bookie", "recover", a.bookie, "--delete-cookie")
    assert "replicated" in a.said, "the report is shown"
    a.is_refused("bookie", "cookie", "get", a.bookie)
    assert "has no cookie" in a.said


@case
def a_moved_storage_is_served_when_it_is_called_moved(a: Operator) -> None:
    a.has_ledger()
    a.root.rename(a.directory / "elsewhere")
    a.is_refused("bookie", "start", "--bookie-id", a.bookie, "--root", a.directory / "elsewhere")
    a.follows("--moved")


@case
def a_storage_is_served_under_its_own_id(a: Operator) -> None:
    a.was_served()
    a.is_refused("bookie", "start", "--bookie-id", "10.8.8.8:3181", "--root", a.root)
    a.follows("bookie start")


@case
def a_directory_with_something_else_is_left_for_an_empty_one(a: Operator) -> None:
    a.root.mkdir()
    (a.root / "thesis.txt").write_text("years of work")
    a.is_refused("bookie", "start", *a.name)
    assert "Choose an empty directory" in a.said
    empty = a.directory / "empty"
    empty.mkdir()
    a.does("bookie", "start", "--bookie-id", a.bookie, "--root", empty)
    a.is_refused("bookie", "start", *a.name)  # the id is known elsewhere now
    a.does("bookie", "cookie", "delete", a.bookie)
    (a.root / "thesis.txt").rename(a.directory / "thesis.txt")
    a.serves()


@case
def a_storage_of_another_cluster_is_left_for_an_empty_one(a: Operator) -> None:
    a.was_served()
    marker = a.root / "BOOKIE"
    marker.write_bytes(marker.read_bytes().replace(a.store.instance_id().encode(), b"x" * 36))
    for verb in ("start", "format"):
        a.is_refused("bookie", verb, *a.name)
        assert "empty" in a.said
    a.loses_cookie()
    (a.directory / "empty").mkdir()
    a.does("bookie", "start", "--bookie-id", a.bookie, "--root", a.directory / "empty")


@case
def a_directory_that_is_not_there_is_made(a: Operator) -> None:
    a.is_refused("bookie", "start", *a.name)
    made = there(re.search(r"mkdir -p (\S+)\.", a.said))
    Path(made[1]).mkdir(parents=True)
    a.serves()


@case
def a_second_agent_waits_for_the_end_of_the_first(a: Operator) -> None:
    other = Connection(a.cluster.metadata_uri).open_store(ThreadRuntime())
    agent = BookieAgent(a.store, a.runs()._partition, a.bookie, ThreadRuntime())
    agent.start()
    second = BookieAgent(other, agent._partition, a.bookie, ThreadRuntime())
    try:
        with pytest.raises(CookieMismatchError, match="Stop the other agent of this bookie"):
            second.start()
        agent.stop()
        second.start()
    finally:
        second.stop()
        other.close()


@case
def an_option_of_the_storage_is_written_as_the_refusal_says(a: Operator) -> None:
    a.root.mkdir()
    a.is_refused("bookie", "format", *a.name, "--storage-option", "nonsense")
    example = there(re.search(r"for example (\S+)", a.said))
    assert a.call("bookie", "verify", a.root, "--storage-option", example[1]) in (0, 2)
    assert "has the form" not in a.said


# Formatting


@case
def a_living_bookie_is_stopped_before_it_is_formatted(a: Operator) -> None:
    agent = a.runs()
    a.is_refused("bookie", "format", *a.name)
    assert "stop its agent first" in a.said
    agent.stop()
    a.does("bookie", "format", *a.name)
    a.serves()


@case
def what_is_not_a_bookies_is_moved_away_before_it_is_formatted(a: Operator) -> None:
    a.was_served()
    (a.root / "thesis.txt").write_text("years of work")
    a.is_refused("bookie", "format", *a.name)
    assert "move it elsewhere" in a.said
    (a.root / "thesis.txt").rename(a.directory / "thesis.txt")
    a.does("bookie", "format", *a.name)
    a.serves()


# Cookies


@case
def a_cookie_that_is_not_there_is_created(a: Operator) -> None:
    a.was_served()
    a.does("bookie", "cookie", "get", a.bookie, "--json")
    before = a.said
    a.loses_cookie()
    a.is_refused("bookie", "cookie", "get", a.bookie)
    (remedy,) = re.findall(r"`spark-bookkeeper (bookie cookie create [^`]*)`", a.said)
    words = remedy.replace("URI", str(a.root)).split()
    assert run(["--metadata-uri", a.cluster.metadata_uri, *words]) == 1  # nobody says yes
    assert "Is this the storage" in a.capsys.readouterr().err
    for _ in range(2):  # the second time nothing is to be done
        a.does(*words)
    a.does("bookie", "cookie", "get", a.bookie, "--json")
    assert a.said == before


@case
def a_cookie_is_made_where_no_other_agent_serves_the_bookie(a: Operator) -> None:
    a.was_served()
    cookie = there(a.store.read_cookie(a.bookie))
    a.loses_cookie()
    a.store.register(Registration(a.bookie, "file:///elsewhere", cookie.value.incarnation))
    a.is_refused("bookie", "cookie", "create", *a.name)
    assert "stop that agent, and repeat" in a.said
    a.store.unregister(a.bookie)
    a.does("bookie", "cookie", "create", *a.name)


@case
def a_bookie_is_forgotten_when_it_is_down_and_recovered(a: Operator) -> None:
    a.has_ledger()
    agent = a.runs()
    a.is_refused("bookie", "cookie", "delete", a.bookie)
    a.follows("--even-if-alive")
    assert "Stop its agent" not in a.said
    agent.stop()
    a.does("bookie", "cookie", "delete", a.bookie)
    a.is_refused("bookie", "cookie", "delete", a.bookie)
    a.follows("bookie list")
    assert a.bookie not in a.said


@case
def a_bookie_that_ledgers_count_on_is_recovered_before_it_is_forgotten(a: Operator) -> None:
    a.has_ledger()
    assert a.call("bookie", "cookie", "delete", a.bookie) == 2
    a.follows("bookie recover")
    a.does("bookie", "cookie", "delete", a.bookie)


# Recovering


@case
def a_living_bookie_is_recovered_as_the_refusal_says(a: Operator) -> None:
    a.has_ledger()
    agent = a.runs()
    a.is_refused("bookie", "recover", a.bookie)
    assert "--even-if-alive" in a.said
    a.is_refused("bookie", "recover", a.bookie, "--even-if-alive", "--delete-cookie")
    assert "Stop its agent, and repeat" in a.said, "once stopped it could not be started again"
    a.follows("--even-if-alive")
    agent.stop()
    a.does("bookie", "recover", a.bookie, "--delete-cookie")


@case
def bookies_that_nobody_knows_are_found_in_the_list(a: Operator) -> None:
    a.was_served()
    for wrong in ([], ["10.8.8.8:3181"]):
        a.is_refused("bookie", "recover", *wrong)
        a.follows("bookie list")
        assert a.bookie in a.said
    a.is_refused("bookie", "recover", a.bookie, "--ledger", 987654)
    a.follows("ledger list")


@case
def a_target_that_cannot_be_one_is_left_out(a: Operator) -> None:
    ledger_id = a.has_ledger()
    metadata = a.store.read_ledger(ledger_id).value
    inside = next(b for b in metadata.bookies() if b != a.bookie)
    shown = ["--ledger", ledger_id]
    for target in (a.bookie, "10.8.8.8:3181", inside):
        assert a.call("bookie", "recover", a.bookie, target, *shown) == 2
        assert re.search(r"another|Registered bookies", a.said)
    a.store.register(Registration(BookieId("10.9.9.1:1"), "file:///x", "0" * 32, is_readonly=True))
    try:
        a.is_refused("bookie", "recover", a.bookie, "10.9.9.1:1", *shown)
        assert "or none" in a.said
        a.does("bookie", "recover", a.bookie, *shown)
    finally:
        a.store.unregister(BookieId("10.9.9.1:1"))


# Ledgers


@case
def a_ledger_that_is_not_there_is_looked_up_in_the_list(a: Operator) -> None:
    for verb in ("show", "read", "recover", "check", "diff", "repair"):
        a.is_refused("ledger", verb, 987654)
        assert "`spark-bookkeeper ledger list`" in a.said, verb
    a.follows("ledger list")


@case
def a_ledger_with_a_password_is_read_with_it(a: Operator) -> None:
    lines = a.directory / "lines.txt"
    lines.write_text("one\n")
    a.does("ledger", "append", lines, "--password", "secret", "--json")
    (ledger_id,) = re.findall(r'"ledger_id": (\d+)', a.said)
    a.is_refused("ledger", "read", ledger_id)
    assert "Give --password" in a.said
    a.does("ledger", "read", ledger_id, "--password", "secret")
    output = a.directory / "no such" / "rows.parquet"
    assert a.call("ledger", "read", ledger_id, "--password", "secret", "--output", output) == 2
    made = there(re.search(r"mkdir -p ('.*?')", a.said))
    Path(shlex.split(made[1])[0]).mkdir()
    a.does("ledger", "read", ledger_id, "--password", "secret", "--output", output)


@case
def files_are_appended_as_the_refusal_says(a: Operator) -> None:
    rows, lines = a.directory / "rows.parquet", a.directory / "lines.txt"
    lines.write_text("one\n")
    a.does("ledger", "append", lines)
    (ledger_id,) = re.findall(r"ledger (\d+) on", a.said)
    a.does("ledger", "read", ledger_id, "--output", rows)
    assert a.call("ledger", "append", rows, lines) == 2
    assert "give --as" in a.said
    a.does("ledger", "append", rows, lines, "--as", "bytes")
    assert a.call("ledger", "append", lines, "--as", "rows") == 2
    assert "--as lines or --as bytes" in a.said
    a.does("ledger", "append", lines, "--as", "lines")


@case
def a_ledger_on_more_bookies_than_there_are_waits_for_another_one(a: Operator) -> None:
    size = len(a.store.registrations()) + 1
    create = ("ledger", "create", "-e", size, "-w", 2, "-a", 2)
    assert a.call(*create) == 2
    assert "start another bookie (`spark-bookkeeper bookie start`)" in a.said
    a.runs()
    a.does(*create, "--json")
    a.does("ledger", "delete", there(re.search(r'"ledger_id": (\d+)', a.said))[1])


@case
def a_wish_for_a_ledger_is_put_right_as_the_refusal_says(a: Operator) -> None:
    a.is_refused("ledger", "create", "-e", 2, "-w", 3)
    assert "ensemble_size >= write_quorum_size >= ack_quorum_size" in a.said
    a.does("ledger", "create", "-e", 3, "-w", 3, "-a", 2)
    a.is_refused("ledger", "create", "--label", "nameless")
    assert "KEY=VALUE" in a.said
    a.does("ledger", "create", "--label", "nameless=no")
    a.is_refused("ledger", "create", "--label", "spark-bookkeeper.nonce=x")
    assert "choose another key" in a.said
    a.does("ledger", "create", "--label", "nonce=x")


@case
def entries_beyond_the_last_one_are_read_up_to_it(a: Operator) -> None:
    lines = a.directory / "lines.txt"
    lines.write_text("one\ntwo\n")
    a.does("ledger", "append", lines)
    (ledger_id,) = re.findall(r"ledger (\d+) on", a.said)
    a.is_refused("ledger", "read", ledger_id, "--last", 200)
    last = there(re.search(r"its last entry is (\d+)", a.said))
    a.does("ledger", "read", ledger_id, "--last", last[1])


# Clusters


@case
def a_place_without_a_cluster_gets_one(a: Operator) -> None:
    uri = a.cluster.metadata_uri.replace("/ledgers", f"/{a.bookie.replace(':', '-')}")
    try:
        assert run(["--metadata-uri", uri, "ledger", "list"]) == 2
        assert f"`spark-bookkeeper --metadata-uri {uri} cluster init`" in a.capsys.readouterr().err
        assert run(["--metadata-uri", uri, "cluster", "init"]) == 0
        assert run(["--metadata-uri", uri, "ledger", "list"]) == 0
        assert run(["--metadata-uri", uri, "cluster", "init"]) == 2
        assert f"`spark-bookkeeper --metadata-uri {uri} cluster info`" in a.capsys.readouterr().err
        assert run(["--metadata-uri", uri, "cluster", "info"]) == 0
    finally:
        a.capsys.readouterr()


@case_of_zookeeper
def a_local_cluster_that_does_not_run_is_started(a: Operator) -> None:
    (a.directory / "full").mkdir()
    (a.directory / "full" / "thesis.txt").write_text("years of work")
    assert a.call("local", "start", "--directory", a.directory / "full") == 2
    assert "name a new or empty directory" in a.said
    assert a.call("local", "status", "--directory", a.directory / "new", "--uri") == 2
    named = re.findall(r"`spark-bookkeeper ([^`]+)`", a.said)
    a.does(*shlex.split(named[0]), "--bookies", 1)
    try:
        a.does("local", "status", "--directory", a.directory / "new", "--uri")
    finally:
        a.does("local", "stop", "--directory", a.directory / "new")


@pytest.mark.parametrize("walk", CASES)
def test_a_refusal_names_a_way_that_works(operator: Operator, walk: Case) -> None:
    walk(operator)
