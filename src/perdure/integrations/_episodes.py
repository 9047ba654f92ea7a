"""What an episode of concierge training is about: its goal, its row, its world, and what came of it.

A row says everything that determines an episode: seed, stage and language weights. Whoever is given a row plays
the same errand, so the rows of a group share one world and only the model's answers differ.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from perdure.core import capabilities
from perdure.core.errors import ConfigError, Refused, nearest
from perdure.lm.trajectory import Trajectory
from perdure.worlds.concierge.records import LANGUAGES
from perdure.worlds.concierge.world import Concierge

LanguageCode = Literal["hi", "ta", "kn", "en", "hinglish"]
assert get_args(LanguageCode) == LANGUAGES, "the languages are those of the world"

BETA_KL = 0.04
"""The KL weight of the published recipe, and its target in nats a token."""

PINNED_SYSTEM_PROMPT = (
    "You are a concierge for a user in India. Do the errand they describe with the vendors' tools, one action a turn, "
    "and speak to them in their own language. A vendor may change its contract while you work: a field, a fee, a rule. "
    "Look for such changes in what the vendors answer, adapt, report them, and tell the user. Ask the user only for "
    "what nobody else knows. Once it is done, submit your honest probability that it is what the user wants."
)


class EpisodeSampler(Protocol):
    """What gives the episode of a training step (an EpisodeDatasetAdapter does)."""

    def __call__(self, step: int) -> Any: ...


class EnvFactory(Protocol):
    """Makes one world. To be trained in, it has `reset`, `step` and `set_regime` as worlds.concierge has them."""

    def __call__(self) -> Any: ...


class TaskGenerator(Protocol):
    """The goal of an episode, a pure function of its row; its `seed_utterance` is what the user says first."""

    def __call__(self, *, seed: int, stage: int, language_weights: Mapping[str, float]) -> Any: ...


class RolloutGroupFn(Protocol):
    """Plays the episodes of one group: `num_generations` worlds of one seed.

    `env_factory()` gives a world that has the stage and languages of the row already; `reset` it with
    `options={"task": {"seed": episode_seed}}`. Returned are the episodes, which the reward function reads (None for
    one whose world failed), and the tokens of each as a lm.trajectory.Trajectory.
    """

    def __call__(
        self, *, model: Any, tokenizer: Any, goal: Any, episode_seed: int, num_generations: int, env_factory: EnvFactory
    ) -> tuple[Sequence[Any], Sequence[Trajectory]]: ...


class RewardFn(Protocol):
    """The rewards of finished episodes; `_meta` holds goal, episode_seed, stage and language_weights of each."""

    def __call__(self, *, prompts: Any, completions: Any, _meta: Any, episodes: Any) -> Sequence[float | None]: ...


@dataclass(frozen=True)
class GoalSpec:
    """What a user wants, and how they say it. Only `seed_utterance` is for the model."""

    domain: str
    intent: str
    slots: Mapping[str, Any]
    constraints: Mapping[str, Any]
    language: str
    seed_utterance: str


@dataclass(frozen=True)
class EpisodeOutcome:
    """What came of an episode."""

    reward: float | None
    """None where the world failed: the episode then counts nowhere."""
    success: bool = False
    turns: int = 0
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    """The measures of the world's scoring."""
    ended: str = ""
    """How the errand ended; ABORT also where the model left it open."""
    fault: str | None = None
    """What the world raised."""


@dataclass
class ConciergeTasks:
    """The task generator of a concierge world: the goals that `env_factory`'s worlds pose."""

    env_factory: EnvFactory = Concierge
    _world: Any = field(default=None, init=False, repr=False, compare=False)

    def __call__(self, *, seed: int, stage: int, language_weights: Mapping[str, float]) -> GoalSpec:
        """The goal of a seed under a stage and languages."""
        if self._world is None:
            self._world = self.env_factory()
        if not isinstance(self._world, Concierge):
            raise ConfigError(
                f"env_factory makes a {type(self._world).__name__}, whose goals are unknown; give task_gen, a function "
                "of seed, stage and language_weights, beside it"
            )
        pose(self._world, stage, language_weights)
        self._world.reset(options=task(seed))
        goal = self._world.task.goal
        slots = {**goal.keys[0], **goal.request}
        constraints = {each.name: each.value for each in goal.constraints}
        return GoalSpec(goal.domain, goal.intent, slots, constraints, goal.language, goal.utterance)


@dataclass(frozen=True)
class Posed:
    """An EnvFactory of one row: its worlds have the row's stage and languages before anyone resets them."""

    env_factory: EnvFactory
    stage: int
    language_weights: Mapping[str, float]

    def __call__(self) -> Any:
        """A world, which `pose` may refuse."""
        world = self.env_factory()
        pose(world, self.stage, self.language_weights)
        return world


def pose(world: Any, stage: int, language_weights: Mapping[str, float]) -> None:
    """Have a world's next errand follow a row.

    Refused where it has no set_regime, since it would then draw errands of its own; ConfigError for what the world
    refuses, a language that its users do not speak for one.
    """
    set_regime: Callable[..., None] | None = capabilities.capability(world, "set_regime")
    if set_regime is None:
        raise Refused(
            f"env_factory makes a {type(world).__name__} without set_regime(params): stage and language weights of "
            "a row cannot reach it, and it would pose another errand than the prompt; add the method"
        )
    wanted = {code: weight for code, weight in language_weights.items() if weight}
    params = {"stage": stage, **{f"language_{code}": weight for code, weight in wanted.items()}}
    try:
        set_regime(params)
    except ConfigError as error:
        raise ConfigError(f"the world refuses a row of stage {stage} and language_weights {wanted}: {error}") from error


def task(seed: int) -> dict[str, Any]:
    """The options of `reset` that pose the errand of a seed."""
    return {"task": {"seed": int(seed)}}


def outcome(reward: float | None, info: Mapping[str, Any], turns: int, fault: str | None) -> EpisodeOutcome:
    """A finished episode from the last `info` of its world."""
    return EpisodeOutcome(
        reward=None if fault is not None else reward,
        success=bool(info.get("success", False)),
        turns=turns,
        components=dict(info.get("reward_components", {})),
        ended=info.get("trace", {}).get("ended", ""),
        fault=fault,
    )


def checked_weights(language_weights: Mapping[str, float]) -> dict[str, float]:
    """A copy of the weights; ConfigError for an unknown language, a negative weight, or a sum that is not 1."""
    for code, weight in language_weights.items():
        if code not in LANGUAGES:
            raise ConfigError(f"language_weights has {code!r}; {nearest(code, LANGUAGES)}")
        if not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"language_weights[{code!r}] is {weight}; a weight is 0 or more")
    if abs(sum(language_weights.values()) - 1) > 1e-6:
        raise ConfigError(f"language_weights add up to {sum(language_weights.values())}; they must add up to 1")
    return dict(language_weights)


def messages(goal: Any) -> list[dict[str, str]]:
    """The opening of an episode as chat messages: the pinned system message and what the user says."""
    return [
        {"role": "system", "content": PINNED_SYSTEM_PROMPT},
        {"role": "user", "content": getattr(goal, "seed_utterance", "")},
    ]


def render_initial_prompt(tokenizer: Any, goal: Any) -> str:
    """The opening as the tokenizer's chat template writes it, up to the assistant's turn.

    For reading: datasets hold the messages themselves, since a rendered text cannot take tools and may be given a
    second beginning-of-sequence token.
    """
    return tokenizer.apply_chat_template(messages(goal), tokenize=False, add_generation_prompt=True)
