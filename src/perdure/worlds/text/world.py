"""What text worlds share: turns and their rewards, regimes, seeds, forks and exact resume.

A world asks a question, and an answer is judged with a score in [0, 1]. An answer at turn t (from 0) is
worth `RETRY`**t times its score, and a turn's reward is what it adds to the best worth so far, minus
`invalid_cost` if the world cannot read the answer at all. So the return of an episode is the worth of its
best answer minus the costs: 1 for the right answer at once, -`invalid_cost` * `turns` for noise alone.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.envs.registration import EnvSpec

from perdure.core import seeds
from perdure.core.errors import ConfigError, PerdureError, nearest
from perdure.worlds.text import spaces
from perdure.worlds.text.lanes import LaneWorld

RETRY = 0.8
"""What an answer is worth after one more turn, as a fraction."""


class Verdict(NamedTuple):
    """What the verifier says of one answer."""

    score: float
    """1 exactly where the answer is right, else below 1."""
    action_valid: bool
    """The world could read it; else it costs."""
    valid: bool
    """It has the form that was asked for."""
    hint: str
    """What the model is told, in plain ASCII; nothing of its own answer is repeated."""


class Example(NamedTuple):
    """A question with the expert's answer, for supervised training."""

    messages: list[dict[str, str]]
    """The prompt: one user message."""
    response: str
    reward: float
    """What the world pays for the response."""
    success: bool
    regime: dict[str, float]
    """The parameters in force."""


