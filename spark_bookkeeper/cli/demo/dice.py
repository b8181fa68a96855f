"""The dice game of BookKeeper's tutorial: several players, one of whom rolls the dice.

Every player shows every roll, in the same order. One leads, and rolls; the others stand by. Kill
the leader (Ctrl-C, ``kill -9``), or freeze it (Ctrl-Z, later ``fg``): another one goes on with the
rolls, and nobody has seen another order. A leader that was frozen learns at its next roll that it
leads no more, and stands by again.

Make a cluster, and play in three terminals::

    spark-bookkeeper local start
    python -m spark_bookkeeper.cli.demo.dice METADATA_URI

Source: Apache BookKeeper, "Example application" (the dice application).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from spark_bookkeeper.cli.shell.cluster_options import Access, connected
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.client.read.reader import Entry
from spark_bookkeeper.config import ClientConfig, load_client_config
from spark_bookkeeper.errors import BookKeeperError, LogExistsError, LogOwnershipLostError
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.log import Position


class Player:
    """One process of the game."""

    def __init__(self, log: Log, seconds: float) -> None:
        self._log = log
        self._seconds = seconds
        self._seen: Position | None = None
        """The roll after the last one that was shown."""

    def play(self, rolls: int | None) -> None:
        """Stand by, lead, and stand by again; ends after so many rolls of one's own."""
        with self._log.elect() as vote:
            while rolls is None or rolls > 0:
                try:
                    writer = self._log.stand_by(vote, self._follow, self._seen)
                    with writer:
                        while rolls is None or rolls > 0:
                            value = random.randint(1, 6)
                            self._show(value, writer.append(bytes([value])), "leading")
                            rolls = None if rolls is None else rolls - 1
                            time.sleep(self._seconds)
                except LogOwnershipLostError:
                    _say("another one leads")

    def _follow(self, entry: Entry) -> None:
        place = Position(entry.ledger_id, EntryId(entry.entry_id))
        self._show(entry.payload[0], place, "following")

    def _show(self, value: int, place: Position, role: str) -> None:
        self._seen = Position(place.ledger_id, EntryId(place.entry_id + 1))
        _say(f"Value = {value}, position = {place}, {role}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Play until the game is ended from outside."""
    parser = argparse.ArgumentParser(prog="python -m spark_bookkeeper.cli.demo.dice")
    parser.add_argument("metadata_uri", metavar="METADATA_URI")
    parser.add_argument("--log", default="dice", help="the log of the game")
    parser.add_argument("--seconds", type=float, default=1.0, help="between two rolls")
    parser.add_argument("--rolls", type=int, help="stop after so many of one's own")
    parser.add_argument("--conf", help="a TOML file, as conf/client.toml")
    wish = parser.parse_args(arguments)
    try:
        access = Access(load_client_config(wish.conf) if wish.conf else ClientConfig())
        with connected(Settings(wish.metadata_uri, Output()), access) as bk:
            with suppress(LogExistsError):
                bk.create_log(wish.log)
            Player(bk.open_log(wish.log), wish.seconds).play(wish.rolls)
    except BookKeeperError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
