"""Real rows: Debian's package index, three levels deep with real nulls, and TPC-H."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.session import BookKeeper
from tests.support.rows import check_replicas
from tests.support.sessions import connect_without_spark
from tests.worlds import first_of

pytestmark = pytest.mark.integration

ALTERNATIVE = pa.struct(
    [("package", pa.string()), ("relation", pa.string()), ("version", pa.string())]
)
PACKAGES = pa.schema(
    [
        ("package", pa.string()),
        ("version", pa.string()),
        ("installed_kib", pa.int64()),
        ("depends", pa.list_(pa.list_(ALTERNATIVE))),
        ("provides", pa.list_(pa.string())),
        ("tags", pa.map_(pa.string(), pa.list_(pa.string()))),
    ]
)
"""``depends``: all of a list of any of alternatives; ``null`` where the field is absent."""

_LISTS = Path("/var/lib/apt/lists")
_ALTERNATIVE = re.compile(r"([^\s(:\[]+)(?::\S+)?\s*(?:\(\s*([<>=]+)\s*([^)]+?)\s*\))?")


def text_of(path: Path) -> str:
    if path.suffix == ".lz4":
        with pa.CompressedInputStream(str(path), "lz4") as stream:
            data: bytes = stream.read()
        return data.decode()
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    return path.read_text()


def depends_of(field: str | None) -> list[list[dict[str, str | None]]] | None:
    if field is None:
        return None
    found = []
    for clause in field.split(","):
        alternatives: list[dict[str, str | None]] = []
        for text in clause.split("|"):
            match = _ALTERNATIVE.match(text.strip())
            assert match is not None, text
            package, relation, version = match.groups()
            alternatives.append({"package": package, "relation": relation, "version": version})
        found.append(alternatives)
    return found


def tags_of(field: str | None) -> list[tuple[str, list[str]]] | None:
    if field is None:
        return None
    tags: dict[str, list[str]] = {}
    for tag in field.replace("\n", " ").split(","):
        facet, _, value = tag.strip().partition("::")
        tags.setdefault(facet, []).append(value)
    return list(tags.items())


def stanzas(text: str) -> Iterator[dict[str, str]]:
    for stanza in text.split("\n\n"):
        fields = re.findall(r"^([A-Za-z-]+): ?(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE)
        if fields:
            yield dict(fields)


@pytest.fixture(scope="module")
def packages() -> pa.Table:
    """Some 8,000 packages, as their maintainers wrote them."""
    indexes = sorted(p for p in _LISTS.glob("*_Packages*") if p.suffix in ("", ".lz4", ".gz"))
    if not indexes:
        pytest.skip(f"no package index in {_LISTS}: not Debian, or `apt-get update` was not run")
    rows: list[dict[str, Any]] = []
    for path in sorted(indexes, key=lambda p: p.stat().st_size):
        for fields in stanzas(text_of(path)):
            size, provides = fields.get("Installed-Size"), fields.get("Provides")
            rows.append(
                {
                    "package": fields["Package"],
                    "version": fields["Version"],
                    "installed_kib": None if size is None else int(size),
                    "depends": depends_of(fields.get("Depends")),
                    "provides": None if provides is None else provides.split(", "),
                    "tags": tags_of(fields.get("Tag")),
                }
            )
            if len(rows) == 8000:
                break
    table = pa.Table.from_pylist(rows, schema=PACKAGES)
    assert table.column("depends").null_count > 0
    assert table.column("tags").null_count > 0
    return table


@pytest.fixture(scope="module")
def lineitem(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """TPC-H's largest table at scale 0.01: 60,000 rows with decimals and dates."""
    program = shutil.which("tpchgen-cli", path=str(Path(sys.executable).parent)) or shutil.which(
        "tpchgen-cli"
    )
    if program is None:
        pytest.skip("tpchgen-cli is not installed; the extra `test` brings it")
    directory = tmp_path_factory.mktemp("tpch")
    command = [program, "parquet", "-s", "0.01", "--tables=lineitem", f"--output-dir={directory}"]
    subprocess.run(command, check=True, capture_output=True)
    return pq.read_table(directory / "lineitem.parquet")


@pytest.mark.parametrize(
    ("source", "compression"), first_of(("packages", "zstd"), ("lineitem", None))
)
def test_real_rows_are_identical_after_two_bookies_are_lost_one_after_the_other(
    request: pytest.FixtureRequest,
    cluster_of: Callable[[int], LocalCluster],
    source: str,
    compression: str | None,
) -> None:
    table: pa.Table = request.getfixturevalue(source)
    cluster = cluster_of(6)
    with connect_without_spark(cluster.metadata_uri) as bk:
        writer = bk.create_ledger(
            ensemble_size=4,
            write_quorum_size=3,
            ack_quorum_size=2,
            schema=table.schema,
            compression=compression,
            entry_target_bytes=256 << 10,
        )
        third = table.num_rows // 3
        writer.append(table.slice(0, third))  # in parts, for its size
        for start in range(third, third + 100, 10):  # and inside slots
            writer.append_async(table.slice(start, 10))
        lost = [writer.metadata.last_fragment.ensemble[1]]
        writer.flush()
        cluster.stop_bookie(lost[0], destroy=True)
        writer.append(table.slice(third + 100))
        while lost[0] in writer.metadata.last_fragment.ensemble:
            writer.append(table.slice(0, 0))
            writer.flush()
        writer.close()
        ledger_id = writer.ledger_id
        assert_same(bk, ledger_id, table)

        report = bk.recover_bookie(lost[0])
        assert report.is_complete, report.unfinished
        lost.append(bk.ledger(ledger_id).fragments[0].ensemble[3])
        cluster.stop_bookie(lost[1], destroy=True)
        assert_same(bk, ledger_id, table)
        report = bk.recover_bookie(lost[1])
        assert report.is_complete, report.unfinished

        assert_same(bk, ledger_id, table)
        named = {b for f in bk.ledger(ledger_id).fragments for b in f.ensemble}
        assert not named & set(lost)
        check_replicas(bk, ledger_id, copies=3)
        assert bk.check_ledgers(percentage=100).is_complete


def assert_same(bk: BookKeeper, ledger_id: int, table: pa.Table) -> None:
    found = bk.open_ledger(ledger_id).read_arrow()
    assert found.schema.equals(table.schema)
    assert found.equals(table)
