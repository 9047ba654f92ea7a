"""The score of an errand as a tree of OpenEnv rubrics: every measure can be read off by its name."""

from collections.abc import Mapping
from typing import Any

from openenv.core.rubrics import Rubric

from perdure.worlds.concierge import scoring

MEASURES = ("r1", "r2", "r3", "r4", "efficiency", "penalty", "brier")
"""What an observation's metadata holds under `reward_components` at the end."""


class Measure(Rubric):
    """One measure of a finished errand; 0 where it does not apply, as r2 where no drift was exposed."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    def forward(self, action: Any, observation: Any) -> float:
        """The measure as the world found it."""
        return float(_components(observation)[self.name] or 0.0)


class Useful(Rubric):
    """U of `scoring`: what the errand did for the user, by the weights of its five measures."""

    def __init__(self):
        super().__init__()
        self.r1, self.r2, self.r3 = Measure("r1"), Measure("r2"), Measure("r3")
        self.r4, self.efficiency = Measure("r4"), Measure("efficiency")

    def forward(self, action: Any, observation: Any) -> float:
        """The weighted sum; where no drift was exposed, the weight of r2 is r1's."""
        r1, r2, r3, r4, efficiency = _scores(self, action, observation)
        exposed = _components(observation)["r2"] is not None
        useful = scoring.W1 * r1 + scoring.W2 * r2 if exposed else (scoring.W1 + scoring.W2) * r1
        return useful + scoring.W3 * r3 + scoring.W4 * r4 + scoring.WE * efficiency


class Reward(Rubric):
    """The reward: 0 until the errand ends, then what the world's `proper` profile gives.

    `named_rubrics()` lists useful, useful.r1 ... useful.efficiency, penalty, brier.
    """

    def __init__(self):
        super().__init__()
        self.useful, self.penalty, self.brier = Useful(), Measure("penalty"), Measure("brier")

    def forward(self, action: Any, observation: Any) -> float:
        """The reward of a turn."""
        if not observation.done:
            return 0.0
        return scoring.combined(*_scores(self, action, observation))

    def reset(self) -> None:
        """Forget the scores of the last errand."""
        for each in (self, *self.rubrics()):
            each.last_score = None


def _components(observation: Any) -> Mapping[str, float | None]:
    return observation.metadata["reward_components"]


def _scores(rubric: Rubric, action: Any, observation: Any) -> list[float]:
    """What the children of a rubric give, in the order of their names."""
    found = [each(action, observation) for each in rubric.children()]
    return [score for score in found if isinstance(score, float)]  # None is a coroutine: no measure waits.
