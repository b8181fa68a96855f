"""Families of lifetimes, each rich in what one kind of mistake needs to show itself."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from spark_bookkeeper.protocol.quorum import Quorum
from tests.simulator.damage import DAMAGES
from tests.simulator.faults import Disaster, FaultPlan, Kind, Rates
from tests.simulator.lifetime import Script
from tests.simulator.upkeep import KINDS, Keeper

QUORUM_MOVED = Quorum(2, 2, 2)


def changing(seed: int) -> Script:
    """Bookies go down for long while many small appends are on their way."""
    dice = random.Random(f"{seed}/changing")
    quorum = dice.choice((Quorum(1, 1, 1), Quorum(2, 2, 2), Quorum(3, 3, 2), Quorum(4, 3, 2)))
    bookies = quorum.ensemble_size + 3
    downs = tuple(
        Disaster("down", dice.randrange(bookies), dice.randint(10, 120), dice.choice((20.0, 60.0)))
        for _ in range(dice.randint(2, 5))
    )
    rates = Rates(delay=dice.choice((0.05, 0.3)), request_lost=dice.choice((0.0, 0.1)))
    return Script(
        quorum=quorum,
        bookies=bookies,
        payloads=tuple(b"%d" % number for number in range(12)),
        waits=frozenset(dice.sample(range(12), 3)),
        ending="leave",
        recoverers=tuple(dice.randint(10, 120) for _ in range(dice.randint(0, 2))),
        reader_at=None,
        plan=FaultPlan(rates, Rates(delay=0.2), downs),
        max_group_entries=1,
    )


def stalling(seed: int) -> Script:
    """Bookies go down while others are slow, and the metadata are slower still."""
    dice = random.Random(f"{seed}/stalling")
    quorum = dice.choice((Quorum(1, 1, 1), Quorum(2, 2, 2), Quorum(2, 2, 2)))
    return replace(
        changing(seed),
        quorum=quorum,
        bookies=quorum.ensemble_size + 3,
        waits=frozenset(),
        recoverers=tuple(dice.randint(20, 80) for _ in range(2)),
        plan=FaultPlan(
            Rates(delay=0.4),
            Rates(delay=0.5),
            tuple(
                Disaster("down", dice.randrange(5), dice.randint(10, 60), 30.0) for _ in range(4)
            ),
        ),
    )


def cutting(seed: int) -> Script:
    """Power cuts in the middle of puts, and recoverers that come early and die."""
    dice = random.Random(f"{seed}/cutting")
    quorum = dice.choice((Quorum(2, 2, 2), Quorum(2, 2, 2), Quorum(3, 3, 2)))
    bookies = quorum.ensemble_size
    cut = dice.randrange(bookies)
    disasters = [Disaster("power cut", cut, dice.randint(12, 50), 0.0) for _ in range(3)]
    disasters.append(Disaster("down", (cut + 1) % bookies, dice.randint(18, 50), 30.0))
    return Script(
        quorum=quorum,
        bookies=bookies,
        payloads=tuple(b"%d" % number for number in range(2)),
        waits=frozenset(),
        ending="leave",
        recoverers=tuple(dice.randint(8, 40) for _ in range(3)),
        reader_at=None,
        plan=FaultPlan(Rates(delay=0.3, crash=0.01, pause=0.02), Rates(), tuple(disasters)),
        max_group_entries=dice.choice((1, 2)),
    )


def darkening(seed: int) -> Script:
    """Power cuts of all bookies at once, while recoverers fence what writers are putting."""
    dice = random.Random(f"{seed}/darkening")
    quorum = dice.choice((Quorum(1, 1, 1), Quorum(2, 2, 1), Quorum(3, 3, 2)))
    cuts = [dice.randint(10, 60) for _ in range(3)]
    return replace(
        cutting(seed),
        quorum=quorum,
        bookies=quorum.ensemble_size,
        payloads=tuple(b"%d" % number for number in range(4)),
        plan=FaultPlan(
            Rates(delay=0.3, crash=0.01, pause=0.02),
            Rates(),
            tuple(
                Disaster("power cut", bookie, cut, 0.0)
                for cut in cuts
                for bookie in range(quorum.ensemble_size)
            ),
        ),
        max_group_entries=1,
    )


def doubting(seed: int) -> Script:
    """Slow channels, and bookies that are down when recoverers come: many say nothing, some no."""
    dice = random.Random(f"{seed}/doubting")
    quorum = dice.choice((Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(5, 3, 2)))
    bookies = quorum.ensemble_size
    begin = dice.randint(20, 60)
    return replace(
        changing(seed),
        quorum=quorum,
        bookies=bookies,
        ending="abandon",
        waits=frozenset(range(12)),
        recoverers=(begin, begin + 10),
        plan=FaultPlan(
            Rates(delay=0.4),
            Rates(),
            tuple(
                Disaster("down", bookie, begin - dice.randint(0, 5), 20.0)
                for bookie in dice.sample(range(bookies), dice.randint(1, 2))
            ),
        ),
    )


def damaging(seed: int) -> Script:
    """Striped ledgers; files of one bookie are damaged, and another is down when they recover."""
    dice = random.Random(f"{seed}/damaging")
    quorum = Quorum(3, 2, 2)
    bookies = quorum.ensemble_size
    begin = dice.randint(40, 100)
    damaged, down = dice.sample(range(bookies + 1), 2)
    return replace(
        doubting(seed),
        quorum=quorum,
        bookies=bookies + 1,  # the damage may make one useless
        ending="leave",
        waits=frozenset(),
        recoverers=(begin,),
        plan=FaultPlan(
            disasters=(
                Disaster("damage", damaged, begin - 1, 0.0),
                Disaster("down", down, begin, 20.0),
            )
        ),
    )


def losing(seed: int) -> Script:
    """As many bookies as may be are wiped under a writer, formatted again at once; others sleep."""
    dice = random.Random(f"{seed}/losing")
    quorum = dice.choice((Quorum(2, 2, 2), Quorum(3, 3, 3), Quorum(3, 3, 2)))
    bookies = 2 * quorum.ensemble_size - 1
    disasters = [
        Disaster("wipe", bookie, dice.randint(20, 60), 0.001)
        for bookie in dice.sample(range(bookies), quorum.ack_quorum_size - 1)
    ]
    disasters += [
        Disaster("down", bookie, dice.randint(30, 90), 20.0)
        for bookie in dice.sample(range(bookies), quorum.ensemble_size - 1)
    ]
    return replace(
        changing(seed),
        quorum=quorum,
        bookies=bookies,
        ending=dice.choice(("leave", "abandon")),
        recoverers=tuple(dice.randint(40, 100) for _ in range(2)),
        plan=FaultPlan(Rates(delay=0.1), Rates(), tuple(disasters)),
        has_directories=dice.random() < 0.5,
    )


def tearing(seed: int) -> Script:
    """One bookie is damaged while others are away: recoverers come, fence it, and cannot finish."""
    dice = random.Random(f"{seed}/tearing")
    quorum = dice.choice((Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(2, 2, 2), Quorum(2, 2, 2)))
    bookies = quorum.ensemble_size
    begin = dice.randint(20, 80)
    damaged, away = dice.sample(range(bookies), 2)
    rows = tuple(b"row %d" % number for number in range(dice.choice((0, 0, 6))))
    gone = (away, bookies)  # the last one is the only spare
    below = ("slot removed", "slot holds its neighbour's bytes")
    whats = below if dice.random() < 0.6 else DAMAGES
    kind: Kind = dice.choice(("down", "hang"))
    return Script(
        quorum=quorum,
        bookies=bookies + 1,
        payloads=tuple(rows or b"%d" % number for number in range(dice.randint(2, 5))),
        waits=frozenset(range(8)) if dice.random() < 0.2 else frozenset(),
        ending=dice.choice(("leave", "abandon")),
        recoverers=(begin, begin + dice.randint(5, 40), begin + dice.randint(20, 60)),
        reader_at=begin + 20 if dice.random() < 0.3 else None,
        plan=FaultPlan(
            Rates(crash=dice.choice((0.0, 0.01)), delay=dice.choice((0.1, 0.4))),
            disasters=(
                *(Disaster(kind, bookie, begin, 300.0) for bookie in gone),
                *(
                    Disaster("damage", damaged, begin + dice.randint(-5, 40), 0.0, what)
                    for what in dice.sample(whats, dice.choice((1, 1, 2)))
                ),
            ),
        ),
        max_group_entries=1,
        entry_target_bytes=16,
        menders=(begin + 70,) if dice.random() < 0.3 else (),
    )


def hanging(seed: int) -> Script:
    """Any call of any bookie may have no answer for minutes, and as many bookies as may be hang."""
    dice = random.Random(f"{seed}/hanging")
    quorum = dice.choice((Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(3, 3, 3), Quorum(2, 2, 1)))
    bookies = quorum.ensemble_size + dice.randint(0, 2)
    return replace(
        changing(seed),
        quorum=quorum,
        bookies=bookies,
        ending=dice.choice(("close", "leave", "abandon")),
        recoverers=tuple(dice.randint(10, 150) for _ in range(dice.randint(1, 2))),
        reader_at=dice.randint(10, 100) if dice.random() < 0.5 else None,
        plan=FaultPlan(
            Rates(hang=dice.choice((0.0, 0.02, 0.1)), delay=0.1, late_effect=0.02),
            Rates(delay=0.1),
            tuple(
                Disaster("hang", bookie, dice.randint(5, 120), dice.choice((10.0, 50.0, math.inf)))
                for bookie in dice.sample(range(bookies), dice.randint(1, bookies - 1))
            ),
        ),
    )


def hanging_in_bulk(seed: int) -> Script:
    """Tables are appended in bulk: few lifetimes that are drawn do, and fewer meet a hang then."""
    return replace(
        Script.drawn(seed),
        payloads=((b"0", b"1", b"2", b"3"),) * 4,
        entry_target_bytes=1,
        plan=FaultPlan(storage=Rates(hang=0.1)),
    )


def reusing(seed: int) -> Script:
    """The id is used again while everybody still means the first ledger of it."""
    dice = random.Random(f"{seed}/reusing")
    return replace(
        Script.drawn(seed),
        again_at=dice.randint(8, 120),
        delete_at=dice.randint(8, 120) if dice.random() < 0.4 else None,
        recoverers=tuple(dice.randint(8, 150) for _ in range(2)),
        reader_at=dice.randint(8, 100),
        ending=dice.choice(("close", "close", "leave", "abandon")),
        menders=tuple(dice.randint(20, 150) for _ in range(dice.choice((0, 1)))),
    )


def pausing(seed: int) -> Script:
    """The writer pauses, and tells its bookies how far it has acknowledged, while they are slow."""
    dice = random.Random(f"{seed}/pausing")
    return replace(
        changing(seed) if dice.random() < 0.5 else Script.drawn(seed),
        explicit_lac_ms=dice.choice((50, 200, 1_000)),
        waits=frozenset(dice.sample(range(12), 6)),
        reader_at=dice.randint(8, 60),
        recoverers=tuple(dice.randint(20, 150) for _ in range(dice.choice((0, 1, 2)))),
        ending=dice.choice(("close", "leave", "leave", "abandon")),
    )


def leaving(seed: int) -> Script:
    """Agents end while their storage answers, and bookies become read-only, while a writer writes.

    It rests between appends, so that agents are away for long enough. There is one bookie to go to,
    and calls of it and the others may be slow, fail or come late.
    """
    dice = random.Random(f"{seed}/leaving")
    quorum = dice.choice((Quorum(3, 3, 2), Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(2, 2, 1)))
    bookies = quorum.ensemble_size + 1
    kinds: tuple[Kind, ...] = ("expire", "expire", "read-only")
    return replace(
        changing(seed),
        quorum=quorum,
        bookies=bookies,
        payloads=tuple(b"%d" % number for number in range(24)),
        waits=frozenset(dice.sample(range(24), dice.choice((0, 0, 3)))),
        rest_seconds=dice.choice((0.5, 2.0)),
        add_timeout_ms=300_000,
        explicit_lac_ms=dice.choice((0, 0, 1_000)),
        ending=dice.choice(("close", "leave", "leave")),
        recoverers=(),
        plan=FaultPlan(
            Rates(
                delay=dice.choice((0.2, 0.4)),
                late_effect=dice.choice((0.0, 0.0, 0.1)),
                hang=dice.choice((0.0, 0.0, 0.01)),
            ),
            Rates(),
            tuple(
                Disaster(
                    dice.choice(kinds),
                    dice.randrange(bookies),
                    dice.randint(5, 200),
                    dice.choice((1.0, 5.0, 20.0)),
                )
                for _ in range(dice.randint(4, 10))
            ),
        ),
    )


def gathering(seed: int) -> Script:
    """Recoverers come with several ledgers at a time.

    Bookies are quick here, mostly: the ledgers of one that is slow leave the others.
    """
    dice = random.Random(f"{seed}/gathering")
    usual = dice.choice((Script.drawn, cutting, darkening, losing, tearing))(seed)
    disasters = tuple(d for d in usual.plan.disasters if d.kind not in ("hang", "down"))

    def rate(high: float) -> float:
        return dice.choice((0.0, 0.0, high))

    def rates() -> Rates:
        lost = {what: rate(0.02) for what in ("request_lost", "answer_lost", "late_effect")}
        return Rates(delay=rate(0.02), crash=rate(0.003), pause=rate(0.01), **lost)

    return replace(
        usual,
        ending=dice.choice(("leave", "leave", "abandon", "close")),
        companions=dice.randint(1, 4),
        recoverers=tuple(dice.randint(60, 200) for _ in range(dice.randint(1, 3))),
        plan=FaultPlan(rates(), rates(), disasters),
    )


def keeping(seed: int) -> Script:
    """Garbage is collected and files are compacted while the ledger is written, moved and read."""
    dice = random.Random(f"{seed}/keeping")
    base = changing(seed) if dice.random() < 0.3 else Script.drawn(seed)
    moved = dice.choice((0, 0, 1, 2))
    return replace(
        base,
        max_group_entries=1,
        ending=dice.choice(("close", "close", "close", "leave")),
        keepers=tuple(
            Keeper(dice.choice(KINDS), dice.randint(40, 400)) for _ in range(dice.randint(2, 5))
        ),
        menders=tuple(dice.randint(40, 300) for _ in range(moved)),
        reader_at=dice.randint(10, 300) if dice.random() < 0.5 else None,
        delete_at=dice.randint(40, 300) if dice.random() < 0.15 else None,
        again_at=None,
    )


def moving(seed: int) -> Script:
    """Copies are moved to and fro between sound bookies while collectors come."""
    dice = random.Random(f"{seed}/moving")
    return replace(
        keeping(seed),
        bookies=QUORUM_MOVED.ensemble_size + 1,
        quorum=QUORUM_MOVED,
        payloads=(b"0", b"1"),
        waits=frozenset((0, 1)),
        ending="close",
        recoverers=(),
        plan=FaultPlan(Rates(delay=0.1, pause=dice.choice((0.0, 0.02))), Rates(delay=0.2)),
        keepers=tuple(Keeper("collector", dice.randint(60, 700)) for _ in range(6)),
        menders=tuple(dice.randint(60, 500) for _ in range(6)),
        reader_at=None,
        delete_at=None,
    )
