"""Episodes as training data: one errand a step, endless to look at, finite and plain to train on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from datasets import Dataset, Features, Value

from perdure.core.errors import ConfigError, refuse_other_than_whole
from perdure.integrations import _episodes
from perdure.integrations._episodes import EnvFactory, TaskGenerator
from perdure.worlds.concierge.records import LANGUAGES, MAX_TURNS

MOST_SEED = 2**63
"""Above what Arrow stores as a seed."""
COLUMNS = ("prompt", "episode_seed", "stage", "language_weights")
"""What a row must have to be trained on."""
FEATURES = Features(
    {
        "prompt": [{"role": Value("string"), "content": Value("string")}],
        "episode_seed": Value("int64"),
        "stage": Value("int64"),
        "language_weights": {code: Value("float64") for code in LANGUAGES},
        "step": Value("int64"),
        "catalogue": Value("string"),
    }
)


@dataclass(frozen=True)
class AdapterRecord:
    """One step's episode."""

    prompt: str
    """The opening, rendered."""
    goal: Any
    episode_seed: int
    stage: int
    language_weights: Mapping[str, float]


class EpisodeDatasetAdapter:
    """The episodes of a stage, one a step: that of step k has the seed stage_base_seed + k.

    Rows are {"prompt", "_meta": {"goal", "episode_seed", "stage", "language_weights"}}. Iteration begins at
    `start_step` and has no end; `adapter[i]` is the i-th row from there, `peek(k)` and `adapter(k)` the record of
    step k. With `steps` it has a length. `to_dataset()` gives plain columns that Arrow can store, with messages in
    place of the rendered prompt; DriftCallGRPOTrainer converts by itself, and takes as many steps as it needs where
    `steps` is None. Rows stay in order.
    """

    def __init__(
        self,
        *,
        task_gen: TaskGenerator,
        env_factory: EnvFactory,
        stage: int,
        stage_base_seed: int,
        language_weights: Mapping[str, float],
        tokenizer: Any,
        steps: int | None = None,
        start_step: int = 0,
    ):
        if isinstance(stage, bool) or stage not in MAX_TURNS:
            raise ConfigError(f"stage is {stage!r}; it is one of {', '.join(map(str, MAX_TURNS))}")
        for name, value in (("stage_base_seed", stage_base_seed), ("start_step", start_step)):
            refuse_other_than_whole(name, value, 0)
        if stage_base_seed + start_step >= MOST_SEED:
            raise ConfigError(f"stage_base_seed is {stage_base_seed}, start_step {start_step}; seeds are below 2**63")
        refuse_other_than_whole("steps", 1 if steps is None else steps, 1)
        self.task_gen, self.env_factory, self.tokenizer = task_gen, env_factory, tokenizer
        self.stage, self.stage_base_seed = stage, stage_base_seed
        self.language_weights = _episodes.checked_weights(language_weights)
        self.steps, self.start_step = steps, start_step
        self._shared = MappingProxyType(self.language_weights)

    def __len__(self) -> int:
        if self.steps is None:
            raise TypeError("an EpisodeDatasetAdapter without steps has no end; give steps, or call to_dataset(steps)")
        return self.steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        step = self.start_step
        while True:
            yield self._row(step)
            step += 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index < 0 or (self.steps is not None and index >= self.steps):
            raise IndexError(f"row {index}; rows count from 0" + (f" to {self.steps - 1}" if self.steps else ""))
        return self._row(self.start_step + index)

    def __call__(self, step: int) -> AdapterRecord:
        """The record of a step, as an EpisodeSampler gives it."""
        return self.peek(step)

    def peek(self, step: int) -> AdapterRecord:
        """The record of a step, at no cost to any iteration."""
        if step < 0:
            raise ConfigError(f"step is {step}; steps count from 0")
        goal, seed = self._goal(step)
        prompt = _episodes.render_initial_prompt(self.tokenizer, goal)
        return AdapterRecord(prompt, goal, seed, self.stage, self._shared)

    def to_dataset(self, steps: int | None = None) -> Dataset:
        """The rows of `steps` steps (by default the adapter's own) from start_step on.

        ConfigError where neither says how many, and where the worlds of `env_factory` do not begin with what the
        goal says: the model would then be asked for one thing and paid for another.
        """
        steps = self.steps if steps is None else steps
        if steps is None:
            raise ConfigError("the data set needs an end: give steps to the adapter or to to_dataset()")
        refuse_other_than_whole("steps", steps, 1)
        world = _episodes.Posed(self.env_factory, self.stage, self.language_weights)()
        catalogue = getattr(getattr(world, "catalogue", None), "hash", "")
        rows = [self._plain(step, world, catalogue) for step in range(self.start_step, self.start_step + steps)]
        return Dataset.from_list(rows, features=FEATURES)

    def _goal(self, step: int) -> tuple[Any, int]:
        seed = self.stage_base_seed + step
        return self.task_gen(seed=seed, stage=self.stage, language_weights=self.language_weights), seed

    def _row(self, step: int) -> dict[str, Any]:
        record = self.peek(step)
        return {"prompt": record.prompt, "_meta": meta(vars(record), record.goal)}

    def _plain(self, step: int, world: Any, catalogue: str) -> dict[str, Any]:
        goal, seed = self._goal(step)
        refuse_other_goal(world.reset(options=_episodes.task(seed))[0], goal, seed)
        return {
            "prompt": _episodes.messages(goal),
            "episode_seed": seed,
            "stage": self.stage,
            "language_weights": {code: float(self.language_weights.get(code, 0)) for code in LANGUAGES},
            "step": step,
            "catalogue": catalogue,
        }


def meta(row: Mapping[str, Any], goal: Any) -> dict[str, Any]:
    """What a reward function is told of an episode."""
    return {
        "goal": goal,
        "episode_seed": row["episode_seed"],
        "stage": row["stage"],
        "language_weights": row["language_weights"],
    }


def refuse_other_prompt(row: Mapping[str, Any], utterance: str) -> None:
    """ConfigError where a row's prompt does not hold the request of its errand."""
    prompt = row["prompt"]
    asked = prompt[-1]["content"] if isinstance(prompt, list) and prompt else str(prompt)
    if utterance not in asked:
        raise ConfigError(
            f"episode_seed {row['episode_seed']}: the prompt says {asked[:80]!r}, the world asks for "
            f"{utterance[:80]!r}; make rows and worlds from one env_factory"
        )


def refuse_other_goal(observation: Any, goal: Any, seed: int) -> None:
    """ConfigError where a world's first observation does not hold the request that the prompt makes."""
    asked = getattr(goal, "seed_utterance", "")
    told = observation["user"] if isinstance(observation, Mapping) else str(observation)
    if asked not in told:
        raise ConfigError(
            f"episode_seed {seed}: the goal says {asked!r}, but the world of env_factory does not ask for it; task_gen "
            "and env_factory must draw one errand from one seed (ConciergeTasks(env_factory) does)"
        )
