"""Contenders that alternate in one run, and ratios between them.

A disk that swings by a factor of eight within an hour makes a single time worthless. So all
contenders of a line run in every round, in an order of its own, and what is reported is the median
over the rounds of the ratio within a round, with the lowest and highest.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil
from typing_extensions import Self

OURS = "ours"
RAW = "raw"
PEER = "BookKeeper"

Contender = Callable[[], float]
"""Does the work once and returns the figure, in the unit of its line."""


@dataclass(frozen=True)
class Target:
    """What a ratio to a contender, or the figure itself, should be."""

    direction: Literal["at least", "at most"]
    value: float

    def is_met(self, measured: float) -> bool:
        if self.direction == "at least":
            return measured >= self.value
        return measured <= self.value

    def __str__(self) -> str:
        sign = "≥" if self.direction == "at least" else "≤"
        return f"{sign} {self.value:,g}"

    @classmethod
    def of(cls, text: str) -> Target:
        """What ``str`` made of it."""
        sign, value = text.split()
        return cls("at least" if sign == "≥" else "at most", float(value.replace(",", "")))


def at_least(value: float) -> Target:
    return Target("at least", value)


def at_most(value: float) -> Target:
    return Target("at most", value)


@dataclass(frozen=True)
class Against:
    """One contender that ours is compared with."""

    name: str
    run: Contender | None
    """``None`` when it cannot run here."""
    target: Target | None = None
    """Of the ratio ours / theirs; ``None``: shown for comparison."""
    reason: str = ""
    """Why it cannot run here."""


@dataclass(frozen=True)
class Line:
    """One thing to measure."""

    point: str
    """The name that the targets have: P1, P2, ..."""
    what: str
    unit: str
    sizes: str
    ours: Contender
    against: Sequence[Against] = ()
    own_target: Target | None = None
    """Of the median figure itself."""
    rounds: int = 5
    warm_up: int = 1
    """Rounds that are thrown away first."""


@dataclass(frozen=True)
class Exact:
    """Something that is counted, not timed: it is right, or it is not."""

    point: str
    what: str
    counted: Mapping[str, int]
    expected: Mapping[str, int]

    @property
    def is_met(self) -> bool:
        return dict(self.counted) == dict(self.expected)


@dataclass(frozen=True)
class Skipped:
    """A line that cannot be measured here."""

    point: str
    what: str
    reason: str


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Measured:
    """What the rounds of a line gave."""

    line: Line
    figures: dict[str, list[float]] = field(default_factory=dict)
    """By contender, one a round."""

    def figure(self, name: str) -> Spread:
        return Spread.of(self.figures[name])

    def ratio(self, name: str) -> Spread:
        """Of ours to a contender's, within the rounds."""
        pairs = zip(self.figures[OURS], self.figures[name], strict=True)
        return Spread.of([ours / theirs for ours, theirs in pairs])

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each comparison, as the table shows it and ``--json`` writes it."""
        line, ours = self.line, self.figure(OURS)
        base = {
            "point": line.point,
            "what": line.what,
            "sizes": line.sizes,
            "unit": line.unit,
            "rounds": line.rounds,
            "ours": vars(ours),
        }
        if line.own_target is not None:
            yield {
                **base,
                "against": None,
                "target": str(line.own_target),
                "is_met": line.own_target.is_met(ours.median),
            }
        for other in line.against:
            row: dict[str, Any] = {**base, "against": other.name}
            if other.target is not None:
                row["target"] = str(other.target)
            if other.name not in self.figures:
                yield {**row, "reason": other.reason}
                continue
            ratio = self.ratio(other.name)
            row |= {"theirs": vars(self.figure(other.name)), "ratio": vars(ratio)}
            if other.target is not None:
                row["is_met"] = other.target.is_met(ratio.median)
            yield row
        if line.own_target is None and not line.against:
            yield base


def measure(line: Line, on_round: Callable[[int, str], None]) -> Measured:
    """All rounds of a line; ``on_round`` is told the number of the round and who is on."""
    contenders = [(OURS, line.ours)]
    contenders += [(other.name, other.run) for other in line.against if other.run is not None]
    measured = Measured(line, {name: [] for name, _ in contenders})
    order = random.Random(line.what)
    for number in range(-line.warm_up, line.rounds):
        # Shuffled, not turned: in a turning order everyone would run behind the same other one,
        # and pay in every round for what that one leaves to the disk, to memory or to a JVM.
        for name, run in order.sample(contenders, len(contenders)):
            on_round(number, name)
            os.sync()  # what the one before left unwritten is not this one's to pay for
            figure = run()
            if number >= 0:
                measured.figures[name].append(figure)
    return measured


class Growth:
    """How much more memory this process has at a time than before."""

    def __enter__(self) -> Self:
        self._process = psutil.Process()
        self._before = self._most = self._process.memory_info().rss
        self._ended = threading.Event()
        self._looker = threading.Thread(target=self._look, daemon=True)
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._looker.join()

    def _look(self) -> None:
        while not self._ended.wait(0.01):
            self._most = max(self._most, self._process.memory_info().rss)

    @property
    def mib(self) -> float:
        return (self._most - self._before) / (1 << 20)
