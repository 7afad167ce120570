"""Which states come next: those from which there is something to learn.

    even       all states before one is repeated
    pass_rate  states of which some answers are right and some wrong, and states not yet seen; others when none is left
    level      from the easiest level to the hardest; the next one opens when `ADVANCE` of the last `WINDOW` states of
               the hardest open level are passed

With pass_rate and level, `EASY` of each draw are states that were passed, so that what is known is not lost.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from training.ppo.verl.settings import Order

ADVANCE, WINDOW, EASY = 0.7, 40, 0.15
PASSED = 0.5
"""A state counts as passed when at least this share of its answers is right."""


@dataclass(slots=True)
class Course:
    """What the draws so far came to; plain data, for checkpoints.

    Attributes:
        drawn: How often each state was drawn, by name.
        rates: The share of right answers when it was drawn last.
        open: The hardest level that is open; 0 before the first draw.
        window: Whether each of the last states of that level was passed.
    """

    drawn: dict[str, int] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    open: int = 0
    window: list[bool] = field(default_factory=list)


class Curriculum:
    """Draws states by name.

    Args:
        levels: Each state's name and the level of its task; None counts as level 1.
        seed: Equal seeds and equal outcomes draw equal states.
        course: What earlier draws came to; it is continued in place.
    """

    def __init__(self, levels: Mapping[str, int | None], order: Order, seed: str, course: Course) -> None:
        names = sorted(levels)
        random.Random(seed).shuffle(names)
        self._place = {name: place for place, name in enumerate(names)}
        self._levels = {name: level or 1 for name, level in levels.items()}
        self._order: Order = order
        self.course = course
        course.open = course.open or min(self._levels.values(), default=1)

    def draw(self, count: int) -> list[str]:
        """At most `count` different states, those that were drawn least often first; fewer if no more are of use."""
        ranked = sorted(self._place, key=lambda name: (self.course.drawn.get(name, 0), self._place[name]))
        first = [name for name in ranked if self._is_first(name)]
        other = [name for name in ranked if not self._is_first(name)]
        easy = math.floor(EASY * min(count, len(first)))
        easy_names = [name for name in other if self._is_easy(name)][:easy]
        taken = [*first[: count - len(easy_names)], *easy_names] if first else other[:count]
        for name in taken:
            self.course.drawn[name] = self.course.drawn.get(name, 0) + 1
        return taken

    def saw(self, name: str, rate: float) -> None:
        """Note the share of right answers to a state."""
        course, level = self.course, self._levels[name]
        course.rates[name] = rate
        if level == course.open:
            course.window = [*course.window, rate >= PASSED][-WINDOW:]
            harder = [other for other in self._levels.values() if other > level]
            if len(course.window) == WINDOW and sum(course.window) >= ADVANCE * WINDOW and harder:
                course.open, course.window = min(harder), []

    def _is_first(self, name: str) -> bool:
        if self._order == "level":
            return self._levels[name] == self.course.open
        rate = self.course.rates.get(name)
        return self._order == "even" or rate is None or 0 < rate < 1

    def _is_easy(self, name: str) -> bool:
        """True for states that were passed, or whose level is open already."""
        if self._order == "level":
            return self._levels[name] < self.course.open
        return self.course.rates.get(name, 0.0) >= PASSED
