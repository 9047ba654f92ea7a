"""A random regime schedule: a Markov chain over configurations with drawn dwell times."""

import math
import random
from typing import Literal

from perdure.core import seeds
from perdure.core.component import component
from perdure.core.errors import ConfigError, nearest
from perdure.core.records import Params, Segment
from perdure.regimes.schedules import Scheduled, cut, lay


@component
class Durations:
    """How long a configuration stays, in environment steps of one seed.

    "geometric": a change is equally likely at every step, `mean` steps apart on average, then held
    within [min, max] (so the bounds shift the mean). "uniform": every length in [min, max] is
    equally likely.
    """

    kind: Literal["geometric", "uniform"] = "geometric"
    mean: float | None = None
    min: int = 1
    max: int | None = None

    def __post_init__(self):
        if self.min < 1:
            raise ConfigError(f"durations.min is {self.min}; a segment needs at least one step")
        if self.max is not None and self.max < self.min:
            raise ConfigError(f"durations.max is {self.max}, below min, which is {self.min}; swap them")
        if self.kind == "geometric" and (self.mean is None or not 1 <= self.mean < math.inf):
            raise ConfigError(f"durations.mean is {self.mean}; geometric durations need a mean of at least 1 step")
        if self.kind == "uniform" and (self.max is None or self.mean is not None):
            raise ConfigError("durations: uniform ones need min and max, and no mean")

    def draw(self, generator: random.Random) -> int:
        """One dwell time, from exactly one uniform number."""
        uniform = generator.random()
        if self.kind == "uniform":
            assert self.max is not None
            return self.min + int(uniform * (self.max - self.min + 1))
        assert self.mean is not None
        # The inverse of the geometric distribution's function; a mean of 1 leaves no choice.
        steps = 1 if self.mean == 1 else 1 + math.floor(math.log1p(-uniform) / math.log1p(-1 / self.mean))
        return max(self.min, steps if self.max is None else min(steps, self.max))


@component
class Random(Scheduled):
    """Configurations that follow each other at random, the same for all seeds and arms of an experiment.

    `transition` has a row of probabilities for each state, in the order of `states` (default: every
    other state is equally likely). Staying is no boundary; it lengthens the segment. Dwell times are
    rounded up to whole steps of all copies. A state keeps its id at every visit.
    """

    durations: Durations
    states: dict[str, dict[str, float] | None] | tuple[str, ...]
    """Regime ids, with the parameters of each where they are set and not only labelled."""
    transition: tuple[tuple[float, ...], ...] | None = None
    start: str | None = None
    """The first state; the first listed by default."""
    seed: int = 0
    """Of the schedule alone (stream "regime"); run seeds do not enter."""

    def __post_init__(self):
        names = tuple(self.states)
        if len(set(names)) < 2 or len(set(names)) != len(names):
            raise ConfigError(
                f"states are {', '.join(names) or 'none'}; a random schedule needs two or more distinct ones"
            )
        if self.start is not None and self.start not in names:
            raise ConfigError(f"start is {self.start!r}, which is not a state; {nearest(self.start, names)}")
        if self.transition is not None:
            _check_transition(self.transition, names)
        _refuse_unreachable(self._rows(), names, self._first())

    def plan(self, total_steps: int, n_envs: int = 1) -> tuple[Segment, ...]:
        """Segments drawn from `seed`; a longer run's start with the same ones."""
        generator = random.Random(seeds.stream(self.seed, "regime"))
        names, rows = tuple(self.states), self._rows()
        visits: list[list[int]] = []
        current, start = self._first(), 0
        while start < total_steps:
            steps = -(-self.durations.draw(generator) // n_envs) * n_envs
            if visits and visits[-1][0] == current:
                visits[-1][1] += steps
            else:
                visits.append([current, steps])
            start += steps
            current = _choose(rows[current], generator.random())
        pieces = [(names[state], names[state], steps, self._params(names[state])) for state, steps in visits]
        return cut(lay(pieces), total_steps)

    def _params(self, name: str) -> Params | None:
        if not isinstance(self.states, dict) or all(params is None for params in self.states.values()):
            return None
        return self.states[name] or {}

    def _first(self) -> int:
        return 0 if self.start is None else tuple(self.states).index(self.start)

    def _rows(self) -> tuple[tuple[float, ...], ...]:
        if self.transition is not None:
            return self.transition
        count = len(self.states)
        return tuple(tuple(0.0 if i == j else 1 / (count - 1) for j in range(count)) for i in range(count))


def _choose(row: tuple[float, ...], uniform: float) -> int:
    """The state whose share of the row the number in [0, 1) falls into."""
    reached = 0.0
    for state, probability in enumerate(row):
        reached += probability
        if uniform < reached:
            return state
    return max(state for state, probability in enumerate(row) if probability > 0)


def _check_transition(transition: tuple[tuple[float, ...], ...], names: tuple[str, ...]) -> None:
    if len(transition) != len(names):
        raise ConfigError(f"transition has {len(transition)} rows; there are {len(names)} states")
    for name, row in zip(names, transition, strict=True):
        if len(row) != len(names):
            raise ConfigError(f"transition row of {name!r} has {len(row)} entries; there are {len(names)} states")
        if any(not 0 <= probability <= 1 for probability in row) or abs(sum(row) - 1) > 1e-6:
            raise ConfigError(f"transition row of {name!r} is {list(row)}; it must hold probabilities that sum to 1")


def _refuse_unreachable(rows: tuple[tuple[float, ...], ...], names: tuple[str, ...], first: int) -> None:
    seen, ahead = {first}, [first]
    while ahead:
        reachable = {state for state, probability in enumerate(rows[ahead.pop()]) if probability > 0} - seen
        seen |= reachable
        ahead += reachable
    for state, name in enumerate(names):
        if state not in seen:
            raise ConfigError(f"states.{name} never occurs: no row of transition leads there; take it out")
