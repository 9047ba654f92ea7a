"""Episodes for the stages: a scripted expert's, and a frozen policy's, under each regime of a document."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from perdure.core import capabilities, seeds
from perdure.core.errors import DataError, Refused
from perdure.core.records import Params
from perdure.harness import trials, worldstate
from perdure.lm.prompts import text_of
from perdure.lm.rollout import Episode, faults, play
from perdure.lm.stages import trajectories
from perdure.lm.stages.trajectories import Record
from perdure.lm.trajectory import Trajectory

AT_ONCE = 64
"""Episodes that are played in one batch."""


class Regime(NamedTuple):
    """A configuration of the world."""

    id: str
    origin: str
    """The regime that it repeats; its own id if it is new."""
    params: Params | None


def expert_episodes(
    make_env: Callable[[int], Any],
    policy: Any,
    regimes: Sequence[Regime],
    *,
    episodes: int,
    turns: int,
    seed: int,
    expert: Callable[[Any], Any] | None = None,
) -> Iterator[Record]:
    """`episodes` of each regime, answered by `expert(observation)` or, without one, by the world's own `expert`.

    Prompts and turns are written as `policy` writes them. Refused where there is no expert.
    """
    env = make_env(0)
    try:
        chosen = expert or capabilities.capability(env, "expert")
        if chosen is None:
            raise Refused(
                f"{env} has no expert; name one (stages.sft.data.expert.factory), or give stages.sft.data.file"
            )
        own = trajectories.fingerprint(policy.tokenizer)
        for place, regime in enumerate(regimes):
            _control(env, regime)
            for number in range(episodes):
                with worldstate.failing(f"expert episode {number} of regime {regime.id}", env):
                    start = seeds.stream(seed, "world", place * episodes + number)
                    record = _taught(env, policy, regime, chosen, turns, start)
                yield dataclasses.replace(record, tokenizer=own)
    finally:
        env.close()


def rollouts(
    make_env: Callable[[int], Any],
    policy: Any,
    regimes: Sequence[Regime],
    *,
    runs: int,
    episodes: int,
    turns: int,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
) -> list[Record]:
    """Sampled episodes of a frozen policy: `runs` streams, each of `episodes` under every regime.

    Run r begins with regime r modulo their number. Records come run by run in the order of time; their seed is the
    run's number. RunFailed where every episode of a batch failed; single ones that did are left out.
    """
    envs = [make_env(lane) for lane in range(min(AT_ONCE, episodes))]
    own = trajectories.fingerprint(policy.tokenizer)
    found: list[Record] = []
    try:
        for run in range(runs):
            places = [(run + each) % len(regimes) for each in range(len(regimes))]
            for place in places:
                keys = [seeds.stream(seed, "world", run), place]
                for begin in range(0, episodes, AT_ONCE):
                    numbers = range(begin, min(begin + AT_ONCE, episodes))
                    batch = [
                        _begun(env, regimes[place], keys, number) for env, number in zip(envs, numbers, strict=False)
                    ]
                    play(policy, batch, copies=1, turns=turns, sampling=policy.sampling)
                    for reason in faults(batch, f"run {run}, regime {regimes[place].id}"):
                        say(f"warning: an episode of regime {regimes[place].id} failed and is left out: {reason}")
                    sound = [episode for episode in batch if episode.fault is None]
                    played = [_played(policy, episode, regimes[place], run) for episode in sound]
                    found += [dataclasses.replace(record, tokenizer=own) for record in played]
            say(f"run {run + 1} of {runs}: {len(found)} episodes, mean score {_mean(found):.3f}")
    finally:
        for env in envs:
            env.close()
    return found


def _begun(env: Any, regime: Regime, keys: Sequence[int], number: int) -> Episode:
    """An episode whose question and random numbers depend on (seed, run, regime, number) alone."""
    _control(env, regime)
    drawn = np.random.SeedSequence([*keys, number]).generate_state(3, np.uint32)
    with worldstate.failing(f"episode {number} of regime {regime.id}: reset", env):
        observation, _ = env.reset(seed=int(drawn[0]))
    random = np.random.Generator(np.random.Philox(key=[int(drawn[1]), int(drawn[2])]))
    return Episode(env, observation, random, lane=number)


def _control(env: Any, regime: Regime) -> None:
    trials.control(env, regime.params)
    tell = capabilities.capability(env, "use_regime")
    if tell is not None:
        tell(regime.id, regime.origin)


def _taught(env: Any, policy: Any, regime: Regime, expert: Any, turns: int, seed: int) -> Record:
    """One episode of an expert, as the policy would have said it."""
    observation, info = env.reset(seed=seed)
    made, observations, messages = Trajectory(), [observation], policy.prompts.messages(observation)
    made.observe(policy.chat.prompt(messages))
    while True:
        text = text_of(expert(observation))
        turn = trajectories.answer(made, policy.chat, text)
        messages.append({"role": "assistant", "content": text})
        action = policy.parse(text) if policy.parse_actions else text
        observation, reward, terminated, truncated, info = env.step(action)
        turn.reward = float(reward)
        made.terminated = bool(terminated)
        made.truncated = not terminated and (bool(truncated) or len(made.turns) == turns)
        if made.terminated or made.truncated:
            break
        observations.append(observation)
        told = policy.prompts.text(observation)
        messages.append({"role": "user", "content": told})
        made.observe(policy.chat.following(told, ended=True))
    return _record(messages, made, regime, info, seed, observations)


def _played(policy: Any, episode: Episode, regime: Regime, run: int) -> Record:
    """One episode of a policy, in words too."""
    observations, tokens = [row.observation for row in episode.rows], episode.trajectory
    messages = policy.prompts.messages(observations[0])
    for number, turn in enumerate(tokens.turns):
        if number:
            messages.append({"role": "user", "content": policy.prompts.text(observations[number])})
        messages.append({"role": "assistant", "content": policy.chat.decode(tokens.ids[turn.start : turn.end])})
    return _record(messages, tokens, regime, episode.rows[-1].info, run, observations)


def _record(
    messages: list[dict[str, str]],
    tokens: Trajectory,
    regime: Regime,
    info: Mapping[str, Any],
    seed: int,
    observations: Sequence[Any],
) -> Record:
    passed = info.get("verifier_pass", info.get("success"))
    return Record(
        messages=messages,
        trajectory=tokens,
        reward=tokens.total,
        verified=None if passed is None else bool(passed),
        regime=regime.id,
        origin=regime.origin,
        params=None if regime.params is None else {name: float(each) for name, each in regime.params.items()},
        seed=seed,
        observations=[each if isinstance(each, str) else _json(each) for each in observations],
        place=f"an episode of regime {regime.id}",
    )


def _json(observation: Any) -> Any:
    """An observation that is no text, as the JSON value that a prompt would show."""
    try:
        return json.loads(text_of(observation))
    except ValueError as error:
        raise DataError(f"an observation cannot be kept as JSON ({error}); let the world show text or JSON") from None


def _mean(records: Sequence[Record]) -> float:
    return float(np.mean([record.reward or 0.0 for record in records])) if records else float("nan")
