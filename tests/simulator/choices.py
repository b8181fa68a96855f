"""Who decides: a seed, or the enumeration of every small case.

A run asks for every decision here: who goes on, and whether something fails. Answer 0 always
means "as if undisturbed": the same task goes on, nothing fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol


class Choices(Protocol):
    """The decisions of one run."""

    def go_on(self, count: int) -> int:
        """At a point of a task that can go on: 0 it does, i > 0 the i-th of the others does."""

    def next_task(self, count: int) -> int:
        """When the running task cannot go on: which of ``count`` others does, from 0."""

    def fault(self, probabilities: Sequence[float]) -> int:
        """0 nothing fails, i > 0 the i-th fault happens (its probability, where chance rules)."""

    def fraction(self) -> float:
        """A number in 0 <= x < 1 (how long a delay takes); 0 where nothing is left to chance."""


class SeededChoices:
    """Everything drawn from one seed. Some seeds switch tasks often, others rarely."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"{seed}/choices").random
        self._keep = (0.0, 0.5, 0.9)[int(self._random() * 3)]

    def go_on(self, count: int) -> int:
        if self._random() < self._keep:
            return 0
        return int(self._random() * count)

    def next_task(self, count: int) -> int:
        return int(self._random() * count) if count > 1 else 0

    def fault(self, probabilities: Sequence[float]) -> int:
        draw = self._random()
        if draw > sum(probabilities) + 1e-9:
            return 0  # as the loop would say, and mostly
        for index, probability in enumerate(probabilities):
            if draw < probability:
                return index + 1
            draw -= probability
        return 0

    def fraction(self) -> float:
        return self._random()


class EnumeratedChoices:
    """The decisions of one run out of all: a given prefix, then always 0.

    Undisturbed, a task goes on until it blocks, and then the one that has waited longest does.
    Each other choice costs one deviation, each fault one fault; what is used up is offered no
    more. So n steps make about n ** deviations runs, and little is lost: the known bugs of
    concurrent programs need very few deviations.

    Source: Emmi, Qadeer, Rakamaric, "Delay-bounded scheduling", POPL 2011.
    """

    def __init__(self, prefix: list[int], *, deviations: int, faults: int) -> None:
        self._prefix = prefix
        self._deviations = deviations
        self._faults = faults
        self.made: list[tuple[int, int]] = []
        """(choice, how many there were) of every decision that had more than one way."""

    def go_on(self, count: int) -> int:
        return self.next_task(count)

    def next_task(self, count: int) -> int:
        choice = self._choose(count if self._deviations > 0 else 1)
        self._deviations -= choice > 0
        return choice

    def fault(self, probabilities: Sequence[float]) -> int:
        possible = [0] + [i + 1 for i, p in enumerate(probabilities) if p > 0]
        choice = self._choose(len(possible) if self._faults > 0 else 1)
        self._faults -= choice > 0
        return possible[choice]

    def fraction(self) -> float:
        return 0.0

    def _choose(self, count: int) -> int:
        if count <= 1:
            return 0
        depth = len(self.made)
        choice = self._prefix[depth] if depth < len(self._prefix) else 0
        assert choice < count, "the same prefix met other choices: the run is not deterministic"
        self.made.append((choice, count))
        return choice


def explore(
    run: Callable[[EnumeratedChoices], None],
    *,
    deviations: int,
    faults: int,
    limit: int | None = None,
) -> int:
    """Call ``run`` once for every sequence of choices, depth first.

    Args:
        run: makes a new world with these choices and runs it; raises what is wrong with it.
        deviations: how often in a run another task goes on than the one whose turn it is.
        faults: how many faults a run may meet.
        limit: stop after so many runs.

    Returns:
        The number of runs; equal to ``limit`` when the tree was not exhausted.

    The error of a failing run ends with its choices, to be repeated by ``EnumeratedChoices``.
    """
    prefix: list[int] = []
    runs = 0
    while limit is None or runs < limit:
        choices = EnumeratedChoices(prefix, deviations=deviations, faults=faults)
        try:
            run(choices)
        except AssertionError as error:
            made = [choice for choice, _ in choices.made]
            raise type(error)(f"{error}\nrun {runs}, repeat with the choices {made}") from error
        runs += 1
        made_choices = choices.made
        while made_choices and made_choices[-1][0] + 1 == made_choices[-1][1]:
            made_choices.pop()
        if not made_choices:
            return runs
        prefix = [choice for choice, _ in made_choices]
        prefix[-1] += 1
    return runs