class TextWorld(LaneWorld):
    """A question, an answer, a verdict; derive a world by giving `name`, `cases` and the four last methods.

    The parameters of a regime are whole numbers given as floats. An episode keeps those that were in force
    when its question was asked; `set_regime` says what the next one is asked under. `reset(seed=n)` begins
    lane n, whose k-th question depends on (n, k) and the regime alone; `reset()` goes on to the next.
    `reset(options={"task": {"index": i}})` asks question 0 of lane i without leaving one's own lane.

    `info` after a step: `success` (the score is 1), `score`, `valid` (it has the form asked for),
    `action_valid` (else it was charged for), `verifier_pass` (1 or 0), `turn` (from 0), `reward_components`,
    `facts` (`success`, `valid`: what evaluations keep of the last answer).
    """

    task_key = "index"
    cases: Mapping[str, int]
    """Parameters of a regime -> the highest case of each; all begin at 0."""
    bounds_source = "an answer that cannot be read, and the right one at once"

    def __init__(self, turns: int, invalid_cost: float, params: Mapping[str, float]):
        if turns < 1 or isinstance(turns, bool):
            raise ConfigError(f"{self.name}: turns is {turns!r}; an episode has at least one")
        if not 0 <= invalid_cost < float("inf"):
            raise ConfigError(f"{self.name}: invalid_cost is {invalid_cost!r}; give a number from 0 up")
        self.turns, self.invalid_cost = int(turns), float(invalid_cost)
        self.observation_space, self.action_space = spaces.text_space(), spaces.text_space()
        self._defaults = {
            key: spaces.whole(value, self.cases[key], f"{self.name}: {key}") for key, value in params.items()
        }
        self._kwargs = {**self._defaults, "turns": self.turns, "invalid_cost": self.invalid_cost}
        entry = f"{type(self).__module__}:{type(self).__qualname__}"
        self.spec = EnvSpec(id=self.name, entry_point=entry, max_episode_steps=self.turns, kwargs=self._kwargs)
        self._params = dict(self._defaults)
        super().__init__()
        self._source: tuple[int, int] | None = None
        self._asked = dict(self._params)
        self._question: Any = None
        self._turn, self._best, self._over = 0, 0.0, True

    def check_regime(self, params: Mapping[str, float]) -> dict[str, int]:
        """All parameters of a regime, those not given as the world was built with; ConfigError for a wrong one."""
        for key, value in params.items():
            if key not in self.cases:
                raise ConfigError(f"{self.name} has no parameter {key!r}; {nearest(key, self.cases)}")
            spaces.whole(value, self.cases[key], f"{self.name}: {key}")
        return {**self._defaults, **{key: int(value) for key, value in params.items()}}

    def set_regime(self, params: Mapping[str, float]) -> None:
        """Have the next question asked under `params`; what is left out is as the world was built."""
        self._params = self.check_regime(params)

    @property
    def regime(self) -> dict[str, int]:
        """The parameters under which the present question was asked."""
        return dict(self._asked)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The next question of the lane, or the first of lane `seed`."""
        named = self.begin(seed, options)
        assert self._seed is not None, "a lane has begun"
        self._source = (self._seed, self._episode) if named is None else (named, 0)
        self._asked = dict(self._params)
        self._question = self._drawn()
        self._turn, self._best, self._over = 0, 0.0, False
        return self.prompt(self._question, self._asked), {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge an answer, which may be text or a JSON value; the observation is the verifier's hint."""
        if self._over:
            raise PerdureError(f"{self.name} has no question open; call reset() before step()")
        verdict = self.judge(self._question, self._asked, action)
        worth = RETRY**self._turn * verdict.score
        components = {
            "answer": max(0.0, worth - self._best),
            "invalid": 0.0 if verdict.action_valid else -self.invalid_cost,
        }
        info = {
            "success": verdict.score == 1,
            "score": verdict.score,
            "valid": verdict.valid,
            "action_valid": verdict.action_valid,
            "verifier_pass": float(verdict.score == 1),
            "turn": self._turn,
            "reward_components": components,
            "facts": {"success": verdict.score == 1, "valid": verdict.valid},
        }
        self._best = max(self._best, worth)
        self._turn += 1
        self._over = verdict.score == 1 or self._turn >= self.turns
        return verdict.hint, sum(components.values()), self._over, False, info

    def bounds(self, params: Mapping[str, float] | None = None) -> tuple[float, float]:
        """Return of an episode of unreadable answers, and of the right answer at once; the same in every regime."""
        self.check_regime(params or {})
        return -self.invalid_cost * self.turns, 1.0

    def expert(self, observation: str = "", info: Mapping[str, Any] | None = None) -> str:
        """The right answer to the question that is open; it knows the regime, so it needs no observation."""
        if self._question is None:
            raise PerdureError(f"{self.name} has asked nothing yet; call reset() first")
        return self.answer(self._question, self._asked)

    def examples(self, count: int, seed: int, params: Mapping[str, float] | None = None) -> Iterator[Example]:
        """`count` questions of lane `seed` under `params` (None: those in force), each with the expert's answer."""
        regime = self._params if params is None else self.check_regime(params)
        for number in range(count):
            question = self.question(_generator(seed, number), regime)
            messages = [{"role": "user", "content": self.prompt(question, regime)}]
            told = {key: float(value) for key, value in regime.items()}
            yield Example(messages, self.answer(question, regime), 1.0, True, told)

    def get_state(self) -> dict[str, Any]:
        """Everything that `reset` and `step` depend on, as JSON values."""
        return {
            **super().get_state(),
            "source": None if self._source is None else list(self._source),
            "params": dict(self._params),
            "asked": dict(self._asked),
            "turn": self._turn,
            "best": self._best,
            "over": self._over,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` was asked; DataError for the state of another world."""
        super().set_state(state)
        self._source = None if state["source"] is None else (state["source"][0], state["source"][1])
        self._params, self._asked = dict(state["params"]), dict(state["asked"])
        self._question = None if self._source is None else self._drawn()
        self._turn, self._best, self._over = state["turn"], state["best"], state["over"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self._kwargs.items())})"

    def question(self, generator: np.random.Generator, params: Mapping[str, int]) -> Any:
        """Draw a question."""
        raise NotImplementedError

    def prompt(self, question: Any, params: Mapping[str, int]) -> str:
        """The question in words."""
        raise NotImplementedError

    def answer(self, question: Any, params: Mapping[str, int]) -> str:
        """The right answer, exactly as it is asked for."""
        raise NotImplementedError

    def judge(self, question: Any, params: Mapping[str, int], action: Any) -> Verdict:
        """The verdict on an answer; never raises, whatever the answer is."""
        raise NotImplementedError

    def _drawn(self) -> Any:
        assert self._source is not None
        return self.question(_generator(*self._source), self._asked)


def _generator(seed: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seeds.stream(seed, "world", number)))
