"""A disk is filled by writers until none of them can go on: what is left is for ending ledgers.

Once on a small file system of its own, and once counted, where nothing can be mounted.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import pytest

from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.reserve import reserve_bytes
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import AppendFailedError, BookieFullError, BookKeeperError
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.ground import Ground
from tests.worlds import first_of

pytestmark = pytest.mark.integration

TOTAL = 64 << 20
ENTRY = 25_000
"""A hundredth of all, which is kept, has room for half of the ledgers' last entries once more: a
slow machine ends many an append after one or two of its three puts, and each of those is copied."""
LEDGERS = 15
"""So many that, with a MiB for each of them unseen, all of the last space would be taken."""


@dataclass
class Disk:
    """On which all bookies are, so that it is filled soon."""

    root: Path
    fill: Callable[[], None]
    """Take every byte that is left, as a neighbour might."""
    clear: Callable[[], None]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TOTAL}", "spark-bookkeeper-test", str(root)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root, and mount to be allowed")
    filler = root / "filler"

    def fill() -> None:
        size = 1 << 20
        with filler.open("ab", buffering=0) as file:
            while size:
                try:
                    file.write(bytes(size))
                except OSError:  # there is no space for so much
                    size //= 2

    try:
        yield Disk(root, fill, filler.unlink)
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk whose bytes are counted as they are put; every file takes whole blocks."""
    counting = Lock()
    used = [0]
    kept = [0]
    put = LocalStorage.put_if_absent

    def put_if_absent(self: LocalStorage, path: str, data: bytes) -> bool:
        size = -(-max(1, len(data)) // 4096) * 4096
        with counting:
            if used[0] + kept[0] + size > TOTAL:
                raise BookieFullError("no space left on device", bookie_id=self.bookie_id)
            used[0] += size
        is_new = put(self, path, data)
        with counting:
            used[0] -= 0 if is_new else size
        return is_new

    monkeypatch.setattr(LocalStorage, "put_if_absent", put_if_absent)
    monkeypatch.setattr(LocalStorage, "space", lambda _: (max(0, TOTAL - used[0] - kept[0]), TOTAL))
    root = tmp_path / "disk"
    root.mkdir()
    return Disk(root, lambda: kept.__setitem__(0, TOTAL - used[0]), lambda: kept.__setitem__(0, 0))


@pytest.fixture(params=first_of("counted", "mounted"))
def disk(request: pytest.FixtureRequest) -> Disk:
    found: Disk = request.getfixturevalue(request.param)
    return found


def test_what_writers_leave_is_enough_to_fence_copy_close_and_bury(disk: Disk) -> None:
    ground = Ground(disk.root, bookies=4)
    storage = LocalStorage(str(ground.root(ground.bookie_ids[0])))
    quorum = Quorum(3, 3, 2)
    writers = [lifecycle.create_ledger(ground.context, quorum) for _ in range(LEDGERS)]
    acknowledged: dict[LedgerWriter, int] = dict.fromkeys(writers, -1)

    def fill() -> None:
        """Each a little, in turn, until there is nobody who can."""
        going = list(writers)
        while going:
            for writer in tuple(going):
                try:
                    acknowledged[writer] = writer.append(bytes(ENTRY))
                except AppendFailedError:
                    going.remove(writer)

    fill()

    space = storage.space()
    assert space is not None
    free_bytes, total_bytes = space
    assert free_bytes >= reserve_bytes(total_bytes) // 2, "what is kept for the rest is there"
    assert free_bytes < TOTAL // 32, "and writers were let near it"
    client = ground.client()
    for writer in writers[1:]:
        ended = recover_ledger(client, writer.ledger_id).value
        assert ended.is_closed
        assert (ended.last_entry_id or 0) >= acknowledged[writer]
    bookie = FileBookie(storage)
    for key in bookie.ledgers():
        bookie.retire(key)

    disk.fill()  # a neighbour takes the last byte: nothing is decided, and nothing is lost
    with pytest.raises(BookKeeperError):
        recover_ledger(ground.client(), writers[0].ledger_id)
    disk.clear()
    ended = recover_ledger(ground.client(), writers[0].ledger_id).value
    assert (ended.last_entry_id or 0) >= acknowledged[writers[0]]


@pytest.mark.full
def test_a_lost_bookie_is_recovered_onto_what_is_left(disk: Disk) -> None:
    ground = Ground(disk.root, bookies=4)
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)) as small:
        for _ in range(4):
            small.append(bytes(1_000))
    filling = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))

    def fill() -> None:
        while True:
            filling.append(bytes(ENTRY))

    with pytest.raises(AppendFailedError):
        fill()
    lost = small.metadata.last_fragment.ensemble[0]
    ground.stop(lost)

    client = ground.client()
    wish = BookieRecovery((lost,), ledger_ids=(small.ledger_id,))
    report = recover_bookie(client, LocalRunner(client), wish)

    assert report.is_complete, report.unfinished
