"""Groups of JSON episodes for TRL's `rollout_func`: all rows of a group speak in one batch, tokens are appended.

The worlds are played by lm.rollout and the model answers through lm.sampler, whose cache lives as long as the group;
what was sampled is never decoded and encoded again, and what the world says is masked.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from perdure.core.errors import ConfigError, PerdureError, told
from perdure.integrations import _dataset, _episodes
from perdure.integrations._episodes import EnvFactory, EpisodeOutcome
from perdure.lm import rollout, sampler
from perdure.lm.chat import ChatTemplate
from perdure.lm.prompts import PromptBuilder
from perdure.lm.sampling import Sampling
from perdure.lm.trajectory import Trajectory
from perdure.worlds.concierge.records import ABORT, MAX_TURNS, Action


class JsonRollout:
    """A RolloutGroupFn in the JSON protocol, for models whose chat template knows no tools.

    An answer ends with its first JSON object, with the model's end of turn, or after `max_turn_tokens`; an episode
    ends with its world, or where another answer might exceed `max_episode_tokens` after the prompt, and is then
    aborted. `temperature`, `top_k` and `top_p` must be the trainer's own. The dialogue is written as ChatML whatever
    the tokenizer's template, turn by turn. Uniform numbers are drawn from torch's global generator, which a
    checkpoint of the trainer holds. `backend` is that of lm.sampler.

        JsonRollout.of(args, max_turn_tokens=128)
    """

    def __init__(
        self,
        *,
        max_turn_tokens: int = 256,
        max_episode_tokens: int = 2048,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        system: str = _episodes.PINNED_SYSTEM_PROMPT,
        backend: str = "auto",
    ):
        if not 0 < max_turn_tokens <= max_episode_tokens:
            raise ConfigError(
                f"max_turn_tokens is {max_turn_tokens} and max_episode_tokens {max_episode_tokens}; a turn has at "
                "least one token, and an episode room for a turn"
            )
        self.sampling = Sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, max_new_tokens=max_turn_tokens, stop_json=True
        )
        self.max_episode_tokens, self.system, self.backend = max_episode_tokens, system, backend

    @classmethod
    def of(cls, args: Any, *, max_turn_tokens: int | None = None, **options: Any) -> "JsonRollout":
        """With the sampling and the length of a GRPOConfig; a turn may have an eighth of it, and 256 tokens at most.

        ConfigError where two turns of `max_turn_tokens` do not fit: every errand would be cut after its first answer.
        """
        whole = args.max_completion_length
        if max_turn_tokens is None:
            max_turn_tokens = max(1, min(256, whole // 8))
        elif 2 * max_turn_tokens > whole:
            raise ConfigError(
                f"max_turn_tokens is {max_turn_tokens} and max_completion_length, the whole episode's, {whole}: no "
                "errand is done in one turn; raise max_completion_length, or shorten the turns"
            )
        return cls(
            max_turn_tokens=max_turn_tokens,
            max_episode_tokens=whole,
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            **options,
        )

    def __call__(
        self,
        *,
        model: Any,
        tokenizer: Any,
        goal: Any,
        episode_seed: int,
        num_generations: int,
        env_factory: EnvFactory,
    ) -> tuple[list[EpisodeOutcome], list[Trajectory]]:
        """Play `num_generations` worlds of one seed; a world that fails gives an outcome with its fault."""
        opened = [_opened(env_factory, goal, episode_seed) for _ in range(num_generations)]
        sound = [each for each in opened if isinstance(each, rollout.Episode)]
        voice = self._voice(model, tokenizer)
        if sound:
            voice = voice._replace(context=self._limit(voice, sound[0]))
            turns = max(MAX_TURNS.values())
            rollout.play(voice, sound, copies=len(sound), turns=turns, sampling=self.sampling)
        blank = Trajectory()
        blank.observe(voice.chat.prompt(voice.prompts.messages("")))
        played = [each if isinstance(each, rollout.Episode) else None for each in opened]
        outcomes = [
            EpisodeOutcome(None, fault=str(each)) if episode is None else _closed(episode)
            for each, episode in zip(opened, played, strict=True)
        ]
        return outcomes, [blank if episode is None else episode.trajectory for episode in played]

    def _voice(self, model: Any, tokenizer: Any) -> "_Voice":
        speaking = sampler.sampler(model, tokenizer, backend=self.backend)
        prompts, context = PromptBuilder(self.system), model.config.max_position_embeddings
        return _Voice(speaking, ChatTemplate(tokenizer), prompts, context)

    def _limit(self, voice: "_Voice", episode: rollout.Episode) -> int:
        """Tokens at which a conversation must not arrive, so that the answer after them stays within all limits."""
        prompt = len(voice.chat.prompt(voice.prompts.messages(episode.observation)))
        whole = min(prompt + self.max_episode_tokens, voice.context)
        limit = whole - self.sampling.max_new_tokens + 1
        if limit <= prompt:
            raise ConfigError(
                f"the prompt has {prompt} tokens, an answer may have {self.sampling.max_new_tokens}, and the model "
                f"takes {voice.context}; shorten the answers, have the world say less (terse=True), or take a model "
                "with a longer context"
            )
        return limit


class _Voice(NamedTuple):
    """What lm.rollout.play asks of a policy."""

    sampler: Any
    chat: ChatTemplate
    prompts: PromptBuilder
    context: int
    hooks: tuple[Any, ...] = ()
    parse_actions: bool = False
    version: int = 0


def driftcall_reward(*, prompts: Any, completions: Any, _meta: Any, episodes: Sequence[EpisodeOutcome]) -> list[Any]:
    """A RewardFn: what the worlds themselves paid."""
    return [episode.reward for episode in episodes]


def _opened(env_factory: EnvFactory, goal: Any, seed: int) -> "rollout.Episode | str":
    """A world at its first observation, or what it raised."""
    env = env_factory()
    try:
        observation, _ = env.reset(options=_episodes.task(seed))
    except PerdureError:
        raise
    except Exception as error:  # Any world may fail in any way; the episode is then missing, never worth 0.
        return told(error)
    _dataset.refuse_other_goal(observation, goal, seed)
    random = np.random.default_rng(int(torch.randint(2**62, ())))
    return rollout.Episode(env, observation, random)


def _closed(episode: rollout.Episode) -> EpisodeOutcome:
    """What came of an episode, after an abort where limits cut it short."""
    rows = episode.rows
    if episode.fault is None and not episode.trajectory.terminated:
        try:
            _, reward, _, _, info = episode.env.step(Action(ABORT.lower()))
        except Exception as error:  # As in a turn of the model's.
            return EpisodeOutcome(None, turns=len(rows), fault=told(error))
        return _episodes.outcome(float(reward), info, len(rows), None)
    info: Mapping[str, Any] = rows[-1].info if rows else {}
    return _episodes.outcome(episode.trajectory.total, info, len(rows), episode.fault)
