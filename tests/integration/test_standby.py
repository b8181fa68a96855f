"""Warm standbys in processes of their own: a leader that is killed, and one that was frozen."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.session import BookKeeper

# Full: what is shown of a standby is shown in one process by tests/logs/test_standby.py as well.
pytestmark = [pytest.mark.integration, pytest.mark.full]

ROLL = re.compile(r"Value = (\d), position = ([\d:]+), (leading|following)\n")
PATIENCE_SECONDS = 120


class Player:
    """The dice game in a process, and what it shows."""

    def __init__(self, uri: str, conf: Path) -> None:
        command = [sys.executable, "-m", "spark_bookkeeper.cli.demo.dice", uri]
        self.process = subprocess.Popen(
            [*command, "--seconds", "0.05", "--conf", str(conf)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.shown: list[tuple[str, str]] = []
        """Positions and values, in the order shown."""
        self._lines = queue.SimpleQueue[str]()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def until(self, words: str, count: int = 1) -> None:
        """Wait until it has shown so many lines with these words."""
        while count:
            line = self._lines.get(timeout=PATIENCE_SECONDS)
            count -= words in line
            self._note(line)

    def _note(self, line: str) -> None:
        matched = ROLL.fullmatch(line)
        if matched is not None:
            self.shown.append((matched[2], matched[1]))

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """End it, and take in what it has shown."""
        self.process.kill()
        self._reading.join()
        with self.process:  # waits, and closes the pipe
            pass
        while not self._lines.empty():
            self._note(self._lines.get())


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "client.toml"
    path.write_text("metadata_timeout_ms = 4_000\nexplicit_lac_ms = 200\n", encoding="utf-8")
    return path


@pytest.fixture
def players(cluster: LocalCluster, conf: Path) -> Iterator[list[Player]]:
    playing: list[Player] = []
    try:
        for role in ("leading", "following", "following"):
            playing.append(Player(cluster.metadata_uri, conf))
            playing[-1].until(role)
        yield playing
    finally:
        for player in playing:
            player.end()


def test_every_player_sees_the_same_rolls_whatever_becomes_of_the_leader(
    bk: BookKeeper, players: list[Player]
) -> None:
    killed, frozen, last = players
    killed.until("leading", 3)
    killed.signal(signal.SIGKILL)
    frozen.until("leading", 3)
    last.until("following", 3)
    frozen.signal(signal.SIGSTOP)
    last.until("leading", 3)
    frozen.signal(signal.SIGCONT)
    frozen.until("another one leads")
    frozen.until("following", 3)
    last.signal(signal.SIGKILL)
    frozen.until("leading", 3)
    for player in players:
        player.end()

    with bk.open_log("dice").become_writer():
        rolls = [
            (f"{e.ledger_id}:{e.entry_id}:0", str(e.payload[0]))
            for e in bk.open_log("dice").entries()
        ]
    for player in players:
        assert len(player.shown) > 5
        first = rolls.index(player.shown[0])
        assert player.shown == rolls[first : first + len(player.shown)], "none twice, none missing"
    assert frozen.shown[0] == rolls[0], "it stood by from the beginning"
