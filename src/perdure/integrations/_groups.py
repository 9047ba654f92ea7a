"""From rows to groups of episodes and back to what TRL's rollout functions return."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from trl.models.utils import unwrap_model_for_generation

from perdure.core.errors import ConfigError, RunFailed
from perdure.integrations import _dataset
from perdure.integrations._episodes import EpisodeOutcome, Posed, checked_weights
from perdure.lm.trajectory import Trajectory

EXTRA = ("episodes", "trajectories")
"""Columns that a rollout adds to the rows for the reward function."""


def played(trainer: Any, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Every row's episode: ids, masks and log-probabilities as TRL's rollout functions give them.

    One call of `trainer.rollout_group_fn` a group, with as many generations as the mode has. RunFailed where all
    episodes of the batch failed.
    """
    episodes: list[Any] = []
    trajectories: list[Trajectory] = []
    size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    training = trainer.model.training
    with (
        torch.no_grad(),
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model,
    ):
        model.eval()
        for group in grouped(rows, size):
            found = _group(trainer, model, group)
            episodes += found[0]
            trajectories += found[1]
        model.train(training)
    faults = [fault for fault in map(_fault, episodes) if fault]
    if len(faults) == len(episodes):
        raise RunFailed(f"all {len(faults)} episodes of a batch failed, the first with: {faults[0]}; mend the world")
    empty = trainer.eos_token_ids[0]
    parts = [_parts(each, bool(_fault(episode)), empty) for each, episode in zip(trajectories, episodes, strict=True)]
    names = ("prompt_ids", "completion_ids", "env_mask", "logprobs")
    return {
        **{name: list(column) for name, column in zip(names, zip(*parts, strict=True), strict=True)},
        **dict(zip(EXTRA, (episodes, trajectories), strict=True)),
    }


def grouped(rows: Sequence[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    """Runs of rows of one episode, `size` at most: the part of a group that this process has."""
    group: list[dict[str, Any]] = []
    for row in rows:
        if group and (len(group) == size or _key(row) != _key(group[0])):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def rewards(trainer: Any, others: Any) -> Any:
    """TRL's reward functions: the one that asks `trainer.reward_fn_driftcall`, and `others`."""
    more = [] if others is None else others if isinstance(others, list) else [others]
    return [*([] if trainer.rollout_group_fn is None else [_reward(trainer)]), *more]


def _reward(trainer: Any) -> Callable[..., list[float | None]]:
    def driftcall(
        prompts: list[Any], episodes: list[Any], trajectories: list[Trajectory], **columns: Any
    ) -> list[float | None]:
        """None for an episode whose world failed; of the others what the reward function says."""
        sound = [index for index, episode in enumerate(episodes) if not _fault(episode)]
        rows = [{name: columns[name][index] for name in _dataset.COLUMNS[1:]} for index in sound]
        given = trainer.reward_fn_driftcall(
            prompts=[prompts[index] for index in sound],
            completions=[trajectories[index] for index in sound],
            _meta=[_dataset.meta(row, _goal(trainer, row)) for row in rows],
            episodes=[episodes[index] for index in sound],
        )
        if len(given) != len(sound):
            raise ConfigError(
                f"reward_fn_driftcall gave {len(given)} rewards for {len(sound)} episodes; it gives one each"
            )
        found: list[float | None] = [None] * len(episodes)
        for index, reward in zip(sound, given, strict=True):
            if reward is not None and not math.isfinite(reward):
                raise RunFailed(
                    f"reward_fn_driftcall gave {reward} for the episode of seed {columns['episode_seed'][index]}; a "
                    "reward is finite, or None where there is none"
                )
            found[index] = None if reward is None else float(reward)
        return found

    return driftcall


def _group(trainer: Any, model: Any, rows: list[dict[str, Any]]) -> tuple[list[Any], list[Trajectory]]:
    row = rows[0]
    weights, goal = checked_weights(row["language_weights"]), _goal(trainer, row)
    for each in rows:
        _dataset.refuse_other_prompt(each, getattr(goal, "seed_utterance", ""))
    episodes, completions = trainer.rollout_group_fn(
        model=model,
        tokenizer=trainer.processing_class,
        goal=goal,
        episode_seed=row["episode_seed"],
        num_generations=len(rows),
        env_factory=Posed(trainer.env_factory, row["stage"], weights),
    )
    for name, given in (("episodes", episodes), ("completions", completions)):
        if len(given) != len(rows):
            raise ConfigError(
                f"rollout_group_fn gave {len(given)} {name} for num_generations {len(rows)}; it gives one each"
            )
    for each in completions:
        if not isinstance(each, Trajectory):
            raise ConfigError(
                f"rollout_group_fn gave a completion of type {type(each).__name__}; give a perdure.lm.trajectory."
                "Trajectory: text alone has lost which tokens were sampled and which the world said"
            )
    return list(episodes), list(completions)


def _parts(trajectory: Trajectory, failed: bool, empty: int) -> tuple[list[int], list[int], list[int], list[float]]:
    """Prompt, completion, mask and log-probabilities; of a failed episode nothing is trained."""
    begin = trajectory.mask.index(True) if True in trajectory.mask else len(trajectory)
    end = trajectory.turns[-1].end if trajectory.turns else begin
    prompt, completion = trajectory.ids[:begin], trajectory.ids[begin:end]
    if not completion:
        return prompt, [empty], [0], [0.0]
    mask = [0 if failed else int(chosen) for chosen in trajectory.mask[begin:end]]
    return prompt, completion, mask, trajectory.logprobs[begin:end]


def _goal(trainer: Any, row: dict[str, Any]) -> Any:
    return trainer.task_gen(
        seed=row["episode_seed"], stage=row["stage"], language_weights=checked_weights(row["language_weights"])
    )


def _fault(episode: Any) -> str | None:
    """Why an episode counts nowhere; None for one that counts."""
    if episode is None:
        return "no episode was given"
    return episode.fault if isinstance(episode, EpisodeOutcome) else None


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["episode_seed"], row["stage"], tuple(sorted(row["language_weights"].items()))
