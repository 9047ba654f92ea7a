"""Several conversations with several copies of a text world, driven by one policy at once.

All open episodes speak in one batch; an episode that ends leaves it. Copies of one start share the
prefill of their prompt. An episode whose world fails is set aside with its reason and changes nothing
for the others.
"""

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perdure.core.errors import PerdureError, Refused, RunFailed, told
from perdure.core.records import Transition
from perdure.harness import trials
from perdure.lm.conversation import Recorded
from perdure.lm.sampling import Sampling
from perdure.lm.trajectory import Sampled, Stop


@dataclass
class Episode:
    """One conversation under way, and its rows so far."""

    env: Any
    observation: Any
    random: np.random.Generator
    """Where its uniforms come from, so that no other episode can change them."""
    lane: int = 0
    group: int = -1
    recorded: bool = True
    """Whether its rows enter trace and metrics (a copy of a world that never ends does not)."""
    trajectory: Recorded = field(default_factory=Recorded)
    rows: list[Transition] = field(default_factory=list[Transition])
    fault: str | None = None
    """What its world raised; the episode then counts nowhere."""

    @property
    def over(self) -> bool:
        return self.fault is not None or self.trajectory.terminated or self.trajectory.truncated

    @property
    def score(self) -> float:
        """The sum of its rewards; NaN where its world failed."""
        return float("nan") if self.fault is not None else self.trajectory.total

    def trial(self) -> trials.Trial:
        """The finished episode as an evaluation keeps it."""
        kept = self.rows[: trials.TURNS]
        turns = [turn for row in kept for turn in trials.said(row.observation, row.action, row.reward)]
        return trials.Trial(self.score, len(self.rows), trials.facts(self.rows[-1].info), turns)


def play(policy: Any, episodes: Sequence[Episode], *, copies: int, turns: int, sampling: Sampling) -> None:
    """Play every episode to its end, or for `turns` turns, which truncates it.

    Episodes come in runs of `copies` with one start; Refused where their first observations differ,
    since then the world is not determined by its seed. Each `policy` answer is one environment step.
    """
    openings = [
        _opening(policy, episode, episodes[row // copies * copies].lane) for row, episode in enumerate(episodes)
    ]
    _refuse_long(openings, policy.context)
    for first in range(0, len(episodes), copies):
        _refuse_unequal(openings[first : first + copies])
    for episode, ids in zip(episodes, openings, strict=True):
        episode.trajectory.observe(ids)
        episode.trajectory.group, episode.trajectory.lane = episode.group, episode.lane
        episode.trajectory.version = policy.version
    session = policy.sampler.open(openings[::copies], copies)
    for turn in range(turns):
        alive = [row for row, episode in enumerate(episodes) if not episode.over]
        if not alive:
            return
        session.keep(alive)
        drawn = np.stack([episodes[row].random.random(sampling.max_new_tokens) for row in alive])
        for row, sampled in zip(alive, session.generate(alive, sampling, drawn), strict=True):
            following = _step(policy, episodes[row], sampled, last=turn == turns - 1)
            if following and session.length(row) + len(following) >= policy.context:
                _cut(episodes[row])
            elif following:
                episodes[row].trajectory.observe(following)
                session.append(row, following)


def _opening(policy: Any, episode: Episode, first: int) -> list[int]:
    """The ids of a new conversation's prompt; its prefix is that of the group's `first` lane, so that all are equal."""
    for hook in policy.hooks:
        hook.begin_episode(episode.lane)
        hook.see(episode.observation, episode.lane)
    return policy.chat.prompt(policy.prompts.messages(episode.observation, lane=first))


def _step(policy: Any, episode: Episode, sampled: Sampled, last: bool) -> list[int]:
    """One answer and what the world makes of it; the tokens that follow, empty where the episode is over."""
    record = episode.trajectory.answer(sampled)
    text = policy.chat.decode(sampled.ids)
    action = policy.parse(text) if policy.parse_actions else text
    try:
        seen, reward, terminated, truncated, info = episode.env.step(action)
        reward = float(reward)
    except PerdureError:
        raise
    except Exception as error:  # Any world may fail in any way; the episode is then missing, never worth 0.
        episode.fault = told(error)
        return []
    if not np.isfinite(reward):
        episode.fault = f"the reward is {reward}, which means that there is none"
        return []
    record.reward = reward
    full = sampled.stop is Stop.CONTEXT
    trajectory = episode.trajectory
    trajectory.terminated, trajectory.truncated = (
        bool(terminated),
        bool(truncated) or (not terminated and (last or full)),
    )
    episode.rows.append(
        Transition(
            step=-1,
            observation=episode.observation,
            action=action,
            reward=reward,
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
            reward_components=info.get("reward_components") or {},
            logprob=float(sum(sampled.logprobs)),
            info=info,
            next_observation=seen,
            lane=episode.lane,
        )
    )
    episode.observation = seen
    for hook in policy.hooks:
        hook.observe(seen, reward, info, episode.lane, ended=episode.over)
    if episode.over:
        return []
    for hook in policy.hooks:
        hook.see(seen, episode.lane)
    return policy.chat.following(policy.prompts.text(seen, episode.lane), ended=sampled.stop is Stop.END)


def _cut(episode: Episode) -> None:
    """End an episode for which the context has no room."""
    episode.trajectory.truncated = True
    episode.rows[-1].truncated = True


def _refuse_long(openings: Sequence[list[int]], context: int) -> None:
    for number, ids in enumerate(openings):
        if len(ids) >= context:
            raise RunFailed(
                f"episode {number} of an update begins with a prompt of {len(ids)} tokens, the model's context is "
                f"{context}; have the world say less, or take a model with a longer context"
            )


def _refuse_unequal(openings: Sequence[list[int]]) -> None:
    if any(ids != openings[0] for ids in openings[1:]):
        raise Refused(
            "copies that were reset with one seed begin differently, so they are no group; make reset(seed=...) "
            "determine the world, or train with lm/ppo or lm/reinforce"
        )


def faults(episodes: Sequence[Episode], what: str) -> list[str]:
    """Why episodes are missing; RunFailed, saying of `what`, where not one was spared."""
    found = [episode.fault for episode in episodes if episode.fault is not None]
    if episodes and len(found) == len(episodes):
        raise RunFailed(f"all {len(found)} episodes of {what} failed, the first with: {found[0]}; mend the world")
    return found


def comparable(sound: Sequence[Episode]) -> list[Episode]:
    """Those with another one of their group to be compared with; RunFailed where no group has two."""
    sizes = collections.Counter(episode.group for episode in sound)
    kept = [episode for episode in sound if sizes[episode.group] > 1]
    if not kept:
        raise RunFailed("worlds failed until no group of an update had two episodes left; mend the world")
    return kept
